package conformance_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// A player plays one case of a scene.
type player struct {
	w        *world
	origins  map[string]*transcript.Origin
	clients  map[string]*playedClient
	order    []*playedClient // in the order of connection
	lower    *running        // a relay whose origin is the first relay
	versions map[string]int  // number of each version, by version
	form     string          // form of responses: "responses", "merged" or "states"
	notes    []string        // lines to write before the responses
	load     *playedLoad     // nil without TENDER_LRS
}

// A playedClient is a client of a scene.
type playedClient struct {
	*worldClient
	name       string
	opts       relaytest.ClientOptions
	versions   bool // write the number of each response's version, and whether resources are wrapped
	unanswered []*relaytest.Response
	closed     bool            // the end was written
	states     []string        // as last written
	endpoints  map[string]bool // clusters whose endpoints auto-eds subscribed to; nil without auto-eds
}

// scenery runs a scene with a relay of one origin, or of two with TENDER_ROUTES.
func scenery(t *testing.T, env []string, scene func(transcript.Stage)) {
	t.Helper()
	run := func(w, west *world, load *playedLoad) {
		p := &player{
			w: w, load: load, origins: map[string]*transcript.Origin{"origin": transcript.NewOrigin(w.n, w.origin)},
			clients: make(map[string]*playedClient), versions: make(map[string]int),
		}
		if west != nil {
			p.origins["west"] = transcript.NewOrigin(west.n, west.origin)
		}
		scene(p)
	}
	const routes = "TENDER_ROUTES="
	if i := slices.IndexFunc(env, func(set string) bool { return strings.HasPrefix(set, routes) }); i >= 0 {
		originsBubble(t, env[i][len(routes):], slices.Delete(slices.Clone(env), i, i+1),
			func(first, west *world) { run(first, west, nil) })
	} else if slices.ContainsFunc(env, func(set string) bool { return strings.HasPrefix(set, "TENDER_LRS=") }) {
		playLoad(t, env, func(w *world, l *playedLoad) { run(w, nil, l) })
	} else {
		worldBubble(t, env, func(w *world) { run(w, nil, nil) })
	}
}

// Results implements [transcript.Stage]: notes, responses since the last event, and ended streams.
func (p *player) Results() []string {
	synctest.Wait()
	lines := p.notes
	p.notes = nil
	for quiet := false; !quiet; {
		quiet = true
		for _, c := range p.order {
			for _, response := range p.responses(c) {
				lines = append(lines, c.name+" < "+response)
			}
			c.unanswered = append(c.unanswered, c.batch...)
			quiet = !c.react() && quiet
		}
	}
	for _, c := range p.order {
		if c.Ended() && !c.closed {
			c.closed = true
			err := c.WaitEnd(p.w.t.Context())
			if errors.Is(err, io.EOF) {
				err = nil
			}
			lines = append(lines, c.name+" stream closed: "+status.Code(err).String())
		}
	}
	if p.load != nil {
		lines = append(lines, p.load.events(p.w.t)...)
	}
	return lines
}

// responses returns the lines for a client's responses since the last event.
func (p *player) responses(c *playedClient) []string {
	responses := c.received()
	parts := make(map[string][]string)
	switch p.form {
	case "states":
		for typeURL, entries := range c.State() {
			for name, entry := range entries {
				parts[shortName(typeURL)] = append(parts[shortName(typeURL)], name+"@"+p.w.n.Revision(entry.Digest))
			}
		}
	case "merged":
		for _, response := range responses {
			short, rest, _ := strings.Cut(response, " ")
			parts[short] = append(parts[short], strings.Fields(strings.Trim(rest, "{}"))...)
		}
	default:
		for i, r := range c.batch {
			responses[i] = transcript.Shorten(responses[i]) + ownMessages(r)
			if c.versions {
				responses[i] += p.numberVersion(r)
			}
		}
		return responses
	}
	var lines []string
	for _, short := range slices.Sorted(maps.Keys(parts)) {
		slices.Sort(parts[short])
		lines = append(lines, short+" "+strings.Join(slices.Compact(parts[short]), " "))
	}
	if p.form == "states" && len(lines) == 0 {
		lines = []string{"nothing"}
	}
	if p.form == "states" && (len(responses) == 0 || slices.Equal(lines, c.states)) {
		return nil
	}
	c.states = lines
	return lines
}

// numberVersion returns the number of a response's version, in the order of first use.
func (p *player) numberVersion(r *relaytest.Response) string {
	if p.versions[r.Version] == 0 {
		p.versions[r.Version] = len(p.versions) + 1
	}
	text := fmt.Sprint(" #", p.versions[r.Version])
	if slices.ContainsFunc(r.Resources, func(res relaytest.Resource) bool { return res.Wrapped }) {
		text += " wrapped"
	}
	return text
}

// ownMessages returns the messages of errors that the relay itself reports.
func ownMessages(r *relaytest.Response) (messages string) {
	for _, e := range r.Errors {
		if e.Message != transcript.ErrorDetail {
			messages += " (" + e.Message + ")"
		}
	}
	return messages
}

