package conformance_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// A rulePlayer is a player of the transcript of a rule.
type rulePlayer struct {
	w        *orderWorld
	clients  map[string]*orderClient
	names    []string // of the clients, in the order of their coming
	extra    map[string]*ruleClient
	below    *running                           // a relay whose origin is the other one
	contents map[string]*relaytest.Content      // by cluster of the node
	streams  map[string]*relaytest.OriginStream // that were accepted
	versions map[string]int                     // of sets, numbered
	macros   [][2]string
	pace     time.Duration // passes after each event of a client
	form     string        // "merged": the responses of an event are written as one of each type; "states": what clients have then
	lines    []string      // written after the event, before the responses
}

// A ruleClient is what the player keeps of a client.
type ruleClient struct {
	node     *corepb.Node
	variant  relaytest.Variant
	unacked  []*relaytest.Response
	versions bool // its responses are written with the number of their version, and whether resources are wrapped
	ended    bool
	states   []string // as written last
}

func (p *rulePlayer) expand(event string) string {
	for _, m := range p.macros {
		event = strings.ReplaceAll(event, "$"+m[0], m[1])
	}
	return event
}

func (p *rulePlayer) shorten(told string) string {
	for _, m := range p.macros {
		told = strings.ReplaceAll(told, m[1], "$"+m[0])
	}
	return told
}

// told returns the lines to write after an event.
func (p *rulePlayer) told() (lines []string) {
	lines, p.lines = p.lines, nil
	for _, name := range p.names {
		c, x := p.clients[name], p.extra[name]
		for i, response := range p.heard(c, x) {
			if x.versions {
				version := c.read[i].Version
				if p.versions[version] == 0 {
					p.versions[version] = len(p.versions) + 1
				}
				response += fmt.Sprint(" #", p.versions[version])
				if slices.ContainsFunc(c.read[i].Resources, func(r relaytest.Resource) bool { return r.Wrapped }) {
					response += " wrapped"
				}
			}
			lines = append(lines, name+" < "+response)
		}
		x.unacked = append(x.unacked, c.read...)
		if c.Ended() && !x.ended {
			x.ended = true
			if err := c.WaitEnd(p.w.t.Context()); errors.Is(err, io.EOF) {
				lines = append(lines, name+" < end of stream")
			} else {
				lines = append(lines, name+" < "+status.Code(err).String())
			}
		}
	}
	return lines
}

// heard returns the responses since the last event, or what they come to.
func (p *rulePlayer) heard(c *orderClient, x *ruleClient) []string {
	responses := c.heard()
	parts := make(map[string][]string)
	switch p.form {
	case "states":
		for typeURL, entries := range c.State() {
			for name, entry := range entries {
				parts[orderShort(typeURL)] = append(parts[orderShort(typeURL)], name+"@"+p.w.revs[entry.Digest])
			}
		}
	case "merged":
		for _, response := range responses {
			short, rest, _ := strings.Cut(response, " ")
			parts[short] = append(parts[short], strings.Fields(strings.Trim(rest, "{}"))...)
		}
	default:
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
	if p.form == "states" && (len(responses) == 0 || slices.Equal(lines, x.states)) {
		return nil
	}
	x.states = lines
	return lines
}

// common has an event happen that any client or the origin may have.
func (p *rulePlayer) common(event string) {
	p.w.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	switch who {
	case "relay":
	case "wait":
		d, err := time.ParseDuration(what)
		if err != nil {
			p.w.t.Fatal(err)
		}
		p.w.pass(d)
	case "origin":
		p.commonOrigin(what)
	default:
		p.commonClient(who, strings.Fields(what))
	}
}

func (p *rulePlayer) commonOrigin(what string) {
	switch what {
	case "stops":
		p.w.stop()
	case "starts":
		p.w.origin.Restart()
		p.w.pass(0)
	case "has virtual hosts on demand":
		p.w.onDemand()
	case "is silent on missing names":
		p.w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
	default:
		p.w.change(strings.Split(what, ", ")...)
	}
}

func (p *rulePlayer) commonClient(name string, does []string) {
	p.w.t.Helper()
	c := p.clients[name]
	if len(does) < 2 || c == nil && does[0] != "connects," {
		p.w.t.Fatalf("event %q of %q: not understood", does, name)
	}
	switch does[0] {
	case "connects,":
		p.clients[name], p.names = p.w.dial(ruleOptions(name, does[1])), append(p.names, name)
	case "subscribes":
		c.subscribe(does[1], strings.Join(does[2:], " "))
	case "unsubscribes":
		c.Unsubscribe(orderTypes[does[1]], does[2:]...)
	case "acks":
		c.ack(does[1:]...)
	case "nacks":
		c.nack(does[1])
	case "closes":
		c.Close()
	default:
		p.w.t.Fatalf("%s %q: not understood", name, does)
	}
}

// ruleOptions returns how the client of a name connects.
func ruleOptions(name, variant string) relaytest.ClientOptions {
	id, stream, _ := strings.Cut(name, "/")
	short, _, _ := strings.Cut(stream, "/")
	opts := relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode(id), TypeURL: orderTypes[short]}
	if variant == "delta" {
		opts.Variant = relaytest.Delta
	}
	if strings.HasPrefix(id, "grpc") {
		opts.Node = relaytest.GRPCNode(id)
	}
	return opts
}

