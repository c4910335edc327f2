package transcript

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// An Origin plays the events of an origin, written here with their subject:
//
//	> origin cds web@1, eds -web        (simultaneous changes)
//	> origin for red cds a@1            (a resource for nodes of this cluster, or with this client feature)
//	> origin forbids caching of cds a@1
//	> origin heartbeats cds a
//	> origin sends cds a@1, cds -b      (an additional response of one type)
//	> origin accepts s                  (names a stream of a manual origin, for "s sends cds a@1")
//	> origin lists subscriptions cds    (writes the subscribed names; no types: all)
//	> origin lists requests             (writes those since the last time)
//	> origin lists nodes cds            (writes the nodes of open streams; also: streams, initial versions)
//	> origin stops                      (also: starts)
//	> origin delays 2s                  (each response)
//	> origin closes streams after 5s    (without a response)
//	> origin ends streams of eds a b    (that subscribe to these names; no names: to the wildcard)
//	> origin omits a                    (names with these prefixes, from wildcards)
//	> origin is server two              (its control plane identifier)
//	> origin has no a                   (this alias has no resource; also: has virtual hosts on demand)
//	> origin is manual                  (sends nothing by itself on the next streams; also: behaviours)
//	> s closes Unavailable
type Origin struct {
	n        *Notation
	origin   *relaytest.Origin
	order    []int                              // IDs of the streams with requests
	listed   map[int]int                        // number of requests already written, by stream
	contents map[string]*relaytest.Content      // by cluster or feature of the node
	streams  map[string]*relaytest.OriginStream // accepted by name from a manual origin
}

// NewOrigin returns a player of an origin's events.
func NewOrigin(n *Notation, o *relaytest.Origin) *Origin {
	return &Origin{n: n, origin: o, listed: make(map[int]int), contents: make(map[string]*relaytest.Content),
		streams: make(map[string]*relaytest.OriginStream)}
}

// behaviours are the events that change an origin's behaviour.
var behaviours = map[string]func(b *relaytest.Behaviour){
	"behaves normally":           func(b *relaytest.Behaviour) { *b = relaytest.Behaviour{} },
	"is manual":                  func(b *relaytest.Behaviour) { b.Manual = true },
	"is silent on missing names": func(b *relaytest.Behaviour) { b.SilentOnMissing = true },
	"reports missing names":      func(b *relaytest.Behaviour) { b.SilentOnMissing = false },
	"ignores initial versions":   func(b *relaytest.Behaviour) { b.IgnoreIRV = true },
	"sends no versions":          func(b *relaytest.Behaviour) { b.EmptyVersions = true },
	"keeps no state":             func(b *relaytest.Behaviour) { b.IgnoreIRV, b.EmptyVersions, b.SilentOnMissing = true, true, true },
	"speaks SotW":                func(b *relaytest.Behaviour) { b.SotW = true },
	"speaks Delta":               func(b *relaytest.Behaviour) { b.SotW = false },
	"wraps resources":            func(b *relaytest.Behaviour) { b.Wrap = true },
	"duplicates responses":       func(b *relaytest.Behaviour) { b.Duplicate = true },
	"has virtual hosts on demand": func(b *relaytest.Behaviour) {
		host := func(typeURL, name string) bool { return typeURL == relaytest.VirtualHostType && name != "rc/base" }
		b.NamedOnly, b.Unresolved = host, host
	},
}

// Play plays an event, waits until all goroutines are idle, and returns what the event lists. It is called in a synctest
// bubble.
func (o *Origin) Play(event string) (lines []string) {
	o.n.tb.Helper()
	defer synctest.Wait()
	if alter := behaviours[event]; alter != nil {
		o.origin.Change(alter)
		return nil
	}
	switch verb, rest, _ := strings.Cut(event, " "); {
	case verb == "lists":
		return o.list(rest)
	case verbs[verb] != nil:
		verbs[verb](o, rest)
	default:
		o.n.Apply(o.origin, Changes(event)...)
	}
	return nil
}

