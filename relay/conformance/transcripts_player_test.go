package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A player plays one case of a scene.
type player struct {
	w        *world
	origins  map[string]*playedOrigin
	clients  map[string]*playedClient
	order    []*playedClient                    // in the order of connection
	lower    *running                           // a relay whose origin is the first relay
	contents map[string]*relaytest.Content      // by cluster or feature of the node
	streams  map[string]*relaytest.OriginStream // accepted by name from a manual origin
	versions map[string]int                     // number of each version, by version
	form     string                             // form of responses: "responses", "merged" or "states"
	notes    []string                           // lines to write before the responses
	load     *playedLoad                        // nil without TENDER_LRS
}

// A playedOrigin is an origin of a scene.
type playedOrigin struct {
	*world
	listed map[int]int // number of requests already written, by stream
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

// playerBubble runs f with a relay of one origin, or of two with TENDER_ROUTES.
func playerBubble(t *testing.T, env []string, f func(p *player)) {
	t.Helper()
	run := func(w, west *world, load *playedLoad) {
		p := &player{
			w: w, load: load, origins: make(map[string]*playedOrigin), clients: make(map[string]*playedClient),
			contents: make(map[string]*relaytest.Content), streams: make(map[string]*relaytest.OriginStream),
			versions: make(map[string]int),
		}
		p.origins["origin"] = &playedOrigin{w, make(map[int]int)}
		if west != nil {
			p.origins["west"] = &playedOrigin{west, make(map[int]int)}
		}
		f(p)
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

// results returns the lines to write below an event: notes, responses since the last event, and ended streams.
func (p *player) results() []string {
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
				parts[shortName(typeURL)] = append(parts[shortName(typeURL)], name+"@"+p.w.revs[entry.Digest])
			}
		}
	case "merged":
		for _, response := range responses {
			short, rest, _ := strings.Cut(response, " ")
			parts[short] = append(parts[short], strings.Fields(strings.Trim(rest, "{}"))...)
		}
	default:
		for i, r := range c.batch {
			responses[i] = shortenRanges(responses[i]) + ownMessages(r)
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
		if e.Message != errorDetail {
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

// play plays an event.
func (p *player) play(event string) {
	p.w.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	switch who {
	case "wait":
		p.w.sleep(check.Must(time.ParseDuration(what)))
	case "repeat": // "3: origin cds a@#; wait 1s", where # counts from 1
		times, events, _ := strings.Cut(what, ": ")
		for i := range check.Must(strconv.Atoi(times)) {
			for event := range strings.SplitSeq(events, "; ") {
				p.play(strings.ReplaceAll(event, "#", strconv.Itoa(i+1)))
				p.notes = p.results()
			}
		}
	case "relay":
		p.w.relay.Stop() // "relay stops"; environment variables are not events
	case "write":
		p.form = what
	case "log":
		p.notes = append(p.notes, fmt.Sprint(p.w.relay.Log.Count(what), " times"))
	case "origin", "west":
		p.origin(who, what)
	case "operator":
		p.operator(what)
	default:
		if s := p.streams[who]; s != nil {
			p.w.send(s, expandChanges(strings.TrimPrefix(what, "sends "))...)
			return
		}
		for name := range strings.SplitSeq(who, "+") {
			p.client(name, what)
		}
	}
}

// closeStreams makes the origin end each stream after a while without a response, as a proxy does whose control
// plane is down.
func (w *world) closeStreams(after time.Duration) {
	w.manualOrigin()
	for range w.origin.State().Streams {
		w.origin.Accept(w.t.Context()) // streams opened before the call
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	// The cleanup stops it.
	go func() {
		defer close(ended)
		for known := len(w.origin.State().Streams); ; known++ {
			for len(w.origin.State().Streams) == known {
				if !sleepUntil(ctx, 10*time.Millisecond) {
					return
				}
			}
			s := w.origin.Accept(ctx)
			if !sleepUntil(ctx, after) {
				return
			}
			s.Close(status.New(codes.Unavailable, "nothing is known here"))
		}
	}()
	w.t.Cleanup(func() { cancel(); <-ended })
}

// sleepUntil lets virtual time pass. It reports false if ctx ended.
func sleepUntil(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// typeURL returns the type URL of a short name; "none" stands for the empty one.
func (p *player) typeURL(short string) string {
	p.w.t.Helper()
	if typeURLs[short] == "" && short != "none" {
		p.w.t.Fatalf("%q is not the short name of a type", short)
	}
	return typeURLs[short]
}

// playedBehaviours are the events that change an origin's behaviour.
var playedBehaviours = map[string]func(b *relaytest.Behaviour){
	"behaves normally":           func(b *relaytest.Behaviour) { *b = relaytest.Behaviour{} },
	"is manual":                  func(b *relaytest.Behaviour) { b.Manual = true },
	"is silent on missing names": func(b *relaytest.Behaviour) { b.SilentOnMissing = true },
	"reports missing names":      func(b *relaytest.Behaviour) { b.SilentOnMissing = false },
	"ignores initial versions":   func(b *relaytest.Behaviour) { b.IgnoreIRV = true },
	"sends no versions":          func(b *relaytest.Behaviour) { b.EmptyVersions = true },
	"keeps no state": func(b *relaytest.Behaviour) {
		b.IgnoreIRV, b.EmptyVersions, b.SilentOnMissing = true,
			true, true
	},
	"speaks SotW":          func(b *relaytest.Behaviour) { b.SotW = true },
	"duplicates responses": func(b *relaytest.Behaviour) { b.Duplicate = true },
}

// origin plays an event of an origin.
func (p *player) origin(who, what string) {
	p.w.t.Helper()
	o := p.origins[who]
	if alter := playedBehaviours[what]; alter != nil {
		o.origin.Change(alter)
		return
	}
	verb, rest, _ := strings.Cut(what, " ")
	word, more, _ := strings.Cut(rest, " ")
	switch verb {
	case "stops":
		o.stop()
	case "starts":
		o.origin.Restart()
		o.sleep(0)
	case "delays":
		d := check.Must(time.ParseDuration(rest))
		o.origin.Change(func(b *relaytest.Behaviour) { b.Delay = d })
	case "omits":
		o.origin.Change(func(b *relaytest.Behaviour) {
			b.NamedOnly = func(_, name string) bool { return strings.HasPrefix(name, rest) }
		})
	case "has":
		if rest == "virtual hosts on demand" {
			o.onDemand()
			return
		}
		o.origin.Change(func(b *relaytest.Behaviour) {
			b.Unresolved = func(_,
				name string) bool {
				return "no "+name == rest
			}
		})
	case "closes":
		o.closeStreams(check.Must(time.ParseDuration(strings.TrimPrefix(rest, "streams after "))))
	case "accepts":
		p.streams[rest] = o.acceptStream()
	case "sends":
		o.origin.Inject(o.response(expandChanges(rest)...))
	case "heartbeats":
		o.origin.Heartbeat(p.typeURL(word), strings.Fields(more)...)
	case "forbids":
		o.uncached(expandChanges(strings.TrimPrefix(rest, "caching of "))...)
	case "for":
		if p.contents[word] == nil {
			p.contents[word] = o.origin.For(func(n *corepb.Node) bool {
				return n.GetCluster() == word || slices.Contains(n.GetClientFeatures(), word)
			})
		}
		c := o.parse(more)
		p.contents[word].Set(p.typeURL(c.short), c.name, o.message(c.short, c.name, c.rev), "")
	case "asks":
		p.load.request(p.w.t, rest)
	case "lists":
		for _, line := range p.list(o, word, more) {
			p.notes = append(p.notes, who+": "+line)
		}
	default:
		o.change(expandChanges(what)...)
	}
}

// list returns what an origin has received: subscriptions, requests, initial versions, streams or nodes.
func (p *player) list(o *playedOrigin, what, types string) (lines []string) {
	p.w.t.Helper()
	state := o.origin.State()
	switch what {
	case "subscriptions":
		shorts := strings.Split(types, "+")
		if types == "" {
			shorts = shortsOf(state)
		}
		for _, short := range shorts {
			lines = append(lines, short+describeSubscriptions(state, p.typeURL(short)))
		}
	case "requests":
		byType := make(map[string]string)
		for _, s := range state.Streams {
			for _, r := range s.Requests[o.listed[s.ID]:] {
				byType[shortName(r.TypeURL())] += describeRequest(r)
				o.listed[s.ID]++
			}
		}
		for _, short := range slices.Sorted(maps.Keys(byType)) {
			lines = append(lines, short+byType[short])
		}
	case "initial": // versions
		lines = []string{"initial versions of " + strings.Join(slices.Sorted(maps.Keys(o.initialVersions())), " ")}
	case "streams":
		line := fmt.Sprintf("%d of %d streams open, %d connections", len(state.Open()), len(state.Streams), state.Connections)
		if slices.ContainsFunc(state.Open(), func(st *relaytest.StreamState) bool { return st.SotW }) {
			line += ", SotW"
		}
		lines = []string{line}
	case "nodes":
		for _, st := range state.Open() {
			lines = append(lines, describeNode(st, p.typeURL(types)))
		}
		slices.Sort(lines)
	default:
		p.w.t.Fatalf("origin lists %s: unknown list", what)
	}
	return lines
}

// shortsOf returns the short names of all types that the relay has requested.
func shortsOf(s *relaytest.OriginState) []string {
	seen := make(map[string]bool)
	for _, stream := range s.Streams {
		for typeURL := range stream.Types {
			seen[shortName(typeURL)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// describeSubscriptions formats the names of a type. "a×2" was subscribed twice, "(a)" is no longer subscribed.
func describeSubscriptions(s *relaytest.OriginState, typeURL string) (text string) {
	subscribed := s.Names(typeURL)
	times := make(map[string]int)
	names := slices.Clone(subscribed)
	for _, r := range s.Requests(typeURL) {
		for _, name := range append(r.Message.GetResourceNamesSubscribe(), r.SotW.GetResourceNames()...) {
			if times[name]++; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names[len(subscribed):]) // ended subscriptions, in varying order
	for _, name := range names {
		word := name
		if times[name] > 1 {
			word += fmt.Sprint("×", times[name])
		}
		if !slices.Contains(subscribed, name) {
			word = "(" + word + ")"
		}
		text += " " + word
	}
	if n := s.Type(typeURL).NACKs; n > 0 {
		text += fmt.Sprintf(", %d NACKs", n)
	}
	return text
}

// describeNode formats the node of a stream, and its subscriptions to a type.
func describeNode(st *relaytest.StreamState, typeURL string) string {
	names := slices.Sorted(maps.Keys(st.Type(typeURL).Names))
	if st.Type(typeURL).Wildcard {
		names = append(names, "*")
	}
	features := slices.DeleteFunc(slices.Clone(st.Node.GetClientFeatures()),
		func(f string) bool { return strings.HasPrefix(f, "xds.config.") })
	return strings.TrimSpace(fmt.Sprintf("%s of cluster %s asks for %s %s",
		st.Node.GetId(), st.Node.GetCluster(), strings.Join(names, " "), strings.Join(features, " ")))
}

// describeRequest formats subscriptions, unsubscriptions, and whether the request is an ACK or a NACK.
func describeRequest(r relaytest.Request) (text string) {
	for _, name := range slices.Sorted(slices.Values(r.Message.GetResourceNamesSubscribe())) {
		text += " +" + name
	}
	for _, name := range slices.Sorted(slices.Values(r.Message.GetResourceNamesUnsubscribe())) {
		text += " -" + name
	}
	switch {
	case r.Message.GetErrorDetail() != nil:
		text += " NACK"
	case r.Message.GetResponseNonce() != "":
		text += " ACK"
	}
	return text
}

// operator plays a command of an operator.
func (p *player) operator(what string) {
	p.w.t.Helper()
	switch what {
	case "freezes", "thaws":
		operate[admin.FreezeScope, admin.Freezes](p.w.t, p.w.relay, strings.TrimSuffix(what, "s"), admin.FreezeScope{})
	case "releases", "discards":
		p.w.decideHolds(strings.TrimSuffix(what, "s"), false)
	case "releases what was discarded":
		p.w.decideHolds("release", true)
	case "lists removals":
		waiting, discarded := heldNames(p.w.t, p.w.relay)
		p.notes = append(p.notes, fmt.Sprintf("removals: %d wait, %d were discarded", waiting, discarded))
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
			p.request(c, verb, p.typeURL(short), short, expandNames(names))
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
			opts.AutoAck, opts.Reject = true, func(*relaytest.Response) error { return errors.New("refused") }
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
	typeURL := p.typeURL(short)
	delta := &discoverypb.DeltaDiscoveryRequest{Node: c.opts.Node, TypeUrl: typeURL}
	sotw := &discoverypb.DiscoveryRequest{Node: c.opts.Node, TypeUrl: typeURL,
		ResourceNames: strings.Fields(expandNames(names))}
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
	for word := range strings.FieldsSeq(expandNames(held)) {
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
		typeURL, number = p.typeURL(short), n
	}
	responses := slices.DeleteFunc(slices.Clone(c.Responses()),
		func(r *relaytest.Response) bool { return r.TypeURL != typeURL })
	n := check.Must(strconv.Atoi(number))
	if n > len(responses) {
		p.w.t.Fatalf("%v: %s: got only %d responses", c.Client, text, len(responses))
	}
	return field(responses[n-1])
}

// numbered matches a range of numbers in a name, such as "web{1..9}".
var numbered = regexp.MustCompile(`\{(\d+)\.\.(\d+)\}`)

// expandWord expands a word with a range of numbers. The numbers have the width of the range's end.
func expandWord(word string) (words []string) {
	at := numbered.FindStringSubmatchIndex(word)
	if at == nil {
		return []string{word}
	}
	last := word[at[4]:at[5]]
	from, _ := strconv.Atoi(word[at[2]:at[3]])
	to, _ := strconv.Atoi(last)
	for i := from; i <= to; i++ {
		words = append(words, fmt.Sprintf("%s%0*d%s", word[:at[0]], len(last), i, word[at[1]:]))
	}
	return words
}

// expandNames expands the ranges in space-separated names.
func expandNames(names string) string {
	var words []string
	for word := range strings.FieldsSeq(names) {
		words = append(words, expandWord(word)...)
	}
	return strings.Join(words, " ")
}

// expandChanges splits "cds a@1, cds b{1..2}@1" into changes.
func expandChanges(text string) (changes []string) {
	for change := range strings.SplitSeq(text, ", ") {
		changes = append(changes, expandWord(change)...)
	}
	return changes
}

// countedWord matches a resource in a response whose name contains a number.
var countedWord = regexp.MustCompile(`^((?:[^@]*[^@\d])?)(\d+)((?:[@~].*)?)$`)

// shortenRanges writes three or more resources with consecutive numbers as one range, the inverse of expandWord.
func shortenRanges(response string) string {
	words := strings.Fields(response)
	var out []string
	for i := 0; i < len(words); {
		first := countedWord.FindStringSubmatch(strings.TrimLeft(words[i], "{"))
		n, last := 1, ""
		for ; first != nil && i+n < len(words); n++ {
			next := countedWord.FindStringSubmatch(strings.TrimRight(words[i+n], "}"))
			number, _ := strconv.Atoi(first[2])
			want := fmt.Sprintf("%0*d", len(first[2]), number+n)
			if next == nil || next[1] != first[1] || next[2] != want || next[3] != first[3] {
				break
			}
			last = want
		}
		if n < 3 {
			out = append(out, words[i])
			i++
			continue
		}
		word := strings.Replace(words[i], first[2], "{"+first[2]+".."+last+"}", 1)
		if strings.HasSuffix(words[i+n-1], "}") {
			word += "}"
		}
		out = append(out, word)
		i += n
	}
	return strings.Join(out, " ")
}
