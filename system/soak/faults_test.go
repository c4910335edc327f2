package soak

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A fault is a failure that a round applies and heals. apply draws its random decisions.
type fault struct {
	name   string
	weight int  // number of times in a deck
	alone  bool // must be the only fault of its round
	apply  func(w *world) (heal func())
}

// nothing is the heal function of faults that need none.
func nothing() {}

// faults are all faults, in the order of the table that the test prints.
var faults = append(mishaps, untruths...)

// mishaps are faults that may occur together in one round.
var mishaps = []fault{
	{name: "an origin is killed", weight: 2, apply: func(w *world) func() {
		o := w.origin()
		o.Stop()
		return o.Restart
	}},
	{name: "all origins are unreachable", weight: 1, apply: func(w *world) func() {
		return w.links.refuse()
	}},
	{name: "the link to an origin drops all data", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Set(proxy.Link{Up: proxy.Way{Hold: true}, Down: proxy.Way{Hold: true}})
		return func() { p.Reset(); w.mend(p)() }
	}},
	{name: "the link to an origin is slow", weight: 1, apply: func(w *world) func() {
		p := w.link()
		way := proxy.Way{Delay: 200 * time.Millisecond, Rate: 64 << 10}
		p.Set(proxy.Link{Up: way, Down: way})
		return w.mend(p)
	}},
	{name: "the link to an origin is half open", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Orphan()
		return p.Reset
	}},
	{name: "the link to an origin breaks within frames", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Set(proxy.Link{Down: proxy.Way{ResetAfter: 1 + w.random.IntN(4000)}})
		return w.mend(p)
	}},
	{name: "the link to an origin flaps", weight: 1, apply: func(w *world) func() {
		return w.repeat(200*time.Millisecond, w.link().Reset)
	}},
	{name: "a foreign server answers at an origin's address", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Set(proxy.Link{Answer: w.impostor()})
		p.Reset()
		return func() { w.mend(p)(); p.Reset() }
	}},
	{name: "the link to an origin sends random bytes", weight: 1, apply: func(w *world) func() {
		w.link().Say(bytes.Repeat([]byte{byte(w.random.Uint32())}, 100))
		return nothing
	}},
	{name: "an origin violates the protocol", weight: 1, apply: func(w *world) func() {
		twice := &discoverypb.Resource{Name: "twice", Version: "1"}
		w.origin().Inject(&discoverypb.DeltaDiscoveryResponse{
			TypeUrl: relaytest.ClusterType, Resources: []*discoverypb.Resource{twice, twice}, RemovedResources: []string{"service-1", "service-2"},
		})
		return nothing
	}},
	{name: "an origin drains", weight: 1, apply: func(w *world) func() {
		w.origin().GoAway()
		return nothing
	}},
	{name: "a relay is killed", weight: 2, apply: func(w *world) func() {
		w.process.kill()
		return w.process.start
	}},
	{name: "a relay restarts without a snapshot and origins", weight: 1, apply: func(w *world) func() {
		heal := w.links.refuse()
		w.process.kill()
		w.process.forget()
		w.process.start()
		w.leave() // half of the clients then connect to this relay, with versions that it does not have
		w.churn(20)
		return heal
	}},
	{name: "a relay drains", weight: 2, apply: func(w *world) func() {
		r := w.relay()
		wait := r.drain()
		return func() { wait(); r.start() }
	}},
	{name: "relays restart one after the other", weight: 1, apply: func(w *world) func() {
		for _, r := range w.relays() {
			wait := r.drain()
			w.churn(10)
			wait()
			r.start()
		}
		return nothing
	}},
	{name: "a relay is frozen", weight: 2, apply: func(w *world) func() {
		o := w.relay().operator()
		w.permitFrozen()
		_ = o.do("freeze", admin.FreezeScope{}) // the relay may not run
		return func() { _ = o.do("thaw", admin.FreezeScope{}) }
	}},
	{name: "a mass removal during an outage passes", weight: 1, apply: func(w *world) func() {
		return w.unseen(func(o operator, h admin.PendingChange) {
			if o.do("pass", admin.PendingScope{All: true}) == nil {
				w.seen.add("removals that passed", h.Count)
			}
		})
	}},
	{name: "a mass removal during an outage is dropped, then passes", weight: 1, apply: func(w *world) func() {
		return w.unseen(func(o operator, h admin.PendingChange) {
			if h.Reason == string(reconcile.Dropped) {
				_ = o.do("pass", admin.PendingScope{PendingChoice: admin.PendingChoice{PendingReason: h.Reason}})
			} else if o.do("drop", admin.PendingScope{All: true}) == nil {
				w.seen.add("removals that were dropped", h.Count)
			}
		})
	}},
	{name: "a relay's clock is set", weight: 2, apply: (*world).resetClock},
	{name: "files vanish and return", weight: 1, apply: (*world).vanish},
	{name: "two files contain the same names", weight: 1, apply: (*world).repeatNames},
	{name: "all clients reconnect at once", weight: 1, apply: func(w *world) func() {
		w.leave()
		return nothing
	}},
	{name: "the link of clients drops all data", weight: 1, apply: func(w *world) func() {
		p := w.edge()
		p.Set(proxy.Link{Up: proxy.Way{Hold: true}, Down: proxy.Way{Hold: true}})
		return func() { p.Reset(); w.mend(p)() }
	}},
	{name: "clients vanish without closing their connections", weight: 1, apply: func(w *world) func() {
		p := w.edge()
		w.seen.add("connections of clients that vanished", p.State().Open)
		p.Strand()
		return nothing
	}},
	{name: "clients do not read a large resource", weight: 1, apply: (*world).unread},
	{name: "a client exceeds the limit of names", weight: 1, apply: (*world).intrude},
	{name: "clients stop reading", weight: 1, apply: func(w *world) func() {
		first, nth := w.random.IntN(4), 4+w.random.IntN(8)
		for i := first; i < len(w.clients); i += nth {
			w.clients[i].pause()
		}
		return func() {
			for i := first; i < len(w.clients); i += nth {
				w.clients[i].resume()
			}
		}
	}},
	{name: "canaries reject a change", weight: 1, apply: (*world).reject},
	{name: "all resources change at once", weight: 1, apply: func(w *world) func() {
		for _, g := range w.groups {
			g.changeAll(types...)
		}
		return nothing
	}},
	{name: "all resources change 20 times", weight: 1, apply: func(w *world) func() {
		for range 20 {
			for _, g := range w.groups {
				g.changeAll(types...)
			}
		}
		return nothing
	}},
	{name: "a third of all resources is removed", weight: 1, apply: func(w *world) func() {
		w.removeThird()
		return w.restore
	}},
}