func (p *rulePlayer) happen(event string) {
	p.w.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	stream := p.streams[who]
	switch {
	case event == "relay stops":
		p.w.relay.Stop()
	case who == "relay" || who == "wait":
		p.common(event)
	case who == "pace":
		p.pace, _ = time.ParseDuration(what)
	case who == "write":
		p.form = what
	case who == "let":
		name, value, _ := strings.Cut(what, " = ")
		p.macros = append(p.macros, [2]string{name, value})
	case who == "log":
		p.lines = append(p.lines, fmt.Sprint(p.w.relay.Log.Count(what), " times"))
	case who == "origin":
		p.origin(what)
	case stream != nil:
		p.w.say(stream, strings.Split(strings.TrimPrefix(what, "says "), ", ")...)
	default:
		for name := range strings.SplitSeq(who, "+") {
			p.client(name, strings.Fields(what))
		}
		time.Sleep(p.pace)
	}
	synctest.Wait()
}

func (p *rulePlayer) origin(what string) {
	verb, rest, _ := strings.Cut(what, " ")
	fields := strings.Fields(rest)
	o := p.w.origin
	switch verb {
	case "for":
		cluster := fields[0]
		if p.contents[cluster] == nil {
			p.contents[cluster] = o.For(func(n *corepb.Node) bool {
				return n.GetCluster() == cluster || slices.Contains(n.GetClientFeatures(), cluster)
			})
		}
		c := p.w.parse(strings.Join(fields[1:], " "))
		p.contents[cluster].Set(orderTypes[c.short], c.name, p.w.message(c.short, c.name, c.rev), "")
	case "heartbeats":
		o.Heartbeat(orderTypes[fields[0]], fields[1:]...)
	case "forbids":
		p.w.uncached(strings.Split(strings.TrimPrefix(rest, "caching of "), ", ")...)
	case "injects":
		o.Inject(p.w.response(strings.Split(rest, ", ")...))
	case "accepts":
		p.streams[rest] = p.w.accept()
	case "shows":
		p.shows(rest)
	case "asked": // "at most 7 cds a"
		most, err := strconv.Atoi(fields[2])
		if n := p.w.asksFor(fields[3], fields[4]); err != nil || n > most {
			p.lines = append(p.lines, fmt.Sprint("origin: ", n, " requests"))
		}
	default:
		if change := originBehaviour(what); change != nil {
			o.Change(change)
		} else {
			p.commonOrigin(what)
		}
	}
}

