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
)

// A fault is something that fails. What random draws decide about it is drawn when it is
// applied.
type fault struct {
	name   string
	weight int  // how often it is in a deck
	alone  bool // it is a round of its own
	apply  func(w *world) (heal func())
}

func nothing() {}

var faults = append(mishaps, untruths...)

var mishaps = []fault{
	{name: "an origin is killed", weight: 2, apply: func(w *world) func() {
		o := w.origin()
		o.Stop()
		return o.Restart
	}},
	{name: "both origins refuse connections", weight: 1, apply: func(w *world) func() {
		return w.links.refuse()
	}},
	{name: "an origin's link drops everything", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Set(proxy.Link{Up: proxy.Way{Hold: true}, Down: proxy.Way{Hold: true}})
		return func() { p.Reset(); w.mend(p)() }
	}},
	{name: "an origin's link is slow", weight: 1, apply: func(w *world) func() {
		p := w.link()
		way := proxy.Way{Delay: 200 * time.Millisecond, Rate: 64 << 10}
		p.Set(proxy.Link{Up: way, Down: way})
		return w.mend(p)
	}},
	{name: "an origin's link is half open", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Orphan()
		return p.Reset
	}},
	{name: "an origin's link breaks in the middle of frames", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Set(proxy.Link{Down: proxy.Way{ResetAfter: 1 + w.random.IntN(4000)}})
		return w.mend(p)
	}},
	{name: "an origin's link flaps", weight: 1, apply: func(w *world) func() {
		return w.repeat(200*time.Millisecond, w.link().Reset)
	}},
	{name: "somebody else answers for an origin", weight: 1, apply: func(w *world) func() {
		p := w.link()
		p.Set(proxy.Link{Answer: w.impostor()})
		p.Reset()
		return func() { w.mend(p)(); p.Reset() }
	}},
	{name: "an origin's link says rubbish", weight: 1, apply: func(w *world) func() {
		w.link().Say(bytes.Repeat([]byte{byte(w.random.Uint32())}, 100))
		return nothing
	}},
	{name: "an origin breaks the protocol", weight: 1, apply: func(w *world) func() {
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
	{name: "a relay is killed, and back cold before origins", weight: 1, apply: func(w *world) func() {
		heal := w.links.refuse()
		w.process.kill()
		w.process.forget()
		w.process.start()
		w.leave() // and so half of the clients come, which know more than the relay does
		w.churn(20)
		return heal
	}},
	{name: "a relay drains", weight: 2, apply: func(w *world) func() {
		r := w.relay()
		wait := r.drain()
		return func() { wait(); r.start() }
	}},
	{name: "relays drain and come back one by one", weight: 1, apply: func(w *world) func() {
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
		_ = o.do("freeze", admin.FreezeScope{}) // it may not run
		return func() { _ = o.do("thaw", admin.FreezeScope{}) }
	}},
	{name: "a mass goes unseen, and is released", weight: 1, apply: func(w *world) func() {
		return w.unseen(func(o operator, h admin.Hold) {
			if o.do("release", admin.HoldScope{All: true}) == nil {
				w.seen.add("removals that were released", h.Count)
			}
		})
	}},
	{name: "a mass goes unseen, is discarded, and then released", weight: 1, apply: func(w *world) func() {
		return w.unseen(func(o operator, h admin.Hold) {
			if h.Discarded {
				_ = o.do("release", admin.HoldScope{All: true, Discarded: true})
			} else if o.do("discard", admin.HoldScope{All: true}) == nil {
				w.seen.add("removals that were discarded", h.Count)
			}
		})
	}},
	{name: "a relay's clock is set", weight: 2, apply: (*world).resetClock},
	{name: "files vanish, and appear", weight: 1, apply: (*world).vanish},
	{name: "two files have the same names", weight: 1, apply: (*world).repeatNames},
	{name: "all clients come at once", weight: 1, apply: func(w *world) func() {
		w.leave()
		return nothing
	}},
	{name: "clients' links drop everything", weight: 1, apply: func(w *world) func() {
		p := w.edge()
		p.Set(proxy.Link{Up: proxy.Way{Hold: true}, Down: proxy.Way{Hold: true}})
		return func() { p.Reset(); w.mend(p)() }
	}},
	{name: "clients vanish without a word", weight: 1, apply: func(w *world) func() {
		p := w.edge()
		w.seen.add("connections of clients that vanished", p.State().Open)
		p.Strand()
		return nothing
	}},
	{name: "clients do not read what is large", weight: 1, apply: (*world).unread},
	{name: "a client asks for too much", weight: 1, apply: (*world).intrude},
	{name: "clients are stuck", weight: 1, apply: func(w *world) func() {
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
	{name: "canaries refuse a change", weight: 1, apply: (*world).refuse},
	{name: "everything changes at once", weight: 1, apply: func(w *world) func() {
		for _, g := range w.groups {
			g.changeAll(types...)
		}
		return nothing
	}},
	{name: "everything changes again and again", weight: 1, apply: func(w *world) func() {
		for range 20 {
			for _, g := range w.groups {
				g.changeAll(types...)
			}
		}
		return nothing
	}},
	{name: "a third of everything is removed", weight: 1, apply: func(w *world) func() {
		w.removeThird()
		return w.restore
	}},
}

// leave has all clients go to the other relay.
func (w *world) leave() {
	for _, c := range w.clients {
		c.leave()
	}
}

func (w *world) removeThird() {
	for _, g := range w.groups {
		g.removeThird()
	}
}

func (w *world) restore() {
	for _, g := range w.groups {
		g.restore()
	}
}

// unseen has a third of everything removed while no relay is told, by origins that then may
// not say it either, so that relays have to infer it. They hold back what is a mass of removals. An
// operator decides about that, again and again, until all agree.
func (w *world) unseen(decide func(operator, admin.Hold)) (heal func()) {
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
				all, _ := r.operator().holds() // it may not run
				for _, h := range all {
					decide(r.operator(), h)
				}
			}
		}))
	}
}

