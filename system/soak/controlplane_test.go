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
	"github.com/xdstender/tender/upstream/reconcile"
)

// untruths are faults in which a control plane or an operator misleads the relays. Each is the only fault of its
// round, so that the test knows exactly which content may reach clients.
var untruths = []fault{
	{name: "origins restart empty", weight: 1, alone: true, apply: func(w *world) func() {
		load := w.unload(w.origins[:2], relaytest.ClusterType, relaytest.RouteType)
		w.heldBack(relaytest.ClusterType, true)
		load()
		return nothing
	}},
	{name: "origins restart empty, an operator drops removals", weight: 1, alone: true, apply: func(w *world) func() {
		load := w.unload(w.origins[:2], relaytest.ClusterType, relaytest.RouteType)
		w.heldBack(relaytest.ClusterType, false)
		for _, r := range w.relays() {
			if err := r.operator().do("drop", admin.PendingScope{All: true}); err != nil {
				w.t.Errorf("drop: %v", err)
			}
		}
		w.churnEndpoints(10)
		load()
		return nothing
	}},
	{name: "origins ignore versions and lack resources", weight: 1, alone: true, apply: func(w *world) func() {
		w.ignoreVersions()
		load := w.unload(w.origins[:2], relaytest.ClusterType)
		w.heldBack(relaytest.ClusterType, true)
		load()
		return nothing
	}},
	{name: "a SotW origin restarts without some of its resources", weight: 1, alone: true, apply: func(w *world) func() {
		load := w.unload(w.origins[2:], relaytest.ListenerType)
		w.heldBack(relaytest.ListenerType, true)
		load()
		return nothing
	}},
	{name: "a standby origin lags", weight: 1, alone: true, apply: (*world).lag},
	{name: "origins reject a node group", weight: 1, alone: true, apply: (*world).refuseGroup},
	{name: "a replica serves other content under the same versions", weight: 1, alone: true, apply: (*world).replica},
	{name: "a relay is frozen, killed and restarted", weight: 1, alone: true, apply: (*world).freezeOver},
	{name: "a clock is set while removals are held back", weight: 1, alone: true, apply: (*world).holdOver},
	{name: "a file of a directory cannot be read", weight: 1, alone: true, apply: (*world).breakFile},
	{name: "a directory is renamed, and renamed back", weight: 1, alone: true, apply: (*world).goAway},
	{name: "a change that canaries reject is contained", weight: 2, alone: true, apply: (*world).halt},
	{name: "relays or origins restart during a rollout", weight: 1, alone: true, apply: (*world).restartAmid},
}

// unload disconnects origins from the relays and lets them return without resources of some types. At random, they
// return without all of them, or keep only those to which no client subscribes by name. load restores the resources.
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

// contentsOf returns the contents of an origin for each group.
func (w *world) contentsOf(o *relaytest.Origin) (contents []*relaytest.Content) {
	for _, g := range w.groups {
		contents = append(contents, g.contents[slices.Index(w.origins, o)])
	}
	return contents
}

// heldWithin is the timeout for a relay to hold removals back. By then it must have connected, asked for the
// resources that an origin does not mention (B.15), and received the complete set.
const heldWithin = time.Minute

// heldBack waits until each relay with clients reports that it holds removals of a type back, with a deadline. With
// decided, only removals count that the relay has decided to hold.
func (w *world) heldBack(typeURL string, decided bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, heldWithin)
	defer cancel()
	for _, r := range w.relays() {
		if w.usage(r).streams < len(w.clients)/10 {
			continue // with few clients, a relay may have no view of a group
		}
		n := 0
		for n == 0 {
			all, err := r.operator().pending()
			if err != nil {
				w.t.Fatal(err)
			}
			for _, h := range all {
				if h.TypeURL == typeURL && !h.Until.IsZero() && (!decided || h.Reason == string(reconcile.LargeRemoval) || h.Reason == string(reconcile.SecondLook)) {
					n += h.Count
				}
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				w.t.Fatalf("origins do not mention most of %s, but a relay has no hold with a deadline: %+v", typeURL, all)
			}
		}
		w.seen.add("removals by origins without resources, held back", n)
	}
}

