package subscription

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestTranscripts plays the conversations under testdata: one client and one type, without a stream, in virtual time.
// -update rewrites them; review the diff. [transcript] says how scenes and resources are written, here without their type. The
// results of an event are the responses to the client and [Subscription.String].
//
//	> client delta cds          (or sotw; then options: envoy, relay, errors, canary, held name@version …; small: it is sent
//	                            one resource at a time; moved: in SotW, it reports the version of another relay)
//	> reconnect                 (the client reports what it accepted)
//	> origin a@1 -b             (the wildcard set: a revision, a removal; the set is confirmed)
//	> origin by name a@1 -b     (what was asked for by name)
//	> origin of xdstp://… a@1   (what a glob stands for)
//	> origin !a:PermissionDenied (an error; in the set, or by name)
//	> origin version 2 a@1 -b   (the version of the response, before each of these)
//	> origin delays 100ms       (from the receipt of each further response to its changes; writes when they are accepted)
//	> others subscribe a        (another client)
//	> show                      (canaries, what the origin has changed; everything waits for that)
//	> roll back                 (canaries, to the last good)
//	> distrust a                (or of xdstp://… a; nothing ends it)
//	> lost                      (the connection to the origin; also: connected)
//	> freeze                    (or thaw)
//	> subscribe * a             (Delta; also: unsubscribe)
//	> list * a                  (SotW)
//	> ack                       (or nack; of the newest response, or of the nonce that follows)
//	> status                    (the status of the client and of its resources, for operators)
func TestTranscripts(t *testing.T) {
	t.Parallel()
	transcript.Play(t, "testdata/*.txt", *update, func(t *testing.T, _ []string, scene func(transcript.Stage)) {
		synctest.Test(t, func(t *testing.T) { scene(newPlayer(t)) })
	})
}

// A player plays one scene.
type player struct {
	t      *testing.T
	n      *transcript.Notation
	short  string // name of the type
	view   *cache.View
	w      *cache.Writer
	list   *pending.List // in front of w
	sub    *Subscription
	by     Software
	status bool // the current event asks for the status

	delay      time.Duration   // from the receipt of the origin's responses to their changes
	propagated []time.Duration // from the receipt to the ACK, by the current event

	held     map[string]string // resources that the client reports in its first request
	accepted string            // SotW: the version that it reports in its first request
	changes  map[string]func() // Delta: the effects of responses on held, by nonce
	listed   []string          // SotW: the names in its requests
	sum      uint64            // of listed
	nonces   int
	versions map[string]string // of SotW responses, by nonce
}

func newPlayer(t *testing.T) *player { return &player{t: t, n: transcript.NewNotation(t)} }

// Play implements [transcript.Stage].
func (p *player) Play(event string) {
	p.t.Helper()
	words := strings.Fields(event)
	switch what, args := words[0], words[1:]; what {
	case "status":
		p.status = true
	case "client":
		p.connect(args)
	case "reconnect":
		p.reconnect()
	case "origin":
		p.origin(args)
	case "others":
		p.view.Watch().Subscribe(p.sub.Key, args[1:])
		p.w.TakeDemand()
	case "show":
		p.list.Show(0, p.list.Pin())
	case "lost", "connected":
		p.w.SetConnected(what == "connected")
	case "freeze":
		p.list.Freeze()
	case "thaw":
		p.list.Thaw()
	case "roll":
		p.list.ShowAsRest(0)
	case "distrust":
		names, key := make(map[string]struct{}), p.sub.Key
		if len(args) > 0 && args[0] == "of" {
			key, args = cache.Collection(key, args[1]), args[2:]
		}
		for _, name := range args {
			names[name] = struct{}{}
		}
		p.view.Distrust.Set(0, map[string]map[string]struct{}{key: names})
	case "subscribe":
		p.request(&wire.Request{Subscribe: args})
	case "unsubscribe":
		p.request(&wire.Request{Unsubscribe: args})
	case "list":
		p.listed, p.sum = args, p.sum+1
		version := p.versions[p.sub.Nonce()]
		if !p.sub.Started() {
			version = p.accepted
		}
		p.request(&wire.Request{Nonce: p.sub.Nonce(), Version: version})
	case "ack", "nack":
		r := &wire.Request{Nonce: p.sub.Nonce(), Rejected: what == "nack", ErrorMessage: "no"}
		if len(args) > 0 {
			r.Nonce = args[0]
		}
		r.Version = p.versions[r.Nonce]
		if what == "ack" {
			p.accepted = r.Version
			if accept := p.changes[r.Nonce]; accept != nil {
				accept()
			}
		}
		p.request(r)
	default:
		p.t.Fatalf("unknown event %q", event)
	}
}