// react subscribes an auto-eds client to the endpoints of new clusters, and then ACKs. It reports whether there
// was a response.
func (c *playedClient) react() bool {
	if c.endpoints == nil || len(c.batch) == 0 {
		return false
	}
	for _, r := range c.batch {
		for _, name := range r.Names() {
			if r.TypeURL == relaytest.ClusterType && !c.endpoints[name] {
				c.endpoints[name] = true
				c.Subscribe(relaytest.EndpointType, name)
			}
		}
	}
	c.ackUnanswered()
	return true
}

// ackUnanswered ACKs all unanswered responses.
func (c *playedClient) ackUnanswered() {
	for _, r := range c.unanswered {
		c.Ack(r)
	}
	c.unanswered = nil
}

// Play implements [transcript.Stage].
func (p *player) Play(event string) {
	p.w.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	switch who {
	case "relay":
		p.w.relay.Stop() // "relay stops"
	case "write":
		p.form = what
	case "log":
		p.notes = append(p.notes, fmt.Sprint(p.w.relay.Log.Count(what), " times"))
	case "origin", "west":
		if asked, ok := strings.CutPrefix(what, "asks "); ok {
			p.load.request(p.w.t, asked)
			return
		}
		for _, line := range p.origins[who].Play(what) {
			p.notes = append(p.notes, who+": "+line)
		}
	case "operator":
		p.operator(what)
	default:
		if p.origins["origin"].Send(who, what) {
			return
		}
		for name := range strings.SplitSeq(who, "+") {
			p.client(name, what)
		}
	}
}

// operator plays a command of an operator.
func (p *player) operator(what string) {
	p.w.t.Helper()
	switch what {
	case "freezes", "thaws":
		operate[admin.FreezeScope, admin.Freezes](p.w.t, p.w.relay, strings.TrimSuffix(what, "s"), admin.FreezeScope{})
	case "passes":
		p.w.decideHolds("pass", false)
	case "drops":
		p.w.decideHolds("drop", false)
	case "passes what was dropped":
		p.w.decideHolds("pass", true)
	case "lists removals":
		waiting, dropped := heldNames(p.w.t, p.w.relay)
		p.notes = append(p.notes, fmt.Sprintf("removals: %d wait, %d were dropped", waiting, dropped))
	default:
		p.w.t.Fatalf("operator %q: unknown command", what)
	}
}

// client plays an event of a client.
func (p *player) client(name, what string) {
	p.w.t.Helper()
	c := p.clients[name]
	verb, rest, _ := strings.Cut(what, " ")
	switch {
	case verb == "connects":
		p.connect(name, strings.Fields(rest))
		return
	case p.load != nil && p.load.peer(p.w.relay, name, what):
		return
	case c == nil:
		p.w.t.Fatalf("%s %s: no client of this name", name, what)
	}
	types, names, _ := strings.Cut(rest, " ")
	switch verb {
	case "sends":
		p.send(c, rest, false)
	case "returns": // "to cds a b, holding c d@1"
		p.send(c, strings.TrimPrefix(rest, "to "), true)
	case "reconnects":
		c.Reconnect(p.w.relay.Conn())
		c.closed, c.unanswered = false, nil
	case "half-closes":
		c.CloseSend()
	case "closes":
		c.Close()
		c.closed = true
	case "acks":
		if types == "" {
			c.ackUnanswered()
			return
		}
		fallthrough
	default:
		for short := range strings.SplitSeq(types, "+") {
			p.request(c, verb, p.w.n.TypeURL(short), short, transcript.Names(names))
		}
	}
}

// request plays a request that does not depend on earlier responses.
func (p *player) request(c *playedClient, verb, typeURL, short, names string) {
	p.w.t.Helper()
	switch verb {
	case "subscribes":
		c.noteEndpoints(short, names)
		c.subscribe(short, names)
		return
	case "unsubscribes":
		c.Unsubscribe(typeURL, strings.Fields(names)...)
		return
	case "acks":
		c.ack(short)
	case "nacks":
		c.nack(short)
	default:
		p.w.t.Fatalf("%s %s: unknown event", c.name, verb)
	}
	c.unanswered = slices.DeleteFunc(c.unanswered, func(r *relaytest.Response) bool { return r.TypeURL == typeURL })
}

// noteEndpoints records endpoints that an auto-eds client subscribed to explicitly.
func (c *playedClient) noteEndpoints(short, names string) {
	for name := range strings.FieldsSeq(names) {
		if c.endpoints != nil && short == "eds" {
			c.endpoints[name] = true
		}
	}
}

