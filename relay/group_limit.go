package relay

import (
	"log/slog"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/downstream"
)

// refused logs that a client was not let into its group.
func (g *groups) refused(err error, key string, n *corepb.Node, peer string) {
	limit, _ := downstream.LimitOf(err)
	switch {
	case limit == downstream.LimitGroups && !g.refusing.Swap(true):
		g.log.Warn("there are as many node groups as TENDER_MAX_GROUPS allows: clients of further ones are refused",
			slog.String("group", key), slog.String("node", n.GetId()))
	case limit == downstream.LimitPeerGroups:
		g.crowded.Do(func() {
			g.log.Warn("a peer has founded as many node groups as TENDER_MAX_PEER_GROUPS allows: its clients of further ones are refused; "+
				"if it stands for many, such as a load balancer, allow more",
				slog.String("peer", peer), slog.String("group", key), slog.String("node", n.GetId()))
		})
	}
}

// room makes room for a group that a peer founds, which is there without streams or not at
// all, or returns why it may not.
func (g *groups) room(gr *group, key, peer string) error {
	if peer != "" && g.peers[peer] >= g.cfg.MaxPeerGroups {
		return downstream.Exceeds(downstream.LimitPeerGroups,
			"node group %q is one too many for %s: clients from one address may found at most %d, and TENDER_NODE_GROUP_BY decides what makes one",
			key, peer, g.cfg.MaxPeerGroups)
	}
	if gr == nil && len(g.byKey) >= g.cfg.MaxGroups && !g.evict() {
		return downstream.Exceeds(downstream.LimitGroups,
			"node group %q is one too many: at most %d groups are kept, and TENDER_NODE_GROUP_BY decides what makes one", key, g.cfg.MaxGroups)
	}
	return nil
}

// found notes whose stream is the only one of a group.
func (g *groups) found(gr *group, peer string) {
	if gr.founder = peer; peer != "" {
		g.peers[peer]++
	}
}

// disown undoes found: nobody has a stream of the group any more.
func (g *groups) disown(gr *group) {
	if gr.founder == "" {
		return
	}
	if g.peers[gr.founder]--; g.peers[gr.founder] == 0 {
		delete(g.peers, gr.founder)
	}
	gr.founder = ""
}

// evict removes the group that has been without streams for longest, and reports
// whether there was one.
func (g *groups) evict() bool {
	var oldest *group
	for _, gr := range g.byKey {
		if gr.streams == 0 && (oldest == nil || gr.left.Before(oldest.left)) {
			oldest = gr
		}
	}
	if oldest == nil {
		return false
	}
	if oldest.idle != nil {
		oldest.idle.Stop()
		oldest.idle = nil
	}
	g.remove(oldest)
	return true
}