// originBehaviour returns how an event changes the behaviour of the origin; nil if it is another event.
func originBehaviour(what string) func(b *relaytest.Behaviour) {
	last := what[strings.LastIndex(what, " ")+1:]
	switch {
	case what == "is manual":
		return func(b *relaytest.Behaviour) { b.Manual = true }
	case what == "is SotW":
		return func(b *relaytest.Behaviour) { b.SotW = true }
	case what == "ignores versions":
		return func(b *relaytest.Behaviour) { b.IgnoreIRV = true }
	case what == "duplicates":
		return func(b *relaytest.Behaviour) { b.Duplicate = true }
	case what == "behaves":
		return func(b *relaytest.Behaviour) { *b = relaytest.Behaviour{} }
	case strings.HasPrefix(what, "delays "):
		return func(b *relaytest.Behaviour) { b.Delay, _ = time.ParseDuration(last) }
	case strings.HasPrefix(what, "names only "):
		return func(b *relaytest.Behaviour) {
			b.NamedOnly = func(_, name string) bool { return strings.HasPrefix(name, last) }
		}
	case strings.HasPrefix(what, "has no "):
		return func(b *relaytest.Behaviour) { b.Unresolved = func(_, name string) bool { return name == last } }
	}
	return nil
}

// shows writes what is subscribed of types at the origin: "a×2" was requested twice, and "(a)" is no longer subscribed.
func (p *rulePlayer) shows(what string) {
	s := p.w.origin.State()
	types, ofNodes := strings.CutPrefix(what, "nodes ")
	switch {
	case what == "streams":
		sotw := slices.ContainsFunc(s.Open(), func(st *relaytest.StreamState) bool { return st.SotW })
		line := fmt.Sprintf("origin: %d of %d streams open, %d connections", len(s.Open()), len(s.Streams), s.Connections)
		p.lines = append(p.lines, line+map[bool]string{true: ", SotW"}[sotw])
		return
	case what == "resumed":
		p.lines = append(p.lines, "origin: resumed "+strings.Join(slices.Sorted(maps.Keys(p.w.resumed())), " "))
		return
	case ofNodes:
		first := len(p.lines)
		for _, st := range s.Open() {
			names := slices.Sorted(maps.Keys(st.Type(orderTypes[types]).Names))
			if st.Type(orderTypes[types]).Wildcard {
				names = append(names, "*")
			}
			features := slices.DeleteFunc(slices.Clone(st.Node.GetClientFeatures()), func(f string) bool { return strings.HasPrefix(f, "xds.config.") })
			p.lines = append(p.lines, strings.TrimSpace(fmt.Sprintf("origin: %s of cluster %s asks for %s %s",
				st.Node.GetId(), st.Node.GetCluster(), strings.Join(names, " "), strings.Join(features, " "))))
		}
		slices.Sort(p.lines[first:])
		return
	}
	for short := range strings.SplitSeq(what, "+") {
		subscribed := s.Names(orderTypes[short])
		times := make(map[string]int)
		names := slices.Clone(subscribed)
		for _, r := range s.Requests(orderTypes[short]) {
			for _, name := range append(r.Message.GetResourceNamesSubscribe(), r.SotW.GetResourceNames()...) {
				if times[name]++; !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		line := "origin: " + short
		for _, name := range names {
			text := name
			if times[name] > 1 {
				text += fmt.Sprint("×", times[name])
			}
			if !slices.Contains(subscribed, name) {
				text = "(" + text + ")"
			}
			line += " " + text
		}
		if n := s.Type(orderTypes[short]).NACKs; n > 0 {
			line += fmt.Sprintf(", %d NACKs", n)
		}
		p.lines = append(p.lines, line)
	}
}

func (p *rulePlayer) client(name string, does []string) {
	p.w.t.Helper()
	if does[0] == "connects," {
		p.connects(name, does[1], does[2:])
		return
	}
	c, x := p.clients[name], p.extra[name]
	if c == nil {
		p.w.t.Fatalf("event %q of %q: no such client", does, name)
	}
	switch {
	case does[0] == "sends":
		p.sends(c, x, strings.Join(does[1:], " "))
	case does[0] == "reconnects":
		x.ended, x.unacked = false, nil
		c.Reconnect(p.w.relay.Conn())
	case does[0] == "half-closes":
		c.CloseSend()
	case does[0] == "acks" && len(does) == 1:
		for _, r := range x.unacked {
			c.Ack(r)
		}
		x.unacked = nil
	case does[0] == "closes":
		x.ended = true
		p.commonClient(name, does)
	case len(does) > 1:
		for short := range strings.SplitSeq(does[1], "+") {
			p.commonClient(name, append([]string{does[0], short}, does[2:]...))
			x.unacked = slices.DeleteFunc(x.unacked, func(r *relaytest.Response) bool {
				return strings.HasSuffix(does[0], "acks") && r.TypeURL == orderTypes[short]
			})
		}
	default:
		p.w.t.Fatalf("event %q of %q: not understood", does, name)
	}
}

func (p *rulePlayer) connects(name, variant string, options []string) {
	p.w.t.Helper()
	opts, relay, x := ruleOptions(name, variant), p.w.relay, new(ruleClient)
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "ready":
			opts.AutoAck = true
		case "untyped":
			opts.ImplicitType = true
		case "ttl":
			opts.Node = relaytest.WithFeatures(opts.Node, relaytest.FeatureTTL, relaytest.FeatureWrapper)
		case "wraps":
			opts.Node = relaytest.WithFeatures(opts.Node, relaytest.FeatureWrapper)
		case "feature":
			opts.Node = relaytest.WithFeatures(opts.Node, value)
		case "versions":
			x.versions = true
		case "cluster":
			opts.Node.Cluster = value
		case "below":
			if p.below == nil {
				p.below = p.w.relay.below()
			}
			relay = p.below
		default:
			p.w.t.Fatalf("%q connects: option %q: not understood", name, option)
		}
	}
	x.node, x.variant = opts.Node, opts.Variant
	p.clients[name], p.extra[name], p.names = p.w.dialAt(relay, opts), x, append(p.names, name)
}

