package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// A player plays one case of a scene.
type player struct {
	w       *orderWorld
	origins map[string]*playedOrigin
	clients map[string]*playedClient
	order   []*playedClient // as they connected
	notes   []string        // to say beside what the clients are told
	load    *playedLoad     // nil without TENDER_LRS
}

// A playedOrigin is an origin of a scene.
type playedOrigin struct {
	*orderWorld
	stream *relaytest.OriginStream // to the relay, of an origin that answers by hand
	seen   map[int]int             // requests that were listed, by stream
}

// A playedClient is a client of a scene.
type playedClient struct {
	*orderClient
	name       string
	variant    relaytest.Variant
	unanswered []*relaytest.Response
	ended      bool            // and said
	asked      map[string]bool // the clusters whose endpoints an Envoy asked for; nil: not one
}

// playerBubble runs f with a relay of one origin or, with TENDER_ROUTES, two.
func playerBubble(t *testing.T, env []string, f func(p *player)) {
	t.Helper()
	run := func(w, west *orderWorld, load *playedLoad) {
		p := &player{w: w, load: load, origins: make(map[string]*playedOrigin), clients: make(map[string]*playedClient)}
		p.origins["origin"] = &playedOrigin{orderWorld: w, seen: make(map[int]int)}
		if west != nil {
			p.origins["west"] = &playedOrigin{orderWorld: west, seen: make(map[int]int)}
		}
		f(p)
	}
	const routes = "TENDER_ROUTES="
	if i := slices.IndexFunc(env, func(set string) bool { return strings.HasPrefix(set, routes) }); i >= 0 {
		originsBubble(t, env[i][len(routes):], slices.Delete(slices.Clone(env), i, i+1), func(first, west *orderWorld) { run(first, west, nil) })
	} else if slices.ContainsFunc(env, func(set string) bool { return strings.HasPrefix(set, "TENDER_LRS=") }) {
		playLoad(t, env, func(w *orderWorld, l *playedLoad) { run(w, nil, l) })
	} else {
		orderBubble(t, env, func(w *orderWorld) { run(w, nil, nil) })
	}
}

// said returns the notes, what the clients were told since the last time, and whose streams ended.
func (p *player) said() []string {
	lines := p.notes
	p.notes = nil
	for quiet := false; !quiet; {
		quiet = true
		for _, c := range p.order {
			got := c.heard()
			for i, response := range got {
				lines = append(lines, c.name+" < "+shortenRanges(response)+ownWords(c.read[i]))
			}
			c.unanswered = append(c.unanswered, c.read...)
			quiet = !c.react() && quiet
		}
	}
	for _, c := range p.order {
		if c.Ended() && !c.ended {
			c.ended = true
			lines = append(lines, c.name+" is disconnected: "+status.Code(c.WaitEnd(p.w.t.Context())).String())
		}
	}
	if p.load != nil {
		lines = append(lines, p.load.said(p.w.t)...)
	}
	return lines
}

// ownWords returns the messages of errors that are not the origin's.
func ownWords(r *relaytest.Response) (words string) {
	for _, e := range r.Errors {
		if e.Message != orderWhy {
			words += " (" + e.Message + ")"
		}
	}
	return words
}

// react answers as an Envoy does, of a client that is one: it asks for the endpoints of new clusters first. It reports
// whether there was something to answer.
func (c *playedClient) react() bool {
	if c.asked == nil || len(c.read) == 0 {
		return false
	}
	for _, r := range c.read {
		for _, name := range r.Names() {
			if r.TypeURL == relaytest.ClusterType && !c.asked[name] {
				c.asked[name] = true
				c.Subscribe(relaytest.EndpointType, name)
			}
		}
	}
	c.answer(nil)
	return true
}

func (p *player) happen(event string) {
	p.w.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	switch who {
	case "wait":
		p.w.pass(p.duration(what))
	case "repeat": // "3: origin cds a@#; wait 1s", where # counts from 1
		times, events, _ := strings.Cut(what, ": ")
		n, err := strconv.Atoi(times)
		if err != nil {
			p.w.t.Fatal(err)
		}
		for i := range n {
			for event := range strings.SplitSeq(events, "; ") {
				p.happen(strings.ReplaceAll(event, "#", strconv.Itoa(i+1)))
				p.notes = p.said()
			}
		}
	case "origin", "west":
		p.origin(who, what)
	case "operator":
		p.operator(what)
	default:
		p.client(who, what)
	}
}