// Results implements [transcript.Stage].
func (p *player) Results() (lines []string) {
	if p.status {
		p.status = false
		return []string{"status " + p.showStatus()}
	}
	for _, took := range p.propagated {
		lines = append(lines, fmt.Sprintf("accepted in %v", took))
	}
	p.propagated = nil
	for _, response := range p.turn() {
		lines = append(lines, "send   "+response)
	}
	return append(lines, fmt.Sprintf("state  %v", p.sub))
}

func (p *player) connect(args []string) {
	var cfg cache.Config
	if slices.Contains(args, "canary") {
		cfg.Cohorts, cfg.Waits = 1, func(string) bool { return true }
	}
	p.view, p.w = cache.New(cfg)
	p.list = pending.New(p.w, nil)
	p.view = p.view.Cohort(0)
	p.w.SetConnected(true)
	settings := &Settings{ResponseBytes: 1 << 20, AckWait: 5 * time.Second, ColdWait: 10 * time.Second}
	if slices.Contains(args, "small") {
		settings.ResponseBytes = 1
	}
	c := &Client{Settings: settings, Watch: p.view.WatchFunc(func() {}), Delta: args[0] == "delta", Errors: slices.Contains(args, "errors")}
	p.by = Software{Envoy: slices.Contains(args, "envoy"), Relay: slices.Contains(args, "relay")}
	p.short = args[1]
	p.sub = New(c, TraitsOf(p.n.TypeURL(p.short), p.by), wire.Unwrapped, false, playedCounter{player: p})
	p.accepted = ""
	p.held, p.versions, p.changes = make(map[string]string), make(map[string]string), make(map[string]func())
	if slices.Contains(args, "moved") {
		p.accepted = "r1.of-another-relay"
	}
	if i := slices.Index(args, "held"); i >= 0 {
		for _, arg := range args[i+1:] {
			name, version, _ := strings.Cut(arg, "@")
			p.held[name] = version
		}
	}
}

// reconnect makes the client open another stream and report the resources that it has accepted.
func (p *player) reconnect() {
	p.sub.Close()
	p.sub.Watch.Close()
	c := *p.sub.Client
	c.Watch = p.view.WatchFunc(func() {})
	p.sub = New(&c, TraitsOf(p.sub.TypeURL, p.by), wire.Unwrapped, false, playedCounter{player: p})
}

func (p *player) origin(args []string) {
	kind, key, version := cache.Wildcard, p.sub.TypeURL, ""
	if args[0] == "version" {
		version, args = args[1], args[2:]
	}
	switch args[0] {
	case "delays":
		p.delay = check.Must(time.ParseDuration(args[1]))
		return
	case "by":
		kind, args = cache.ByName, args[2:]
	case "of":
		key, args = cache.Collection(key, args[1]), args[2:]
	}
	u := wire.Update{TypeURL: key, SystemVersion: version}
	for arg := range strings.FieldsSeq(transcript.Names(strings.Join(args, " "))) {
		switch c := p.n.Parse(p.short + " " + arg); {
		case c.Remove:
			u.Removed = append(u.Removed, c.Name)
		case c.Code != codes.OK:
			u.Errors = append(u.Errors, wire.NewResourceError(c.Name, c.Code, transcript.ErrorDetail))
		default:
			r := p.n.Resource(c)
			u.Resources = append(u.Resources, check.Must(wire.NewResource(p.sub.TypeURL, c.Name, fmt.Sprint(c.Rev), r.Resource.Value)))
		}
	}
	p.list.SetCause(cache.Cause{Received: time.Now().Add(-p.delay)})
	p.list.Apply(kind, u)
	p.list.SetCause(cache.Cause{})
	if kind == cache.Wildcard {
		p.w.SetPhase(key, cache.Confirmed)
	}
}