// verbs are the first words of events that are no changes, and their effects by the rest of the event.
var verbs = map[string]func(o *Origin, rest string){
	"stops":  func(o *Origin, _ string) { o.origin.Stop() },
	"starts": func(o *Origin, _ string) { o.origin.Restart() },
	"is":     func(o *Origin, rest string) { o.origin.SetControlPlane(strings.TrimPrefix(rest, "server ")) },
	"delays": func(o *Origin, rest string) {
		d := check.Must(time.ParseDuration(rest))
		o.origin.Change(func(b *relaytest.Behaviour) { b.Delay = d })
	},
	"omits": func(o *Origin, rest string) {
		omitted := func(_, name string) bool {
			return slices.ContainsFunc(strings.Fields(rest), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		}
		o.origin.Change(func(b *relaytest.Behaviour) { b.NamedOnly = omitted })
	},
	"ends": func(o *Origin, rest string) {
		short, names, _ := strings.Cut(strings.TrimPrefix(rest, "streams of "), " ")
		typeURL, ended := o.n.TypeURL(short), strings.Fields(Names(names))
		if len(ended) == 0 {
			ended = []string{"*"}
		}
		o.origin.Change(func(b *relaytest.Behaviour) {
			b.Ends = func(of, name string) bool { return of == typeURL && slices.Contains(ended, name) }
		})
	},
	"has": func(o *Origin, rest string) {
		o.origin.Change(func(b *relaytest.Behaviour) {
			b.Unresolved = func(_, name string) bool { return "no "+name == rest }
		})
	},
	"closes": func(o *Origin, rest string) {
		o.closeStreams(check.Must(time.ParseDuration(strings.TrimPrefix(rest, "streams after "))))
	},
	"accepts": func(o *Origin, rest string) { o.streams[rest] = o.origin.AcceptOpen(o.n.tb.Context()) },
	"sends":   func(o *Origin, rest string) { o.origin.Inject(o.n.Response(Changes(rest)...)) },
	"heartbeats": func(o *Origin, rest string) {
		short, names, _ := strings.Cut(rest, " ")
		o.origin.Heartbeat(o.n.TypeURL(short), strings.Fields(names)...)
	},
	"forbids": func(o *Origin, rest string) { o.forbidCaching(Changes(strings.TrimPrefix(rest, "caching of "))) },
	"for": func(o *Origin, rest string) {
		nodes, change, _ := strings.Cut(rest, " ")
		o.changeFor(nodes, o.n.Parse(change))
	},
}

// Send plays an event of the manual stream of this name, "s sends cds a@1" or "s closes Unavailable". It reports false if there
// is no such stream.
func (o *Origin) Send(stream, event string) bool {
	o.n.tb.Helper()
	s := o.streams[stream]
	if s == nil {
		return false
	}
	verb, rest, _ := strings.Cut(event, " ")
	switch {
	case verb == "closes":
		s.Close(status.New(o.n.code(rest), "closed"))
	case s.State().SotW:
		delta := o.n.Response(Changes(rest)...)
		list := &discoverypb.DiscoveryResponse{TypeUrl: delta.GetTypeUrl()}
		for _, r := range delta.GetResources() {
			list.Resources = append(list.Resources, r.GetResource())
		}
		s.SendSotW(list)
	default:
		s.Send(o.n.Response(Changes(rest)...))
	}
	synctest.Wait()
	return true
}

// forbidCaching changes resources that must not be cached.
func (o *Origin) forbidCaching(changes []string) {
	o.n.tb.Helper()
	o.origin.Apply(func(tx *relaytest.Tx) {
		for _, text := range changes {
			c := o.n.Parse(text)
			r := o.n.Resource(c)
			r.CacheControl = &discoverypb.Resource_CacheControl{DoNotCache: true}
			tx.SetRaw(Types[c.Short], r)
		}
	})
}

// changeFor changes a resource for nodes of a cluster or with a client feature.
func (o *Origin) changeFor(nodes string, c Change) {
	if o.contents[nodes] == nil {
		o.contents[nodes] = o.origin.For(func(n *corepb.Node) bool {
			return n.GetCluster() == nodes || slices.Contains(n.GetClientFeatures(), nodes)
		})
	}
	o.contents[nodes].Set(Types[c.Short], c.Name, o.n.Message(c.Short, c.Name, c.Rev), fmt.Sprint("v", c.Rev))
}

// closeStreams makes the origin end each stream after a while without a response, as a proxy does whose control
// plane is down.
func (o *Origin) closeStreams(after time.Duration) {
	o.origin.Change(func(b *relaytest.Behaviour) { b.Manual = true })
	for range o.origin.State().Streams {
		o.origin.Accept(o.n.tb.Context()) // streams opened before the call
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	// The cleanup stops it.
	go func() {
		defer close(ended)
		for known := len(o.origin.State().Streams); ; known++ {
			for len(o.origin.State().Streams) == known {
				if !sleepUntil(ctx, 10*time.Millisecond) {
					return
				}
			}
			s := o.origin.Accept(ctx)
			if !sleepUntil(ctx, after) {
				return
			}
			s.Close(status.New(codes.Unavailable, "nothing is known here"))
		}
	}()
	wait.Cleanup(o.n.tb, func() { cancel(); <-ended })
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

// list returns what the origin has received: subscriptions, requests, initial versions, streams or nodes.
func (o *Origin) list(event string) (lines []string) {
	o.n.tb.Helper()
	state := o.origin.State()
	switch what, types, _ := strings.Cut(event, " "); what {
	case "subscriptions":
		shorts := strings.Split(types, "+")
		if types == "" {
			shorts = shortsOf(state)
		}
		for _, short := range shorts {
			lines = append(lines, short+describeSubscriptions(state, o.n.TypeURL(short)))
		}
	case "requests":
		lines = o.requestsByType()
	case "initial": // versions
		lines = []string{"initial versions of " + strings.Join(slices.Sorted(maps.Keys(initialVersions(state))), " ")}
	case "streams":
		lines = []string{describeStreams(state)}
	case "nodes":
		for _, st := range state.Open() {
			lines = append(lines, describeNode(st, o.n.TypeURL(types)))
		}
		slices.Sort(lines)
	default:
		o.n.tb.Fatalf("origin lists %s: unknown list", what)
	}
	return lines
}

// requestsByType returns a line for each type of which the origin has received requests since the last call.
func (o *Origin) requestsByType() (lines []string) {
	byType := make(map[string][]string)
	for _, r := range slices.Concat(o.Requests()...) {
		short := ShortName(r.TypeURL())
		byType[short] = append(byType[short], describeNames(r)...)
		if answer := answerOf(r); answer != "" {
			byType[short] = append(byType[short], answer)
		}
	}
	for _, short := range slices.Sorted(maps.Keys(byType)) {
		lines = append(lines, strings.Join(append([]string{short}, byType[short]...), " "))
	}
	return lines
}

// describeStreams returns the numbers of streams and connections.
func describeStreams(s *relaytest.OriginState) string {
	line := fmt.Sprintf("%d of %d streams open, %d connections", len(s.Open()), len(s.Streams), s.Connections)
	if slices.ContainsFunc(s.Open(), func(st *relaytest.StreamState) bool { return st.SotW }) {
		line += ", SotW"
	}
	return line
}

// Requests returns the requests that the origin has received since the last call, by stream in the order of their first
// requests. Streams that begin within 3s, such as after a reconnect, are sorted by these. Where an ended stream ends with
// requests that subscribe to nothing, they are omitted: they may not have arrived.
func (o *Origin) Requests() (streams [][]relaytest.Request) {
	states := o.origin.State().Streams
	begun := len(o.order)
	for _, s := range states {
		if len(s.Requests) > 0 && !slices.Contains(o.order, s.ID) {
			o.order = append(o.order, s.ID)
		}
	}
	first := func(id int) relaytest.Request { return states[id].Requests[0] }
	slices.SortStableFunc(o.order[begun:], func(a, b int) int { return first(a).At.Compare(first(b).At) })
	for from, to := begun, begun; from < len(o.order); from = to {
		for to < len(o.order) && first(o.order[to]).At.Sub(first(o.order[from]).At) < 3*time.Second {
			to++
		}
		slices.SortStableFunc(o.order[from:to], func(a, b int) int {
			return strings.Compare(DescribeRequest(first(a)), DescribeRequest(first(b)))
		})
	}
	for _, id := range o.order {
		requests := states[id].Requests[o.listed[id]:]
		for states[id].Ended && len(requests) > 0 && subscribesToNothing(requests[len(requests)-1]) {
			requests = requests[:len(requests)-1]
		}
		streams, o.listed[id] = append(streams, requests), len(states[id].Requests)
	}
	return streams
}

// subscribesToNothing reports whether a request only answers a response, or ends subscriptions.
func subscribesToNothing(r relaytest.Request) bool {
	if r.SotW != nil {
		return answerOf(r) != ""
	}
	return len(r.Message.GetResourceNamesSubscribe()) == 0 && (len(r.Message.GetResourceNamesUnsubscribe()) > 0 || answerOf(r) != "")
}

// shortsOf returns the short names of all types that the relay has requested.
func shortsOf(s *relaytest.OriginState) []string {
	seen := make(map[string]bool)
	for _, stream := range s.Streams {
		for typeURL := range stream.Types {
			seen[ShortName(typeURL)] = true
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

// DescribeRequest formats a request: node if it has one, +name for a subscription, -name for its end, name=version for a reported
// version, the names of a SotW request in braces with its version, and whether it is an ACK or a NACK.
func DescribeRequest(r relaytest.Request) string {
	var words []string
	if r.Message.GetNode() != nil || r.SotW.GetNode() != nil {
		words = append(words, "node")
	}
	if r.SotW != nil {
		words = append(words, "{"+strings.Join(r.SotW.GetResourceNames(), " ")+"}")
		if v := r.SotW.GetVersionInfo(); v != "" {
			words = append(words, "version="+v)
		}
	} else {
		words = append(words, describeNames(r)...)
		for _, name := range slices.Sorted(maps.Keys(r.Message.GetInitialResourceVersions())) {
			words = append(words, name+"="+r.Message.GetInitialResourceVersions()[name])
		}
	}
	if answer := answerOf(r); answer != "" {
		words = append(words, answer+" "+r.Message.GetResponseNonce()+r.SotW.GetResponseNonce())
	}
	return strings.Join(words, " ")
}

// describeNames returns +name for each subscription of a Delta request, and -name for its end.
func describeNames(r relaytest.Request) (words []string) {
	for _, name := range slices.Sorted(slices.Values(r.Message.GetResourceNamesSubscribe())) {
		words = append(words, "+"+name)
	}
	for _, name := range slices.Sorted(slices.Values(r.Message.GetResourceNamesUnsubscribe())) {
		words = append(words, "-"+name)
	}
	return words
}

// answerOf returns "ACK", "NACK", or "" if a request answers no response.
func answerOf(r relaytest.Request) string {
	switch {
	case r.Message.GetErrorDetail() != nil || r.SotW.GetErrorDetail() != nil:
		return "NACK"
	case r.Message.GetResponseNonce() != "" || r.SotW.GetResponseNonce() != "":
		return "ACK"
	}
	return ""
}

// initialVersions returns the initial_resource_versions of the latest stream that sent some.
func initialVersions(s *relaytest.OriginState) map[string]string {
	for _, st := range slices.Backward(s.Streams) {
		if len(st.Requests) > 0 && len(st.Requests[0].Message.GetInitialResourceVersions()) > 0 {
			return st.Requests[0].Message.GetInitialResourceVersions()
		}
	}
	return nil
}
