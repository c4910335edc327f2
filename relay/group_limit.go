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

// logRejected logs that a client was rejected because of a limit of node groups.
func (g *groups) logRejected(err error, key string, n *corepb.Node, peer string) {
	limit, _ := guard.LimitOf(err)
	switch {
	case limit == guard.LimitGroups && !g.limitLogged.Swap(true):
		g.log.Warn("node group limit reached (TENDER_MAX_GROUPS); clients of new groups are rejected",
			slog.String("group", key), slog.String("node", n.GetId()))
	case limit == guard.LimitPeerGroups:
		g.peerLimitLog.Do(func() {
			g.log.Warn("node group limit of a peer reached (TENDER_MAX_GROUPS_PER_CLIENT); its clients of new groups are rejected; raise it for load balancers",
				slog.String("peer", peer), slog.String("group", key), slog.String("node", n.GetId()), slog.Any("err", err))
		})
	}
}

// groupQuota bound the number of node groups that each peer creates, and their rate (B.35). A group counts for the peer that
// created it until it is removed: without clients it still has streams to the origins. Groups that were restored from a
// snapshot count for no peer. They are guarded by groups.mu.
type groupQuota struct {
	shares    *quota.Pool
	burst     int // groups that a peer may create at once
	perMinute int // groups that a peer may create in a minute after that
	limiters  map[string]*rate.Limiter
}

func newGroupQuota(cfg *Config) groupQuota {
	return groupQuota{
		shares: quota.NewPool(cfg.MaxGroups, cfg.MaxPeerGroups),
		burst:  cfg.MaxGroups, perMinute: cfg.MaxPeerGroups,
		limiters: make(map[string]*rate.Limiter),
	}
}

// tooFast reports whether a peer has exceeded its rate of new groups.
func (f *groupQuota) tooFast(peer string) bool {
	pace := f.limiters[peer]
	return pace != nil && pace.Tokens() < 1
}

// countCreated counts a new group of a peer.
func (f *groupQuota) countCreated(peer string) {
	if peer == "" {
		return
	}
	pace := f.limiters[peer]
	if pace == nil {
		for other, of := range f.limiters { // drop the limiters of peers without recent groups
			if of.Tokens() >= float64(f.burst) {
				delete(f.limiters, other)
			}
		}
		pace = rate.NewLimiter(rate.Limit(float64(f.perMinute)/time.Minute.Seconds()), f.burst)
		f.limiters[peer] = pace
	}
	pace.Allow()
}

// reserveGroup reserves a place for a new group of a peer. It returns the peer's share, in which the group counts, or the limit that
// is exceeded. It evicts groups without clients: those of the peer itself if the peer has its share, otherwise those of the
// peer with most groups.
func (g *groups) reserveGroup(key, peer string) (*quota.Share, error) {
	f := &g.quota
	share, over := f.shares.Take(peer)
	for over != nil {
		of := ""
		if over.PerPeer {
			of = peer
		}
		oldest := g.expendable(of)
		switch {
		case oldest != nil && f.tooFast(peer):
			return nil, f.rateError(key, peer)
		case oldest != nil:
			g.log.Info("node group without clients evicted", slog.String("evicted", oldest.key), slog.String("group", key),
				slog.String("evicted_peer", oldest.creator.Peer()), slog.String("peer", peer))
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
		return nil, f.rateError(key, peer)
	}
	f.countCreated(peer)
	return share, nil
}

// rateError returns the error for a peer that has exceeded its rate of new groups.
func (f *groupQuota) rateError(key, peer string) error {
	return guard.Exceeds(guard.LimitPeerGroups,
		"node group %q is one too many for %s: clients of one peer may found %d at once and %d a minute, and TENDER_NODE_GROUP_BY decides what makes one",
		key, peer, f.burst, f.perMinute)
}

// expendable returns the group to evict, of those that a peer created, or of all if peer is empty: of the peer with most
// groups, the group that has been without streams for longest. It returns nil if no group may be evicted.
func (g *groups) expendable(peer string) *group {
	if g.anyFrozen() {
		return nil // returning clients need the frozen state
	}
	var without []*group
	for _, gr := range g.byKey {
		if gr.streams == 0 && (peer == "" || gr.creator.Peer() == peer) {
			without = append(without, gr)
		}
	}
	slices.SortFunc(without, func(a, b *group) int {
		return cmp.Or(b.creator.Used()-a.creator.Used(), a.idleSince.Compare(b.idleSince))
	})
	now := time.Now()
	for _, gr := range without {
		if !gr.irreplaceable(now) {
			return gr
		}
	}
	return nil
}

// irreplaceable reports whether a new group could not receive the same resources from the origins: an origin is
// unreachable, has not confirmed restored resources, or removals are held.
func (gr *group) irreplaceable(now time.Time) bool {
	if gr.view.Stale(now) || slices.ContainsFunc(gr.controls, (*upstream.Control).Holding) {
		return true
	}
	return slices.ContainsFunc(gr.sharedViews, func(s *sharedView) bool {
		return len(s.groups) == 1 && (s.view.Stale(now) || s.control.Holding())
	})
}

// evict removes a group but keeps its snapshots for returning clients.
func (g *groups) evict(gr *group) {
	if gr.removal != nil {
		gr.removal.Stop()
		gr.removal = nil
	}
	g.remove(gr, true)
}
