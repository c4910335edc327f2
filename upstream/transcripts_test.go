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
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

var update = flag.Bool("update", false, "write the transcripts")

// TestTranscripts plays the conversations under testdata: one view that is kept in sync with an origin, without clients. -update
// records them; review the diff. A file whose name begins with codes (R124_…) tests these rules, as a test of that name would.
//
// [transcript] says how scenes, resources and the events of origins are written. "origin 2 < cds +a ACK 1" is a request on the
// second stream that the view has opened, and "clients < cds a@1 -b" is what has changed for clients: for those with a wildcard, by
// name, or of a glob. A name that the origin does not have is "!name", and "a@?" has no content; a new phase of a set, or "(again)"
// if it has changed to the same resources, is in parentheses. "operators < cds held a" are the removals that wait, or are
// suspected or dropped, whenever they change.
//
//	> relay Linger=1m                   (fields of [upstream.Config]; also: Protocol=sotw, Prewarm=cds)
//	> relay restarts                    (with its snapshot and the decisions of operators; also: stops, starts)
//	> clients subscribe cds a b         (no names: the wildcard; also: unsubscribe, refetch)
//	> others subscribe cds a b          (further clients)
//	> operators drop                     (the removals that are held; also: pass, pass dropped)
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
	kept   []reconcile.Hold    // dropped before the relay stopped
	demand map[string]*demand  // by "clients" and "others"
	shown  map[string]shownSet // by the name of the set
	holds  map[string]string   // names, by their type and state
	notes  []string            // lines to write before the others
}

// A demand is what some clients subscribe to.
type demand struct {
	watch *cache.Watch
	all   map[string]*cache.WildcardWatch   // by type or collection
	names map[string]map[string]*cache.Name // by type
}

func newStage(t *testing.T, settings []string) *stage {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
	s := &stage{n: transcript.NewNotation(t), demand: make(map[string]*demand), shown: make(map[string]shownSet),
		holds: make(map[string]string)}
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
		case []string:
			field.Set(reflect.ValueOf([]string{s.n.TypeURL(value)}))
		case upstream.Protocol:
			s.cfg.Protocol = map[string]upstream.Protocol{"delta": upstream.ProtocolDelta, "sotw": upstream.ProtocolSotW}[strings.ToLower(value)]
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
		if what != "starts" {
			s.kept = slices.DeleteFunc(s.rig.control.Operate(s.rig.t.Context(), reconcile.Command{}), func(h reconcile.Hold) bool { return h.Reason != reconcile.Dropped })
			s.rig.stop()
		}
		if what != "stops" {
			snapshot, _ := s.rig.w.Snapshot(true)
			s.rig = decided(s.rig.t, s.rig.Origin, s.cfg, snapshot, upstream.NewControl(false, s.kept))
			clear(s.demand)
		}
	case "clients", "others":
		verb, rest, _ := strings.Cut(what, " ")
		short, names, _ := strings.Cut(rest, " ")
		s.change(who, verb, s.n.TypeURL(short), strings.Fields(transcript.Names(names)))
	case "operators":
		do := map[string]reconcile.Command{"drop": drop, "pass": pass, "pass dropped": {Do: reconcile.Pass, Reason: reconcile.Dropped}}
		s.rig.control.Operate(s.rig.t.Context(), do[what])
	default:
		if !s.origin.Send(who, what) {
			s.rig.t.Fatalf("%s: unknown event", event)
		}
	}
	synctest.Wait()
}

// change begins, ends or renews the subscription of clients to names or globs of a type; none are the wildcard.
func (s *stage) change(who, verb, typeURL string, names []string) {
	d := s.demand[who]
	if d == nil {
		d = &demand{s.rig.view.Watch(), make(map[string]*cache.WildcardWatch), make(map[string]map[string]*cache.Name)}
		s.demand[who] = d
	}
	sets := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !wire.Glob(name) })
	names = slices.DeleteFunc(names, wire.Glob)
	for i, glob := range sets {
		sets[i] = cache.Collection(typeURL, glob)
	}
	if len(sets)+len(names) == 0 {
		sets = []string{typeURL}
	}
	for _, key := range sets {
		switch verb {
		case "subscribe":
			d.all[key] = d.watch.SubscribeAll(key)
		case "refetch":
			d.watch.Refetch(key, nil, time.Now())
		default:
			d.watch.UnsubscribeAll(d.all[key])
		}
	}
	if len(names) == 0 {
		return
	}
	if d.names[typeURL] == nil {
		d.names[typeURL] = make(map[string]*cache.Name)
	}
	if verb == "subscribe" {
		for i, n := range d.watch.Subscribe(typeURL, names) {
			d.names[typeURL][names[i]] = n
		}
		return
	}
	var ended []*cache.Name
	for _, name := range names {
		ended = append(ended, d.names[typeURL][name])
	}
	d.watch.Unsubscribe(typeURL, ended)
}

