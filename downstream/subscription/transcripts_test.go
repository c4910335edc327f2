package subscription

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestTranscripts plays the conversations under testdata: one client and one type, without a stream, in virtual time.
// -update rewrites them; review the diff. A line that begins with ">" is an event. The lines below it are the responses
// to the client and [Subscription.String].
//
//	> client delta cds          (or sotw; then options: envoy, relay, errors, canary, held name@version …)
//	> reconnect                 (the client reports what it accepted)
//	> origin a@1 -b             (the wildcard set: a revision, a removal; the set is confirmed)
//	> origin by name a@1 -b     (what was asked for by name)
//	> origin of xdstp://… a@1   (what a glob stands for)
//	> origin denies a           (or: has not found; in the set, or by name)
//	> origin version 2 a@1 -b   (the version of the response, before each of these)
//	> origin delays 100ms       (from the receipt of each further response to its changes; writes when they are accepted)
//	> others subscribe a        (another client)
//	> show                      (canaries, what the origin has changed; everything waits for that)
//	> roll back                 (canaries, to the last good)
//	> distrust a                (or of xdstp://… a; nothing ends it)
//	> lost                      (the connection to the origin)
//	> freeze                    (or thaw)
//	> subscribe * a             (Delta; also: unsubscribe)
//	> list * a                  (SotW)
//	> ack                       (or nack; of the newest response, or of the nonce that follows)
//	> wait 5s
//	> status                    (the status of the client and of its resources, for operators)
func TestTranscripts(t *testing.T) { check.Transcripts(t, "testdata/*.txt", *update, play) }

func play(t *testing.T, lines []string) (played string) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := &player{t: t, now: time.Now()}
		for _, line := range lines {
			out.WriteString(line + "\n")
			event, ok := strings.CutPrefix(line, "> ")
			if !ok {
				continue
			}
			if event == "status" {
				out.WriteString("  status " + p.status() + "\n")
				continue
			}
			p.happen(strings.Fields(event))
			for _, took := range p.propagated {
				fmt.Fprintf(&out, "  accepted in %v\n", took)
			}
			p.propagated = nil
			for _, response := range p.turn() {
				out.WriteString("  send   " + response + "\n")
			}
			fmt.Fprintf(&out, "  state  %v\n", p.sub)
		}
		played = out.String()
	})
	return played
}

