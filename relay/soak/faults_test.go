package soak

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// A fault is something that fails. What random draws decide about it is drawn when it is
// applied.
type fault struct {
	name   string
	weight int // how often it is in a deck
	apply  func(w *world) (heal func())
}

func nothing() {}

var faults = []fault{
	{"an origin is killed", 2, func(w *world) func() {
		o := w.origin()
		o.Stop()
		return o.Restart
	}},
	{"both origins refuse connections", 1, func(w *world) func() {
		return w.links.each(func(p *relaytest.Proxy) func() { p.Set(relaytest.Link{Refuse: true}); p.Reset(); return w.mend(p) })
	}},
	{"an origin's link drops everything", 1, func(w *world) func() {
		p := w.link()
		p.Set(relaytest.Link{Up: relaytest.Way{Hold: true}, Down: relaytest.Way{Hold: true}})
		return func() { p.Reset(); w.mend(p)() }
	}},
	{"an origin's link is slow", 1, func(w *world) func() {
		p := w.link()
		way := relaytest.Way{Delay: 200 * time.Millisecond, Rate: 64 << 10}
		p.Set(relaytest.Link{Up: way, Down: way})
		return w.mend(p)
	}},
	{"an origin's link is half open", 1, func(w *world) func() {
		p := w.link()
		p.Orphan()
		return p.Reset
	}},
	{"an origin's link breaks in the middle of frames", 1, func(w *world) func() {
		p := w.link()
		p.Set(relaytest.Link{Down: relaytest.Way{ResetAfter: 1 + w.random.IntN(4000)}})
		return w.mend(p)
	}},
	{"an origin's link flaps", 1, func(w *world) func() {
		return w.repeat(200*time.Millisecond, w.link().Reset)
	}},
	{"somebody else answers for an origin", 1, func(w *world) func() {
		p := w.link()
		p.Set(relaytest.Link{Answer: w.impostor()})
		p.Reset()
		return func() { w.mend(p)(); p.Reset() }
	}},
	{"an origin's link says rubbish", 1, func(w *world) func() {
		w.link().Say(bytes.Repeat([]byte{byte(w.random.Uint32())}, 100))
		return nothing
	}},
	{"an origin breaks the protocol", 1, func(w *world) func() {
		twice := &discoverypb.Resource{Name: "twice", Version: "1"}
		w.origin().Inject(&discoverypb.DeltaDiscoveryResponse{
			TypeUrl: relaytest.ClusterType, Resources: []*discoverypb.Resource{twice, twice}, RemovedResources: []string{"service-1", "service-2"},
		})
		return nothing
	}},
	{"an origin drains", 1, func(w *world) func() {
		w.origin().GoAway()
		return nothing
	}},
	{"a relay is killed", 2, func(w *world) func() {
		w.process.kill()
		return w.process.start
	}},
	{"a relay is killed, and back cold before origins", 1, func(w *world) func() {
		heal := w.links.each(func(p *relaytest.Proxy) func() { p.Set(relaytest.Link{Refuse: true}); p.Reset(); return w.mend(p) })
		w.process.kill()
		w.process.forget()
		w.process.start()
		w.leave() // and so half of the clients come, which know more than the relay does
		w.churn(20)
		return heal
	}},
	{"a relay is drained and started again", 2, func(w *world) func() {
		w.inside.stop()
		return w.inside.start
	}},
	{"relays are drained and started one by one", 1, func(w *world) func() {
		w.inside.stop()
		w.inside.start()
		w.process.drain()
		return w.process.start
	}},
	{"all clients come at once", 1, func(w *world) func() {
		w.leave()
		return nothing
	}},
	{"clients are stuck", 1, func(w *world) func() {
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
	{"everything changes at once", 1, func(w *world) func() {
		for _, g := range w.groups {
			g.changeAll()
		}
		return nothing
	}},
	{"a third of everything is removed", 1, func(w *world) func() {
		for _, g := range w.groups {
			g.removeThird()
		}
		return func() {
			for _, g := range w.groups {
				g.restore()
			}
		}
	}},
}

// leave has all clients go to the other relay.
func (w *world) leave() {
	for _, c := range w.clients {
		c.leave()
	}
}

func (w *world) origin() *relaytest.Origin { return w.origins[w.random.IntN(len(w.origins))] }

func (w *world) link() *relaytest.Proxy { return w.links[w.random.IntN(len(w.links))] }

// mend returns what makes a link whole.
func (w *world) mend(p *relaytest.Proxy) func() { return func() { p.Set(relaytest.Link{}) } }

// links are the relays' ways to the origins.
type links []*relaytest.Proxy

// each does something to each link, and returns what undoes it.
func (l links) each(f func(p *relaytest.Proxy) (undo func())) func() {
	var all []func()
	for _, p := range l {
		all = append(all, f(p))
	}
	return func() {
		for _, undo := range all {
			undo()
		}
	}
}

// impostor returns somebody who is no origin.
func (w *world) impostor() func(net.Conn) {
	all := []func(net.Conn){
		relaytest.AnswerHTTP1, relaytest.AnswerTLS, relaytest.AnswerRandom, relaytest.AnswerNothing, relaytest.AnswerTruncated,
		relaytest.AnswerHTTP2(relaytest.StreamHTML), relaytest.AnswerHTTP2(relaytest.StreamGoAway),
		relaytest.AnswerHTTP2(relaytest.StreamTrailersOnly("13", "no")), relaytest.AnswerHTTP2(relaytest.StreamMessage([]byte{0xff, 0xff})),
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