// mute makes the origin one that takes streams, says nothing on them, and ends each
// after a while: so does a relay that knows nothing itself, and a proxy before a
// control plane that is gone.
func (w *orderWorld) mute(after time.Duration) {
	w.manual()
	for range w.origin.State().Streams {
		w.origin.Accept(w.t.Context()) // from before
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	// Ended by the cleanup.
	go func() {
		defer close(ended)
		for known := len(w.origin.State().Streams); ; known++ {
			for len(w.origin.State().Streams) == known {
				if !oddSleep(ctx, 10*time.Millisecond) {
					return
				}
			}
			s := w.origin.Accept(ctx)
			if !oddSleep(ctx, after) {
				return
			}
			s.Close(status.New(codes.Unavailable, "nothing is known here"))
		}
	}()
	w.t.Cleanup(func() { cancel(); <-ended })
}

// oddSleep lets time pass in a bubble, and reports whether ctx has not ended.
func oddSleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *player) duration(text string) time.Duration {
	p.w.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		p.w.t.Fatal(err)
	}
	return d
}

// playedBehaviours are what an origin may be told to be.
var playedBehaviours = map[string]func(b *relaytest.Behaviour){
	"answers by hand":            func(b *relaytest.Behaviour) { b.Manual = true },
	"is silent on missing names": func(b *relaytest.Behaviour) { b.SilentOnMissing = true },
	"reports missing names":      func(b *relaytest.Behaviour) { b.SilentOnMissing = false },
	"ignores what the relay has": func(b *relaytest.Behaviour) { b.IgnoreIRV = true },
	"sends no versions":          func(b *relaytest.Behaviour) { b.EmptyVersions = true },
	"forgets all that it said":   func(b *relaytest.Behaviour) { b.IgnoreIRV, b.EmptyVersions, b.SilentOnMissing = true, true, true },
	"speaks SotW":                func(b *relaytest.Behaviour) { b.SotW = true },
	"has outside by name alone":  func(b *relaytest.Behaviour) { b.NamedOnly = func(_, name string) bool { return name == "outside" } },
}

func (p *player) origin(who, what string) {
	p.w.t.Helper()
	o := p.origins[who]
	if alter := playedBehaviours[what]; alter != nil {
		o.origin.Change(alter)
		return
	}
	if what == "has virtual hosts on demand" {
		o.onDemand()
		return
	}
	verb, rest, _ := strings.Cut(what, " ")
	switch verb {
	case "stops":
		o.stop()
	case "starts":
		o.origin.Restart()
		o.pass(0)
	case "answers": // "after 5s"
		d := p.duration(strings.TrimPrefix(rest, "after "))
		o.origin.Change(func(b *relaytest.Behaviour) { b.Delay = d })
	case "ends": // streams in silence, after 5s
		o.mute(p.duration(strings.TrimPrefix(rest, "streams in silence, after ")))
	case "says":
		if o.stream == nil || o.stream.State().Ended {
			o.stream = o.accept()
		}
		o.say(o.stream, expandChanges(rest)...)
	case "asks":
		p.load.ask(p.w.t, rest, p.duration)
	case "lists":
		p.list(who, o, rest)
	default:
		o.change(expandChanges(what)...)
	}
}

// list notes what an origin is asked for, or has been asked since the last time, by type.
func (p *player) list(who string, o *playedOrigin, what string) {
	state, byType := o.origin.State(), make(map[string][]string)
	for _, s := range state.Streams {
		for typeURL := range s.Types {
			if what == "subscriptions" {
				byType[orderShort(typeURL)] = state.Names(typeURL)
			}
		}
		for _, r := range s.Requests[o.seen[s.ID]:] {
			if what == "requests" {
				short := orderShort(r.TypeURL())
				byType[short] = append(byType[short], describeRequest(r)...)
				o.seen[s.ID]++
			}
		}
	}
	for _, short := range slices.Sorted(maps.Keys(byType)) {
		p.notes = append(p.notes, who+": "+strings.Join(append([]string{short}, byType[short]...), " "))
	}
}

// describeRequest returns what the relay asks for and gives up, and how it answers.
func describeRequest(r relaytest.Request) (words []string) {
	for _, name := range slices.Sorted(slices.Values(r.Message.GetResourceNamesSubscribe())) {
		words = append(words, "+"+name)
	}
	for _, name := range slices.Sorted(slices.Values(r.Message.GetResourceNamesUnsubscribe())) {
		words = append(words, "-"+name)
	}
	switch {
	case r.Message.GetErrorDetail() != nil:
		words = append(words, "NACK")
	case r.Message.GetResponseNonce() != "":
		words = append(words, "ACK")
	}
	return words
}