// largeEvery is how often what is large changes for clients that do not read it: not before
// the relay sends it without their answer to the last one.
const largeEvery = time.Second

// unread has those clients read nothing that are sent what is large, until a relay has ended
// a stream for it.
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
				w.seen.add("streams of clients that did not read", n)
				break
			}
		}
		for _, c := range idle {
			c.resume()
		}
	}
}

// stalled returns how many streams the relays that run have ended since their clients did not read.
func (w *world) stalled() (n int) {
	for _, r := range w.relays() {
		m, _ := r.operator().metrics() // it may not run
		n += int(m[`tender_client_streams_ended_total{reason="stalled"}`])
	}
	return n
}

// maxNames is how many names a relay lets one stream ask for.
const maxNames = 100

// intrude has a client ask for more than it may, of whatever relay there is. It is served what it may have.
func (w *world) intrude() (heal func()) {
	names := make([]string, maxNames+1)
	for i := range names {
		names[i] = resource(i)
	}
	opts := relaytest.LightOptions{
		Node:   &corepb.Node{Id: "intruder", Cluster: w.groups[0].name, UserAgentName: "envoy"},
		OnOpen: func() { w.seen.add("streams that asked for too much", 1) },
	}
	intruder := relaytest.Roam(w.t, opts, 0, w.dialers(false), relaytest.Subscription{TypeURL: relaytest.EndpointType, Names: names})
	return func() {
		intruder.Stop()
		if has := len(intruder.State()[relaytest.EndpointType]); has > maxNames {
			w.complain("intruder", fmt.Sprintf("it was served %d names, and may ask for %d", has, maxNames))
		}
	}
}

func (w *world) relay() server { return w.relays()[w.random.IntN(2)] }

func (w *world) edge() *proxy.Proxy { return w.edges[w.random.IntN(len(w.edges))] }

func (w *world) origin() *relaytest.Origin { return w.origins[w.random.IntN(len(w.origins))] }

func (w *world) link() *proxy.Proxy { return w.links[w.random.IntN(len(w.links))] }

// mend returns what makes a link whole.
func (w *world) mend(p *proxy.Proxy) func() { return func() { p.Set(proxy.Link{}) } }

// links are the relays' ways to the origins.
type links []*proxy.Proxy

// refuse breaks all links for good, and returns what mends them.
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

// impostor returns somebody who is no origin.
func (w *world) impostor() func(net.Conn) {
	all := []func(net.Conn){
		proxy.AnswerHTTP1, proxy.AnswerTLS, proxy.AnswerRandom, proxy.AnswerNothing, proxy.AnswerTruncated,
		proxy.AnswerHTTP2(proxy.StreamHTML), proxy.AnswerHTTP2(proxy.StreamGoAway),
		proxy.AnswerHTTP2(proxy.StreamTrailersOnly("13", "no")), proxy.AnswerHTTP2(proxy.StreamMessage([]byte{0xff, 0xff})),
	}
	return all[w.random.IntN(len(all))]
}

// repeat does something again and again until what it returns is called.
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
