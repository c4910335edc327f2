package soak

import (
	"context"
	"fmt"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// Faults in which a control plane says what is not so. They are rounds of their own: what may
// reach clients is then exactly known.
var untruths = []fault{
	{name: "origins resume and are not loaded", weight: 1, alone: true, apply: func(w *world) func() {
		load := w.unload(w.origins[:2], relaytest.ClusterType, relaytest.RouteType)
		w.heldBack(relaytest.ClusterType, true)
		load()
		return nothing
	}},
	{name: "origins resume and are not loaded, and an operator discards", weight: 1, alone: true, apply: func(w *world) func() {
		load := w.unload(w.origins[:2], relaytest.ClusterType, relaytest.RouteType)
		w.heldBack(relaytest.ClusterType, false)
		for _, r := range w.relays() {
			if err := r.operator().do("discard", admin.HoldScope{All: true}); err != nil {
				w.t.Errorf("discard: %v", err)
			}
		}
		w.churnEndpoints(10)
		load()
		return nothing
	}},
	{name: "origins ignore versions and have a part", weight: 1, alone: true, apply: func(w *world) func() {
		w.ignoreVersions()
		load := w.unload(w.origins[:2], relaytest.ClusterType)
		w.heldBack(relaytest.ClusterType, true)
		load()
		return nothing
	}},
	{name: "a SotW origin returns with nothing, or a part", weight: 1, alone: true, apply: func(w *world) func() {
		load := w.unload(w.origins[2:], relaytest.ListenerType)
		w.heldBack(relaytest.ListenerType, true)
		load()
		return nothing
	}},
	{name: "a standby lags", weight: 1, alone: true, apply: (*world).lag},
	{name: "origins refuse a group", weight: 1, alone: true, apply: (*world).refuseGroup},
	{name: "a replica has other content under the same versions", weight: 1, alone: true, apply: (*world).replica},
	{name: "a relay is frozen, killed and started", weight: 1, alone: true, apply: (*world).freezeOver},
	{name: "a relay's clock is set while it holds removals back", weight: 1, alone: true, apply: (*world).holdOver},
	{name: "a file of a directory cannot be read", weight: 1, alone: true, apply: (*world).breakFile},
	{name: "a directory goes away, and comes back", weight: 1, alone: true, apply: (*world).goAway},
	{name: "canaries refuse a change, and nobody else has it", weight: 2, alone: true, apply: (*world).halt},
	{name: "relays and origins are started again amid a rollout", weight: 1, alone: true, apply: (*world).restartAmid},
}

// unload has origins lose touch with the relays, and return without what there is of some types: all of it, or
// all but what nobody asks for by name. It returns what loads them.
func (w *world) unload(origins []*relaytest.Origin, of ...string) (load func()) {
	empty := w.random.IntN(2) == 0
	mend := w.links.refuse()
	var loads []func()
	for _, o := range origins {
		for _, c := range w.contentsOf(o) {
			loads = append(loads, c.Unload(func(typeURL, name string) bool {
				return !slices.Contains(of, typeURL) || !empty && slices.Contains(unasked[typeURL], name)
			}))
		}
	}
	mend()
	return func() {
		for _, load := range loads {
			load()
		}
	}
}

// contentsOf returns what an origin says to the groups.
func (w *world) contentsOf(o *relaytest.Origin) (contents []*relaytest.Content) {
	for _, g := range w.groups {
		contents = append(contents, g.contents[slices.Index(w.origins, o)])
	}
	return contents
}

// heldWithin is how long a relay may take until it holds removals back: until it is connected, has asked for what an origin
// does not mention (B.15), and all of the set was said.
const heldWithin = time.Minute

// heldBack waits until each relay with clients says that it holds removals of a type back, and until when. Those
// may be removals that are not decided on yet, unless decided is set.
func (w *world) heldBack(typeURL string, decided bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, heldWithin)
	defer cancel()
	for _, r := range w.relays() {
		if w.usage(r).streams < len(w.clients)/10 {
			continue // it may have no view of a group
		}
		n := 0
		for n == 0 {
			all, err := r.operator().holds()
			if err != nil {
				w.t.Fatal(err)
			}
			for _, h := range all {
				if h.TypeURL == typeURL && !h.Discarded && !h.Until.IsZero() && (!decided || !h.Since.IsZero()) {
					n += h.Count
				}
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				w.t.Fatalf("origins do not mention most of %s, and a relay holds nothing back until some time: %+v", typeURL, all)
			}
		}
		w.seen.add("removals by origins that were not loaded, held back", n)
	}
}

// ignoreVersions has the origins of Delta resend everything to those who return, until all agree.
func (w *world) ignoreVersions() {
	for _, o := range w.origins[:2] {
		o.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = true })
		w.later = append(w.later, func() { o.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = false }) })
	}
}

// churnEndpoints makes so many changes of endpoints, which nothing holds back.
func (w *world) churnEndpoints(n int) {
	for i := range n {
		for _, g := range w.groups {
			g.ledger.Put(g.contents, g.content(relaytest.EndpointType, resource(i)))
		}
		select {
		case <-time.After(changeEvery):
		case <-w.ctx.Done():
		}
	}
}