func (p *player) operator(what string) {
	p.w.t.Helper()
	switch what {
	case "freezes", "thaws":
		operate[admin.FreezeScope, admin.Freezes](p.w.t, p.w.relay, strings.TrimSuffix(what, "s"), admin.FreezeScope{})
	case "releases", "discards":
		p.w.coldOrder(strings.TrimSuffix(what, "s"), false)
	case "releases what was discarded":
		p.w.coldOrder("release", true)
	case "lists removals":
		waiting, discarded := heldNames(p.w.t, p.w.relay)
		p.notes = append(p.notes, fmt.Sprintf("removals: %d wait, %d were discarded", waiting, discarded))
	default:
		p.w.t.Fatalf("operator %q: not understood", what)
	}
}

func (p *player) client(name, what string) {
	p.w.t.Helper()
	c := p.clients[name]
	does, rest, _ := strings.Cut(what, " ")
	if does == "connects," {
		p.connect(name, strings.Split(rest, ", "))
		return
	}
	if p.load != nil && p.load.peer(p.w.relay, name, what) {
		return
	}
	if c == nil {
		p.w.t.Fatalf("%s %s: there is no client of this name", name, what)
	}
	short, names, _ := strings.Cut(rest, " ")
	switch does {
	case "subscribes":
		c.note(short, names)
		c.subscribe(short, expandNames(names))
	case "unsubscribes":
		c.Unsubscribe(orderTypes[short], strings.Fields(expandNames(names))...)
	case "returns": // "to cds a b, holding c"
		asks, holds, _ := strings.Cut(names, ", holding ")
		short, names, _ := strings.Cut(asks, " ")
		c.note(short, names)
		c.returns(c.variant, short, expandNames(names), expandNames(holds))
	case "acks":
		c.answer(strings.Fields(rest))
	case "nacks":
		c.nack(short)
	case "reconnects":
		c.Reconnect(p.w.relay.Conn())
		c.ended, c.unanswered = false, nil
	case "closes":
		c.Close()
		c.ended = true
	default:
		p.w.t.Fatalf("%s %s: not understood", name, what)
	}
}

// note remembers the endpoints that an Envoy asks for.
func (c *playedClient) note(short, names string) {
	for name := range strings.FieldsSeq(names) {
		if c.asked != nil && short == "eds" {
			c.asked[name] = true
		}
	}
}

func (p *player) connect(name string, how []string) {
	opts := playerOptions(name, how[0])
	var asked map[string]bool
	for _, option := range how[1:] {
		switch option {
		case "ready":
			opts.AutoAck = true
		case "refuses all":
			opts.AutoAck, opts.Reject = true, func(*relaytest.Response) error { return errors.New("refused") }
		case "wrapped":
			opts.Node = relaytest.WithFeatures(opts.Node, relaytest.FeatureWrapper)
		case "as an Envoy":
			asked = make(map[string]bool)
		default:
			p.w.t.Fatalf("%s connects, %s: not understood", name, option)
		}
	}
	c := &playedClient{orderClient: p.w.dial(opts), name: name, variant: opts.Variant, asked: asked}
	p.clients[name], p.order = c, append(p.order, c)
}

// answer accepts the last responses of types, or all that is unanswered.
func (c *playedClient) answer(shorts []string) {
	c.w.t.Helper()
	c.ack(shorts...)
	if len(shorts) == 0 {
		for _, r := range c.unanswered {
			c.Ack(r)
		}
	}
	c.unanswered = slices.DeleteFunc(c.unanswered, func(r *relaytest.Response) bool {
		return len(shorts) == 0 || slices.Contains(shorts, orderShort(r.TypeURL))
	})
}

// playerOptions returns how the client of a name connects.
func playerOptions(name, variant string) relaytest.ClientOptions {
	id, stream, _ := strings.Cut(name, "/")
	short, _, _ := strings.Cut(stream, "/")
	opts := relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode(id), TypeURL: orderTypes[short]}
	if variant == "delta" {
		opts.Variant = relaytest.Delta
	}
	switch {
	case strings.HasPrefix(id, "grpc"):
		opts.Node = relaytest.GRPCNode(id)
	case strings.HasPrefix(id, "tender"):
		opts.Node = &corepb.Node{Id: id, UserAgentName: "tender"}
	}
	return opts
}

// numbered matches a range of numbers in a name, such as "web{1..9}".
var numbered = regexp.MustCompile(`\{(\d+)\.\.(\d+)\}`)

// expandWord returns the words that a word with a range of numbers stands for. All numbers are as wide as the last one.
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

// countedWord matches a resource with a number in its name, in a response.
var countedWord = regexp.MustCompile(`^((?:[^@]*[^@\d])?)(\d+)((?:[@~].*)?)$`)

// shortenRanges writes three or more resources that differ in consecutive numbers alone as one, as expandWord reads it.
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