// Results implements [transcript.Stage]: what was listed, the origin's requests, what has changed for clients, and the removals
// that wait.
func (s *stage) Results() (lines []string) {
	lines, s.notes = s.notes, nil
	for i, requests := range s.origin.Requests() {
		for _, r := range requests {
			line := fmt.Sprintf("origin %d < %s %s", i+1, transcript.ShortName(r.TypeURL()), transcript.DescribeRequest(r))
			lines = append(lines, transcript.Shorten(line))
		}
	}
	g := s.rig.view.Generation()
	for _, short := range slices.Sorted(maps.Keys(transcript.Types)) {
		typeURL := transcript.Types[short]
		t := g.Type(typeURL)
		lines = append(lines, s.changes(short, &t.Wildcard, t.Phase)...)
		lines = append(lines, s.changes(short+" by name", &t.ByName, cache.Unknown)...)
		for _, key := range s.globs(typeURL) {
			t := g.Type(key)
			_, glob, _ := cache.SplitCollection(key)
			lines = append(lines, s.changes(short+" of "+glob, &t.Wildcard, t.Phase)...)
		}
	}
	return append(lines, s.held()...)
}

// globs returns the keys of the collections of a type to which clients have subscribed, sorted.
func (s *stage) globs(typeURL string) (keys []string) {
	for _, d := range s.demand {
		for key := range d.all {
			if of, _, ok := cache.SplitCollection(key); ok && of == typeURL {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// held returns a line for each type whose changes wait, if they have changed.
func (s *stage) held() (lines []string) {
	now := make(map[string]string)
	if s.rig.control.Holding() {
		for _, h := range s.rig.control.Operate(s.rig.t.Context(), reconcile.Command{}) {
			state := " held"
			switch {
			case h.Reason == reconcile.Dropped:
				state = " dropped"
			case h.Reason == reconcile.Replacement && h.Kind != reconcile.Removal:
				state = " waiting"
			case h.Undecided():
				state = " suspected"
			}
			typeURL, glob, _ := cache.SplitCollection(h.TypeURL)
			key := transcript.ShortName(cmp.Or(typeURL, h.TypeURL)) + strings.TrimSuffix(" of "+glob, " of ") + state
			now[key] += " " + transcript.Shorten(strings.Join(h.Names, " "))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if s.holds[key] != now[key] {
			lines = append(lines, "operators < "+key+now[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.holds)) {
		if now[key] == "" {
			lines = append(lines, "operators < "+key+" nothing")
		}
	}
	s.holds = now
	return lines
}

// changes returns the line about what has changed in a set, if anything has.
func (s *stage) changes(of string, set *cache.Set, phase cache.Phase) []string {
	now := make(map[string]string) // revisions by name
	for e := range set.Since(0) {
		if e.Present() {
			body := &anypb.Any{TypeUrl: e.Resource.TypeURL, Value: e.Resource.Value()}
			now[e.Name.String()] = cmp.Or(s.n.Revision(relaytest.DigestOf(body)), "?")
		} else if strings.HasSuffix(of, "by name") && (e.Prior == nil || set.Count() == 0) {
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
	if len(words) == 0 && len(now) > 0 && set.Last() > before.last {
		words = []string{"(again)"}
	}
	s.shown[of] = shownSet{now, phase, set.Last()}
	if len(words) == 0 {
		return nil
	}
	return []string{"clients < " + of + " " + transcript.Shorten(strings.Join(words, " "))}
}

// A shownSet is what the results of a scene have said of a set.
type shownSet struct {
	revs  map[string]string // by name; "!" for a nonexistent one
	phase cache.Phase
	last  cache.Seq // of the newest change
}