// leave makes all clients reconnect, each to the other relay.
func (w *world) leave() {
	for _, c := range w.clients {
		c.leave()
	}
}

// removeThird removes a third of the resources of all groups.
func (w *world) removeThird() {
	for _, g := range w.groups {
		g.removeThird()
	}
}

// restore adds the removed resources of all groups again.
func (w *world) restore() {
	for _, g := range w.groups {
		g.restore()
	}
}

// unseen removes a third of all resources while the relays are disconnected. Origins that ignore initial versions do
// not report the removals later, so that relays must infer them. Relays hold a mass removal back, and decide is
// called for each row of pending changes until all clients agree.
func (w *world) unseen(decide func(operator, admin.PendingChange)) (heal func()) {
	if w.random.IntN(3) > 0 {
		w.ignoreVersions()
	}
	mend := w.links.refuse()
	w.removeThird()
	w.later = append(w.later, w.restore)
	return func() {
		mend()
		w.later = append(w.later, w.repeat(250*time.Millisecond, func() {
			for _, r := range w.relays() {
				all, _ := r.operator().pending() // the relay may not run
				for _, h := range all {
					decide(r.operator(), h)
				}
			}
		}))
	}
}

// largeEvery is the interval between changes of the bulk resource in unread. It must not be shorter than
// TENDER_ACK_WAIT, after which the relay sends the next version without an ACK.
const largeEvery = time.Second