func (p *player) request(r *wire.Request) {
	if r.Delta = p.sub.Delta; r.Delta {
		if !p.sub.Started() {
			r.InitialVersions = maps.Clone(p.held)
		}
	} else {
		r.Subscribe, r.NamesSum = p.listed, p.sum
	}
	p.sub.ApplyRequest(r, time.Now())
	p.w.TakeDemand()
}

// turn sends everything that is due, as a stream does in a turn.
func (p *player) turn() (responses []string) {
	g := p.view.Generation()
	l := &Turn{Newest: g, Cut: g, Now: time.Now()}
	send := func(part *Subscription, r *Response) {
		if r.Body != nil {
			p.nonces++
			nonce := fmt.Sprint(p.nonces)
			responses = append(responses, p.decode(r.Body, nonce))
			p.versions[nonce] = r.Body.Version()
			part.RecordSent(r, nonce, p.view, 0, time.Now())
		}
	}
	for _, glob := range p.sub.globs.names() {
		p.sub.WakeGlob(glob)
	}
	for part := range p.sub.Parts() {
		if !part.Blocked(time.Now()) {
			r, _, err := part.Next(l, g.Seq)
			check.OK(p.t, err)
			send(part, &r)
		}
	}
	for part := range p.sub.Parts() {
		if part.LateRemovals() && !part.Blocked(time.Now()) {
			r, _ := part.Removals(l)
			send(part, &r)
		}
	}
	p.sub.Watch.PassHints(p.sub.EndTurn(l))
	return responses
}

// decode returns a response as "nonce: cds a@1 -b".
func (p *player) decode(body *wire.Body, nonce string) string {
	encoded := check.Must(wire.Codec{}.Marshal(&wire.Response{Body: body, Nonce: nonce})).Materialize()
	var r *relaytest.Response
	if p.sub.Delta {
		var message discoverypb.DeltaDiscoveryResponse
		check.OK(p.t, proto.Unmarshal(encoded, &message))
		r = relaytest.NewResponse(&message)
		p.changes[nonce] = func() {
			for _, resource := range r.Resources {
				p.held[resource.Name] = resource.Version
			}
			for _, name := range r.Removed {
				delete(p.held, name)
			}
		}
	} else {
		var message discoverypb.DiscoveryResponse
		check.OK(p.t, proto.Unmarshal(encoded, &message))
		r = relaytest.NewResponse(&message)
	}
	return nonce + ": " + p.n.Describe(r)
}

// showHolding returns a version, "nothing", or "unknown", with the position of the change if a history may know the version.
func showHolding(h Holding) string {
	switch {
	case h.Known:
		return cmp.Or(h.Version, "nothing")
	case h.At > 0:
		return fmt.Sprint("unknown at ", h.At)
	}
	return "unknown"
}

// showStatus returns the status of the client, such as "behind, lag 1s, accepted 2 5s ago, rejects 3 | a rejected (sent 3,
// accepted 2), b accepted". It rejected a version if no rejection is active.
func (p *player) showStatus() string {
	at := p.sub.At(p.view.Generation())
	s := at.Status(time.Now())
	line := fmt.Sprint(s.Sync, ", lag ", s.Lag)
	if !s.AcceptedAt.IsZero() {
		line += strings.TrimRight(", accepted "+s.Accepted, " ") + fmt.Sprintf(" %v ago", time.Since(s.AcceptedAt))
	}
	switch r := s.Rejection; {
	case s.Rejected:
		line += ", rejects " + r.Version
	case r != nil:
		line += ", rejected " + r.Version
	}
	var resources []string
	for _, r := range at.Resources() {
		text := fmt.Sprint(r.Entry.Name, " ", r.State)
		if r.State != Accepted || r.SentVersion != r.AcceptedVersion {
			text += fmt.Sprintf(" (sent %v, accepted %v)", showHolding(r.SentVersion), showHolding(r.AcceptedVersion))
		}
		resources = append(resources, text)
	}
	slices.Sort(resources)
	return line + " | " + strings.Join(resources, ", ")
}

// A playedCounter records how long changes take from their receipt to the ACK.
type playedCounter struct {
	noCounter
	*player
}

func (c playedCounter) Propagated(took time.Duration) {
	if c.delay > 0 {
		c.propagated = append(c.propagated, took)
	}
}

// A noCounter counts nothing.
type noCounter struct{}

func (noCounter) Sent(int)                 {}
func (noCounter) Answered(bool)            {}
func (noCounter) Propagated(time.Duration) {}