// connect connects a client with options.
func (p *player) connect(name string, options []string) {
	p.w.t.Helper()
	id, stream, _ := strings.Cut(name, "/")
	short, _, _ := strings.Cut(stream, "/")
	c := &playedClient{name: name}
	opts, relay := relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode(id),
		TypeURL: typeURLs[short]}, p.w.relay
	switch {
	case strings.HasPrefix(id, "grpc"):
		opts.Node = relaytest.GRPCNode(id)
	case strings.HasPrefix(id, "tender"):
		opts.Node = &corepb.Node{Id: id, UserAgentName: "tender"}
	}
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "sotw":
		case "delta":
			opts.Variant = relaytest.Delta
		case "auto-ack":
			opts.AutoAck = true
		case "auto-nack":
			opts.AutoAck, opts.Reject = true, func(*relaytest.Response) error { return errors.New("rejected") }
		case "auto-eds":
			c.endpoints = make(map[string]bool)
		case "untyped":
			opts.ImplicitType = true
		case "ttl":
			opts.Node = relaytest.WithFeatures(opts.Node, relaytest.FeatureTTL, relaytest.FeatureWrapper)
		case "wrapper":
			opts.Node = relaytest.WithFeatures(opts.Node, relaytest.FeatureWrapper)
		case "feature":
			opts.Node = relaytest.WithFeatures(opts.Node, value)
		case "cluster":
			opts.Node.Cluster = value
		case "versions":
			c.versions = true
		case "below":
			if p.lower == nil {
				p.lower = p.w.relay.downstreamRelay()
			}
			relay = p.lower
		default:
			p.w.t.Fatalf("%s connects: unknown option %q", name, option)
		}
	}
	c.opts, c.worldClient = opts, p.w.dialAt(relay, opts)
	p.clients[name], p.order = c, append(p.order, c)
}

// send sends an arbitrary request such as "cds a -b, nonce=@1". A returning client's request is "cds a b, holding
// c d@1".
func (p *player) send(c *playedClient, what string, returning bool) {
	p.w.t.Helper()
	request, options, _ := strings.Cut(what, ", ")
	short, names, _ := strings.Cut(request, " ")
	typeURL := p.w.n.TypeURL(short)
	delta := &discoverypb.DeltaDiscoveryRequest{Node: c.opts.Node, TypeUrl: typeURL}
	sotw := &discoverypb.DiscoveryRequest{Node: c.opts.Node, TypeUrl: typeURL,
		ResourceNames: strings.Fields(transcript.Names(names))}
	for _, name := range sotw.ResourceNames {
		if dropped, ok := strings.CutPrefix(name, "-"); ok {
			delta.ResourceNamesUnsubscribe = append(delta.ResourceNamesUnsubscribe, dropped)
		} else {
			delta.ResourceNamesSubscribe = append(delta.ResourceNamesSubscribe, name)
		}
	}
	if returning {
		c.noteEndpoints(short, names)
		sotw.VersionInfo, delta.InitialResourceVersions = "r1.of-another-set",
			heldVersions(strings.TrimPrefix(options, "holding "))
		options = ""
	}
	for option := range strings.FieldsSeq(options) {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "nonce":
			delta.ResponseNonce = p.earlier(c, typeURL, value, func(r *relaytest.Response) string { return r.Nonce })
			sotw.ResponseNonce = delta.ResponseNonce
		case "version":
			sotw.VersionInfo = p.earlier(c, typeURL, value, func(r *relaytest.Response) string { return r.Version })
		case "error":
			delta.ErrorDetail = status.New(codes.Unknown, value).Proto()
			sotw.ErrorDetail = delta.ErrorDetail
		default:
			p.w.t.Fatalf("request %q: unknown option %q", what, option)
		}
	}
	c.Send(map[relaytest.Variant]proto.Message{relaytest.Delta: delta, relaytest.SotW: sotw}[c.opts.Variant])
}

// heldVersions returns the initial versions of "a b@1": an unknown version for a, and v1 for b.
func heldVersions(held string) map[string]string {
	versions := make(map[string]string)
	for word := range strings.FieldsSeq(transcript.Names(held)) {
		name, rev, ok := strings.Cut(word, "@")
		versions[name] = map[bool]string{true: "v" + rev, false: "of another time"}[ok]
	}
	return versions
}

// earlier returns a field of an earlier response: "@2" is the second one of the type, "@cds:2" that of another
// type, and "other@2" that of another client.
func (p *player) earlier(c *playedClient, typeURL, text string, field func(*relaytest.Response) string) string {
	p.w.t.Helper()
	of, number, ok := strings.Cut(text, "@")
	if !ok {
		return text
	}
	if of != "" {
		c = p.clients[of]
	}
	if short, n, other := strings.Cut(number, ":"); other {
		typeURL, number = p.w.n.TypeURL(short), n
	}
	responses := slices.DeleteFunc(slices.Clone(c.Responses()),
		func(r *relaytest.Response) bool { return r.TypeURL != typeURL })
	n := check.Must(strconv.Atoi(number))
	if n > len(responses) {
		p.w.t.Fatalf("%v: %s: got only %d responses", c.Client, text, len(responses))
	}
	return field(responses[n-1])
}