// unread pauses some clients that subscribe to the bulk resource, until a relay has ended a stream as stalled.
func (w *world) unread() (heal func()) {
	var idle []client
	for _, c := range w.clients {
		if s, is := c.(*stream); is && s.bulky && w.random.IntN(2) == 0 {
			c.pause()
			idle = append(idle, c)
		}
	}
	before := w.stalled()
	return func() {
		for range 12 {
			for _, g := range w.groups {
				g.changeBulk()
			}
			select {
			case <-time.After(largeEvery):
			case <-w.ctx.Done():
			}
			if n := w.stalled() - before; n > 0 {
				w.seen.add("stalled streams that relays ended", n)
				break
			}
		}
		for _, c := range idle {
			c.resume()
		}
	}
}

// stalled returns the number of streams that the running relays ended as stalled.
func (w *world) stalled() (n int) {
	for _, r := range w.relays() {
		m, _ := r.operator().metrics() // the relay may not run
		n += int(m[`tender_client_streams_ended_total{reason="stalled"}`])
	}
	return n
}

// maxNames is the limit of names to which one stream may subscribe.
const maxNames = 100

// intrude starts a client that subscribes to more names than allowed. A relay must not serve more than maxNames.
func (w *world) intrude() (heal func()) {
	names := make([]string, maxNames+1)
	for i := range names {
		names[i] = resource(i)
	}
	opts := relaytest.LightOptions{
		Node:   &corepb.Node{Id: "intruder", Cluster: w.groups[0].name, UserAgentName: "envoy"},
		OnOpen: func() { w.seen.add("streams that exceeded the limit of names", 1) },
	}
	intruder := relaytest.Roam(w.t, opts, 0, w.dialers(false), relaytest.Subscription{TypeURL: relaytest.EndpointType, Names: names})
	return func() {
		intruder.Stop()
		if has := len(intruder.State()[relaytest.EndpointType]); has > maxNames {
			w.complain("intruder", fmt.Sprintf("it received %d resources, the limit is %d", has, maxNames))
		}
	}
}

// relay, edge, origin and link return a random relay, client proxy, origin and origin proxy.
func (w *world) relay() server { return w.relays()[w.random.IntN(2)] }

func (w *world) edge() *proxy.Proxy { return w.edges[w.random.IntN(len(w.edges))] }

func (w *world) origin() *relaytest.Origin { return w.origins[w.random.IntN(len(w.origins))] }

func (w *world) link() *proxy.Proxy { return w.links[w.random.IntN(len(w.links))] }

// mend returns a function that removes all faults of a link.
func (w *world) mend(p *proxy.Proxy) func() { return func() { p.Set(proxy.Link{}) } }

// links are the proxies between relays and origins, or between clients and relays.
type links []*proxy.Proxy

// refuse closes all connections and rejects new ones until mend is called.
func (l links) refuse() (mend func()) {
	for _, p := range l {
		p.Set(proxy.Link{Refuse: true})
		p.Reset()
	}
	return func() {
		for _, p := range l {
			p.Set(proxy.Link{})
		}
	}
}

// impostor returns a random server that does not speak xDS.
func (w *world) impostor() func(net.Conn) {
	all := []func(net.Conn){
		proxy.AnswerHTTP1, proxy.AnswerTLS, proxy.AnswerRandom, proxy.AnswerNothing, proxy.AnswerTruncated,
		proxy.AnswerHTTP2(proxy.StreamHTML), proxy.AnswerHTTP2(proxy.StreamGoAway),
		proxy.AnswerHTTP2(proxy.StreamTrailersOnly("13", "no")), proxy.AnswerHTTP2(proxy.StreamMessage([]byte{0xff, 0xff})),
	}
	return all[w.random.IntN(len(all))]
}

// repeat calls f every interval, in its own goroutine. stop ends that and waits for a running call.
func (w *world) repeat(every time.Duration, f func()) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() { // stop waits for it
		for ctx.Err() == nil {
			f()
			select {
			case <-time.After(every):
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}
