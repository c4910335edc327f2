package relay

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/upstream"
)

// refused logs that a client was not let into its group.
func (g *groups) refused(err error, key string, n *corepb.Node, peer string) {
	limit, _ := guard.LimitOf(err)
	switch {
	case limit == guard.LimitGroups && !g.refusing.Swap(true):
		g.log.Warn("node group limit reached (TENDER_MAX_GROUPS); clients of new groups are rejected",
			slog.String("group", key), slog.String("node", n.GetId()))
	case limit == guard.LimitPeerGroups:
		g.crowded.Do(func() {
			g.log.Warn("node group limit of a peer reached (TENDER_MAX_GROUPS_PER_CLIENT); its clients of new groups are rejected; raise it for load balancers",
				slog.String("peer", peer), slog.String("group", key), slog.String("node", n.GetId()), slog.Any("err", err))
		})
	}
}

// founders bound how many node groups each peer founds, and how fast (B.35). A group counts for the peer that founded
// it until it is gone: without clients it still has streams to the origins. What was restored from a snapshot counts
// for nobody. They are guarded by groups.mu.
type founders struct {
	shares *quota.Pool
	burst  int // groups that a peer may found at once
	minute int // and, after these, in a minute
	pace   map[string]*rate.Limiter
}

func newFounders(cfg *Config) founders {
	return founders{
		shares: quota.NewPool(cfg.MaxGroups, cfg.MaxPeerGroups),
		burst:  cfg.MaxGroups, minute: cfg.MaxPeerGroups,
		pace: make(map[string]*rate.Limiter),
	}
}

// tooFast reports whether a peer may not found another group yet.
func (f *founders) tooFast(peer string) bool {
	pace := f.pace[peer]
	return pace != nil && pace.Tokens() < 1
}

// founded notes that a peer has founded a group.
func (f *founders) founded(peer string) {
	if peer == "" {
		return
	}
	pace := f.pace[peer]
	if pace == nil {
		for other, of := range f.pace { // whose groups were long ago
			if of.Tokens() >= float64(f.burst) {
				delete(f.pace, other)
			}
		}
		pace = rate.NewLimiter(rate.Limit(float64(f.minute)/time.Minute.Seconds()), f.burst)
		f.pace[peer] = pace
	}
	pace.Allow()
}

// found makes room for a group that a peer founds, and returns the peer's share with the group counted in it, or why
// there is no room. Groups that nobody is in make room: a peer's own once it has its share, and else those of the peer
// with most.
func (g *groups) found(key, peer string) (*quota.Share, error) {
	f := &g.founders
	share, over := f.shares.Take(peer)
	for over != nil {
		of := ""
		if over.PerPeer {
			of = peer
		}
		oldest := g.expendable(of)
		switch {
		case oldest != nil && f.tooFast(peer):
			return nil, f.paced(key, peer)
		case oldest != nil:
			g.log.Info("node group without clients evicted", slog.String("evicted", oldest.key), slog.String("group", key),
				slog.String("evicted_peer", oldest.founder.Peer()), slog.String("peer", peer))
			g.evict(oldest)
		case over.PerPeer:
			return nil, guard.Exceeds(guard.LimitPeerGroups,
				"node group %q is one too many for %s: clients of one peer may found at most %d while more than half of %d are there, and TENDER_NODE_GROUP_BY decides what makes one",
				key, peer, over.Limit, over.Total)
		default:
			return nil, guard.Exceeds(guard.LimitGroups,
				"node group %q is one too many: at most %d groups are kept, and TENDER_NODE_GROUP_BY decides what makes one", key, over.Limit)
		}
		share, over = f.shares.Take(peer)
	}
	if f.tooFast(peer) {
		share.Release()
		return nil, f.paced(key, peer)
	}
	f.founded(peer)
	return share, nil
}

// paced returns why a peer may not found another group yet.
func (f *founders) paced(key, peer string) error {
	return guard.Exceeds(guard.LimitPeerGroups,
		"node group %q is one too many for %s: clients of one peer may found %d at once and %d a minute, and TENDER_NODE_GROUP_BY decides what makes one",
		key, peer, f.burst, f.minute)
}

// expendable returns which group to evict: of those that a peer founded, or of all if it is empty. It is the one that
// has been without streams for longest of the peer with most groups; nil if there is none.
func (g *groups) expendable(peer string) *group {
	if g.anyFrozen() {
		return nil // those who come back are to find what there was
	}
	var without []*group
	for _, gr := range g.byKey {
		if gr.streams == 0 && (peer == "" || gr.founder.Peer() == peer) {
			without = append(without, gr)
		}
	}
	slices.SortFunc(without, func(a, b *group) int {
		return cmp.Or(b.founder.Used()-a.founder.Used(), a.left.Compare(b.left))
	})
	now := time.Now()
	for _, gr := range without {
		if !gr.irreplaceable(now) {
			return gr
		}
	}
	return nil
}

// irreplaceable reports whether the origins would not tell a group that is made anew what it holds: one of them is
// away, or has not confirmed what was restored, or removals are held back.
func (gr *group) irreplaceable(now time.Time) bool {
	if gr.view.Stale(now) || slices.ContainsFunc(gr.controls, (*upstream.Control).Holding) {
		return true
	}
	return slices.ContainsFunc(gr.shares, func(s *sharedView) bool {
		return len(s.groups) == 1 && (s.view.Stale(now) || s.control.Holding())
	})
}

// evict removes a group, but not its snapshots: whoever comes back to it finds what it held.
func (g *groups) evict(gr *group) {
	if gr.idle != nil {
		gr.idle.Stop()
		gr.idle = nil
	}
	g.remove(gr, true)
}
