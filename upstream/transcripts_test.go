package upstream_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
	"github.com/xdstender/tender/upstream"
)

var update = flag.Bool("update", false, "write the transcripts")

// TestTranscripts plays the conversations under testdata: one view that is kept in sync with an origin, without clients. -update
// records them; review the diff. A file whose name begins with codes (R124_…) tests these rules, as a test of that name would.
//
// [transcript] says how scenes, resources and the events of origins are written. "origin 2 < cds +a ACK 1" is a request on the
// second stream that the view has opened, and "clients < cds a@1 -b" is what has changed for clients: for those with a wildcard, by
// name, or of a glob. A name that the origin does not have is "!name"; a new phase of a set is in parentheses.
//
//	> relay Linger=1m                   (fields of [upstream.Config]; also: Protocol=sotw)
//	> relay restarts                    (with its snapshot)
//	> clients subscribe cds a b         (no names: the wildcard; also: unsubscribe)
func TestTranscripts(t *testing.T) {
	t.Parallel()
	transcript.Play(t, "testdata/transcripts/*.txt", *update, func(t *testing.T, settings []string, scene func(transcript.Stage)) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t, settings)
			scene(s)
			s.rig.stop()
		})
	})
}

// A stage is a view with its origin.
type stage struct {
	n      *transcript.Notation
	origin *transcript.Origin
	cfg    upstream.Config
	rig    *rig
	all    map[string]*cache.WildcardWatch   // by type
	names  map[string]map[string]*cache.Name // subscribed to, by type
	shown  map[string]shownSet               // by the name of the set
	notes  []string                          // lines to write before the others
}

func newStage(t *testing.T, settings []string) *stage {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
	s := &stage{n: transcript.NewNotation(t), all: make(map[string]*cache.WildcardWatch), names: make(map[string]map[string]*cache.Name),
		shown: make(map[string]shownSet)}
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		field := reflect.ValueOf(&s.cfg).Elem().FieldByName(name)
		switch field.Interface().(type) {
		case time.Duration:
			field.SetInt(int64(check.Must(time.ParseDuration(value))))
		case bool:
			field.SetBool(check.Must(strconv.ParseBool(value)))
		case int:
			field.SetInt(int64(check.Must(strconv.Atoi(value))))
		case upstream.Protocol:
			s.cfg.Protocol = map[string]upstream.Protocol{"delta": upstream.ProtocolDelta, "sotw": upstream.ProtocolSotW}[value]
		default:
			t.Fatalf("relay %s: no field that a transcript can set", setting)
		}
	}
	s.rig = viewSync(t, o, s.cfg)
	s.origin = transcript.NewOrigin(s.n, o)
	return s
}

// Play implements [transcript.Stage].
func (s *stage) Play(event string) {
	s.rig.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	switch who {
	case "origin":
		for _, line := range s.origin.Play(what) {
			s.notes = append(s.notes, "origin: "+line)
		}
	case "relay":
		s.rig.stop()
		snapshot, _ := s.rig.w.Snapshot(true)
		s.rig = restored(s.rig.t, s.rig.Origin, s.cfg, snapshot)
		clear(s.all)
		clear(s.names)
	case "clients":
		verb, rest, _ := strings.Cut(what, " ")
		short, names, _ := strings.Cut(rest, " ")
		s.subscribe(verb == "subscribe", s.n.TypeURL(short), strings.Fields(transcript.Names(names)))
	default:
		if !s.origin.Send(who, what) {
			s.rig.t.Fatalf("%s: unknown event", event)
		}
	}
	synctest.Wait()
}

// subscribe begins or ends the clients' subscription to names of a type; none are the wildcard.
func (s *stage) subscribe(begin bool, typeURL string, names []string) {
	switch w := s.rig.watch; {
	case begin && len(names) == 0:
		s.all[typeURL] = w.SubscribeAll(typeURL)
	case begin:
		if s.names[typeURL] == nil {
			s.names[typeURL] = make(map[string]*cache.Name)
		}
		for i, n := range w.Subscribe(typeURL, names) {
			s.names[typeURL][names[i]] = n
		}
	case len(names) == 0:
		w.UnsubscribeAll(s.all[typeURL])
	default:
		var ended []*cache.Name
		for _, name := range names {
			ended = append(ended, s.names[typeURL][name])
		}
		w.Unsubscribe(typeURL, ended)
	}
}

// Results implements [transcript.Stage]: what was listed, the origin's requests, and what has changed for clients.
func (s *stage) Results() (lines []string) {
	lines, s.notes = s.notes, nil
	for i, requests := range s.origin.Requests() {
		for _, r := range requests {
			line := fmt.Sprintf("origin %d < %s %s", i+1, transcript.ShortName(r.TypeURL()), transcript.DescribeRequest(r))
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	g := s.rig.view.Generation()
	for _, short := range slices.Sorted(maps.Keys(transcript.Types)) {
		typeURL := transcript.Types[short]
		t := g.Type(typeURL)
		lines = append(lines, s.changes(short, &t.Wildcard, t.Phase)...)
		lines = append(lines, s.changes(short+" by name", &t.ByName, cache.Unknown)...)
		for _, name := range slices.Sorted(maps.Keys(s.names[typeURL])) {
			if strings.HasSuffix(name, "/*") {
				t := g.Type(cache.Collection(typeURL, name))
				lines = append(lines, s.changes(short+" of "+name, &t.Wildcard, t.Phase)...)
			}
		}
	}
	return lines
}

// changes returns the line about what has changed in a set, if anything has.
func (s *stage) changes(of string, set *cache.Set, phase cache.Phase) []string {
	now := make(map[string]string) // revisions by name
	for e := range set.Since(0) {
		if e.Present() {
			body := &anypb.Any{TypeUrl: e.Resource.TypeURL, Value: e.Resource.Value()}
			now[e.Name.String()] = cmp.Or(s.n.Revision(relaytest.DigestOf(body)), "?")
		} else if e.Prior == nil || set.Count() == 0 {
			now[e.Name.String()] = "!"
		}
	}
	before := s.shown[of]
	var words []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		switch rev := now[name]; {
		case before.revs[name] == rev:
		case rev == "!":
			words = append(words, "!"+name)
		default:
			words = append(words, name+"@"+rev)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.revs)) {
		if now[name] == "" {
			words = append(words, "-"+name)
		}
	}
	if phase != before.phase {
		words = append(words, "("+phase.String()+")")
	}
	s.shown[of] = shownSet{now, phase}
	if len(words) == 0 {
		return nil
	}
	return []string{"clients < " + of + " " + transcript.Shorten(strings.Join(words, " "))}
}

// A shownSet is what the results of a scene have said of a set.
type shownSet struct {
	revs  map[string]string // by name; "!" for a nonexistent one
	phase cache.Phase
}