// ignoreVersions makes the Delta origins ignore initial_resource_versions until all clients agree. They then resend
// every resource on a new stream.
func (w *world) ignoreVersions() {
	for _, o := range w.origins[:2] {
		o.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = true })
		w.later = append(w.later, func() { o.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = false }) })
	}
}

// churnEndpoints makes n changes of endpoints in each group. Neither holds nor rollouts delay endpoints.
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

// lag makes the standby origin miss changes, and then breaks the link to the other one. The standby catches up once the
// relays are connected to it.
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
		g.restore() // the standby lacks these resources
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

// reaches waits until the relays with the given node IDs have streams to an origin.
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

// refuseGroup makes the origins reject the streams of one group. The other group must still get every change, and the
// relays must not switch to another address.
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
		w.agreeOf(func(c client) bool { return c.follows() == other }, "a change while the other group is rejected")
	}
	if now := w.process.log.moved() + w.inside.log.moved(); now != moved {
		w.t.Errorf("relays switched addresses %d times while one group was rejected, want 0", now-moved)
	}
	return func() {
		for _, f := range allow {
			f()
		}
	}
}

// replica makes the origins return with new content of some resources under unchanged versions.
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
	w.agree("new versions, before another replica answers")
	for _, g := range w.groups {
		g.ledger.Repeats()
	}
	mend := w.links.refuse()
	put()
	mend()
	w.seen.add("resources with other content under the same version", 2*each*len(w.groups))
	return nothing
}

// permitFrozen declares that a relay may be frozen until the end of the round.
func (w *world) permitFrozen() {
	for _, g := range w.groups {
		g.ledger.Frozen(true)
		w.later = append(w.later, func() { g.ledger.Frozen(false) })
	}
}

// freezeOver freezes the process, kills it and starts it again. It must not serve content that is newer than the
// freeze.
func (w *world) freezeOver() (heal func()) {
	p, g := w.process, w.groups[w.random.IntN(len(w.groups))]
	_, present := g.names(relaytest.ClusterType) // the relay may serve new members until their set is confirmed
	w.visit(g, len(present))
	w.permitFrozen()
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
		if w.usage(p).frozen != len(w.origins) { // the Delta origins count as one, and the directory as another
			w.t.Errorf("after a freeze and a restart, not every origin is frozen: the relay reports %v", w.usage(p))
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

// showsNone checks that the process serves none of the hidden contents to a new client.
func (w *world) showsNone(g *group, hidden map[relaytest.Digest]bool) {
	for name, e := range w.visit(g, 1) {
		if hidden[e.Digest] {
			w.complain("a visitor", fmt.Sprintf("%s is newer than the freeze", name))
		}
	}
	w.seen.add("clients of a frozen relay", 1)
}

// visit connects a new client of a group to the process, waits until it has at least a number of clusters, and returns
// them.
func (w *world) visit(g *group, atLeast int) map[string]relaytest.Entry {
	w.t.Helper()
	w.visitors++
	opts := relaytest.LightOptions{Variant: relaytest.Variant(w.visitors % 2), Node: &corepb.Node{Id: fmt.Sprint("visitor-", w.visitors), Cluster: g.name, UserAgentName: "envoy"}}
	visitor := relaytest.Roam(w.t, opts, 0, w.dialers(false)[:1], allClusters...)
	defer visitor.Stop()
	ctx, cancel := context.WithTimeout(w.ctx, relaytest.Patience)
	defer cancel()
	if !visitor.Await(ctx, func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) >= atLeast }) {
		w.t.Errorf("the relay serves %d clusters to a new client, want at least %d", len(visitor.State()[relaytest.ClusterType]), atLeast)
	}
	return visitor.State()[relaytest.ClusterType]
}