// lag has the standby miss changes, and the relays go over to it. It catches up once they have.
func (w *world) lag() (heal func()) {
	used, standby := 0, 1
	if len(w.origins[0].State().Open()) < len(w.origins[1].State().Open()) {
		used, standby = 1, 0
	}
	var catchUp []func()
	for _, g := range w.groups {
		g.ledger.Behind(true)
		w.later = append(w.later, func() { g.ledger.Behind(false) })
		catchUp = append(catchUp, g.contents[standby].Lag())
	}
	catchUp = append(catchUp, w.origins[standby].Lag())
	for _, g := range w.groups {
		g.changeAll(relaytest.ClusterType, relaytest.EndpointType)
		g.restore() // what the standby will lack
	}
	w.churn(10)
	var busy []string
	for i, id := range []string{"tender/process", "tender/inside"} {
		if w.usage(w.relays()[i]).streams > 0 {
			busy = append(busy, id)
		}
	}
	link := w.links[used]
	link.Set(proxy.Link{Refuse: true})
	link.Reset()
	w.reaches(w.origins[standby], busy)
	w.churn(10)
	for _, f := range catchUp {
		f()
	}
	return w.mend(link)
}

// reaches waits until relays of some ids have streams to an origin.
func (w *world) reaches(o *relaytest.Origin, ids []string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, heldWithin)
	defer cancel()
	o.WaitFor(ctx, "streams of the relays", func(s *relaytest.OriginState) bool {
		nodes := make(map[string]bool)
		for _, st := range s.Open() {
			nodes[st.Node.GetId()] = true
		}
		return !slices.ContainsFunc(ids, func(id string) bool { return !nodes[id] })
	})
}

// refuseGroup has the origins refuse one group, while the other one gets every change. The relays change their
// addresses for neither.
func (w *world) refuseGroup() (heal func()) {
	i := w.random.IntN(len(w.groups))
	refused, other := w.groups[i], w.groups[(i+1)%len(w.groups)]
	moved := w.process.log.moved() + w.inside.log.moved()
	var allow []func()
	for _, o := range w.origins {
		allow = append(allow, o.Refuse(func(n *corepb.Node) bool { return n.GetCluster() == refused.name }, status.New(codes.PermissionDenied, "not you")))
	}
	for range 3 {
		w.churn(10)
		w.agreeOf(func(c client) bool { return c.follows() == other }, "while the other group is refused")
	}
	if now := w.process.log.moved() + w.inside.log.moved(); now != moved {
		w.t.Errorf("the relays changed their addresses %d times when one group was refused", now-moved)
	}
	return func() {
		for _, f := range allow {
			f()
		}
	}
}

// replica has the origins return with other content of some resources than they had under the same versions.
func (w *world) replica() (heal func()) {
	const each = 3
	put := func() {
		for _, g := range w.groups {
			for _, typeURL := range []string{relaytest.ClusterType, relaytest.EndpointType} {
				for i := range each {
					msg := g.content(typeURL, resource(i))
					g.ledger.Put(nil, msg)
					for _, c := range g.contents {
						c.Set(typeURL, resource(i), msg, fmt.Sprint("same-", w.replicas))
					}
				}
			}
		}
	}
	w.replicas++
	put()
	w.agree("before another replica answers")
	for _, g := range w.groups {
		g.ledger.Repeats()
	}
	mend := w.links.refuse()
	put()
	mend()
	w.seen.add("resources with other content under the same version", 2*each*len(w.groups))
	return nothing
}

// freezeOver has the process frozen, killed and started again: what came after the freeze, it shows nobody.
func (w *world) freezeOver() (heal func()) {
	p, g := w.process, w.groups[w.random.IntN(len(w.groups))]
	_, present := g.names(relaytest.ClusterType) // members that are new may be shown until their set is confirmed
	w.visit(g, len(present))
	if err := p.operator().do("freeze", freezeFor); err != nil {
		w.t.Fatalf("freeze: %v", err)
	}
	after := make(map[relaytest.Digest]bool)
	for _, name := range present {
		msg := g.content(relaytest.ClusterType, name)
		after[relaytest.DigestOf(msg)] = true
		g.ledger.Put(g.contents, msg)
	}
	for range 2 {
		w.showsNone(g, after)
		p.setClock([]time.Duration{-2 * time.Hour, 0, 2 * time.Hour}[w.random.IntN(3)])
		p.kill()
		p.start()
		if w.usage(p).frozen != len(w.origins) { // two of Delta are one, and there is a directory
			w.t.Errorf("the relay was frozen and started again, and has %v", w.usage(p))
		}
		w.churn(5)
	}
	w.showsNone(g, after)
	return func() {
		p.setClock(0)
		if err := p.operator().do("thaw", admin.FreezeScope{}); err != nil {
			w.t.Errorf("thaw: %v", err)
		}
	}
}

// showsNone looks whether the process shows a new client some of what it may not show.
func (w *world) showsNone(g *group, hidden map[relaytest.Digest]bool) {
	for name, e := range w.visit(g, 1) {
		if hidden[e.Digest] {
			w.complain("a visitor", fmt.Sprintf("%s is of after the freeze", name))
		}
	}
	w.seen.add("clients of a frozen relay", 1)
}

// visit has a new client of a group come to the process, waits until it has so many clusters, and returns them.
func (w *world) visit(g *group, atLeast int) map[string]relaytest.Entry {
	w.t.Helper()
	w.visitors++
	opts := relaytest.LightOptions{Variant: relaytest.Variant(w.visitors % 2), Node: &corepb.Node{Id: fmt.Sprint("visitor-", w.visitors), Cluster: g.name, UserAgentName: "envoy"}}
	visitor := relaytest.Roam(w.t, opts, 0, w.dialers(false)[:1], allClusters...)
	defer visitor.Stop()
	ctx, cancel := context.WithTimeout(w.ctx, relaytest.Patience)
	defer cancel()
	if !visitor.Await(ctx, func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) >= atLeast }) {
		w.t.Errorf("the relay shows a new client %d clusters, want %d at least", len(visitor.State()[relaytest.ClusterType]), atLeast)
	}
	return visitor.State()[relaytest.ClusterType]
}