// A player plays one transcript.
type player struct {
	t    *testing.T
	view *cache.View
	w    *cache.Writer
	sub  *Subscription
	by   Software
	now  time.Time

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

func (p *player) happen(event []string) {
	switch what, args := event[0], event[1:]; what {
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
		p.w.Show(0, p.w.Pin())
	case "lost":
		p.w.SetConnected(false)
	case "freeze":
		p.w.Freeze()
	case "thaw":
		p.w.Thaw()
	case "roll":
		p.w.ShowAs(0, 1)
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
		r := &wire.Request{Nonce: p.sub.Nonce(), Refused: what == "nack", ErrorMessage: "no"}
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
	case "wait":
		time.Sleep(check.Must(time.ParseDuration(args[0])))
		p.now = time.Now()
	default:
		p.t.Fatalf("unknown event %q", event)
	}
}

// types are the resource types that transcripts name.
var types = map[string]string{"cds": wire.ClusterType, "eds": wire.EndpointType, "lds": wire.ListenerType, "rds": wire.RouteType, "rtds": wire.RuntimeType}

func (p *player) connect(args []string) {
	var cfg cache.Config
	if slices.Contains(args, "canary") {
		cfg.Cohorts, cfg.Waits = 1, func(string) bool { return true }
	}
	p.view, p.w = cache.New(cfg)
	p.view = p.view.Cohort(0)
	p.w.SetConnected(true)
	settings := &Settings{ResponseBytes: 1 << 20, AckWait: 5 * time.Second, ColdWait: 10 * time.Second}
	c := &Client{Settings: settings, Watch: p.view.WatchFunc(func() {}), Delta: args[0] == "delta", Errors: slices.Contains(args, "errors")}
	p.by = Software{Envoy: slices.Contains(args, "envoy"), Relay: slices.Contains(args, "relay")}
	p.sub = New(c, settings.TraitsOf(types[args[1]], p.by), wire.Unwrapped, false, playedCounter{player: p})
	p.held, p.versions, p.changes = make(map[string]string), make(map[string]string), make(map[string]func())
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
	p.sub = New(&c, c.Settings.TraitsOf(p.sub.TypeURL, p.by), wire.Unwrapped, false, playedCounter{player: p})
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
	for i, arg := range args {
		name, version, is := strings.Cut(arg, "@")
		switch {
		case arg == "denies" || arg == "misses":
			code := map[string]codes.Code{"denies": codes.PermissionDenied, "misses": codes.NotFound}[arg]
			u.Errors = append(u.Errors, wire.NewResourceError(args[i+1], code, arg))
		case is:
			value := check.Must(proto.Marshal(&clusterpb.Cluster{Name: name, AltStatName: version}))
			r := check.Must(wire.NewResource(p.sub.TypeURL, name, version, value))
			u.Resources = append(u.Resources, r)
		case arg[0] == '-':
			u.Removed = append(u.Removed, arg[1:])
		}
	}
	p.w.SetCause(cache.Cause{Received: time.Now().Add(-p.delay)})
	p.w.Apply(kind, u)
	p.w.SetCause(cache.Cause{})
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
	p.sub.ApplyRequest(r, p.now)
	p.w.TakeDemand()
}

// turn sends everything that is due, as a stream does in a turn.
func (p *player) turn() (responses []string) {
	g := p.view.Generation()
	l := &Turn{Newest: g, Cut: g, Now: p.now}
	send := func(part *Subscription, r *Response) {
		if r.Body != nil {
			p.nonces++
			nonce := fmt.Sprint(p.nonces)
			responses = append(responses, p.decode(r.Body, nonce))
			p.versions[nonce] = r.Body.Version()
			part.RecordSent(r, nonce, p.view, 0, p.now)
		}
	}
	for _, glob := range p.sub.globs.names() {
		p.sub.WakeGlob(glob)
	}
	for part := range p.sub.Parts() {
		if !part.Blocked(p.now) {
			r, _, err := part.Next(l, g.Seq)
			check.OK(p.t, err)
			send(part, &r)
		}
	}
	for part := range p.sub.Parts() {
		if part.LateRemovals && !part.Blocked(p.now) {
			r, _ := part.Removals(l)
			send(part, &r)
		}
	}
	p.sub.Watch.PassHints(p.sub.EndTurn(l))
	return responses
}

// decode returns a response as "nonce: a@1 -b", with the resources of a SotW set in braces.
func (p *player) decode(body *wire.Body, nonce string) string {
	encoded := check.Must(wire.Codec{}.Marshal(&wire.Response{Body: body, Nonce: nonce}))
	var parts []string
	add := func(name, version string) { parts = append(parts, name+"@"+version) }
	if p.sub.Delta {
		var r discoverypb.DeltaDiscoveryResponse
		check.OK(p.t, proto.Unmarshal(encoded.Materialize(), &r))
		for _, resource := range r.Resources {
			add(resource.Name, resource.Version)
		}
		for _, name := range r.RemovedResources {
			parts = append(parts, "-"+name)
		}
		for _, e := range r.ResourceErrors {
			parts = append(parts, "!"+e.ResourceName.Name)
		}
		slices.Sort(parts)
		p.changes[nonce] = func() {
			for _, resource := range r.Resources {
				p.held[resource.Name] = resource.Version
			}
			for _, name := range r.RemovedResources {
				delete(p.held, name)
			}
		}
		return nonce + ": " + strings.Join(parts, " ")
	}
	var r discoverypb.DiscoveryResponse
	check.OK(p.t, proto.Unmarshal(encoded.Materialize(), &r))
	for _, resource := range r.Resources {
		var c clusterpb.Cluster
		check.OK(p.t, proto.Unmarshal(resource.Value, &c))
		add(c.Name, c.AltStatName)
	}
	for _, e := range r.ResourceErrors {
		parts = append(parts, "!"+e.ResourceName.Name)
	}
	slices.Sort(parts)
	return nonce + ": {" + strings.Join(parts, " ") + "}"
}

// status returns the status of the client, such as "lag 1s, accepted 2 5s ago, refuses 3 | a refused, b sent". It refused
// a version if no refusal is active.
func (p *player) status() string {
	at := p.sub.At(p.view.Generation())
	s := at.Status(time.Now())
	line := fmt.Sprint("lag ", s.Lag)
	if !s.AcceptedAt.IsZero() {
		line += strings.TrimRight(", accepted "+s.Accepted, " ") + fmt.Sprintf(" %v ago", time.Since(s.AcceptedAt))
	}
	switch r := s.Refusal; {
	case s.Refused:
		line += ", refuses " + r.Version
	case r != nil:
		line += ", refused " + r.Version
	}
	var resources []string
	for _, r := range at.Resources() {
		resources = append(resources, fmt.Sprint(r.Entry.Name, " ", r.State))
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