// sends sends a request by hand: "cds a -b, nonce=@1".
func (p *rulePlayer) sends(c *orderClient, x *ruleClient, what string) {
	p.w.t.Helper()
	asks, options, _ := strings.Cut(what, ", ")
	names := strings.Fields(asks)
	typeURL, names := orderTypes[names[0]], names[1:]
	delta := &discoverypb.DeltaDiscoveryRequest{Node: x.node, TypeUrl: typeURL}
	sotw := &discoverypb.DiscoveryRequest{Node: x.node, TypeUrl: typeURL, ResourceNames: names}
	for _, name := range names {
		if gone, ok := strings.CutPrefix(name, "-"); ok {
			delta.ResourceNamesUnsubscribe = append(delta.ResourceNamesUnsubscribe, gone)
		} else {
			delta.ResourceNamesSubscribe = append(delta.ResourceNamesSubscribe, name)
		}
	}
	for _, option := range strings.Fields(options) {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "nonce":
			delta.ResponseNonce = p.earlier(c, typeURL, value, func(r *relaytest.Response) string { return r.Nonce })
			sotw.ResponseNonce = delta.ResponseNonce
		case "version":
			sotw.VersionInfo = p.earlier(c, typeURL, value, func(r *relaytest.Response) string { return r.Version })
		case "error":
			delta.ErrorDetail = status.New(2, value).Proto()
			sotw.ErrorDetail = delta.ErrorDetail
		case "holding":
			delta.InitialResourceVersions = make(map[string]string)
			for held := range strings.SplitSeq(value, ",") {
				colon := strings.LastIndex(held, ":")
				delta.InitialResourceVersions[held[:colon]] = held[colon+1:]
			}
		default:
			p.w.t.Fatalf("request %q: option %q: not understood", what, option)
		}
	}
	c.Send(map[relaytest.Variant]proto.Message{relaytest.Delta: delta, relaytest.SotW: sotw}[x.variant])
}

// earlier returns a field of an earlier response: of "@2", the second one of its type, of "@cds:2", of another type, and
// of "other@2", of another client.
func (p *rulePlayer) earlier(c *orderClient, typeURL, text string, field func(*relaytest.Response) string) string {
	p.w.t.Helper()
	of, number, ok := strings.Cut(text, "@")
	if !ok {
		return text
	}
	if of != "" {
		c = p.clients[of]
	}
	if short, n, other := strings.Cut(number, ":"); other {
		typeURL, number = orderTypes[short], n
	}
	n := 0
	for _, r := range c.Responses() {
		if r.TypeURL == typeURL {
			if n++; fmt.Sprint(n) == number {
				return field(r)
			}
		}
	}
	p.w.t.Fatalf("%v: %s: only %d responses", c.Client, text, n)
	return ""
}
