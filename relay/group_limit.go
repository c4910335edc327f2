package relay

import (
	"cmp"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/upstream"
)

// A refusalLog logs clients that are refused because of a limit of node groups.
type refusalLog struct {
	log         *slog.Logger
	limitLogged atomic.Bool    // a refused group was logged since the last removal of a group
	peerLimit   rate.Sometimes // rate-limits log messages about peers with too many groups
}

// write logs the refusal of a client, unless it was logged recently or has another cause.
func (l *refusalLog) write(err error, key string, n *corepb.Node, peer string) {
	limit, _ := guard.LimitOf(err)
	switch {
	case limit == guard.LimitGroups && !l.limitLogged.Swap(true):
		l.log.Warn("node group limit reached (TENDER_MAX_GROUPS); clients of new groups are refused",
			slog.String("group", key), slog.String("node", n.GetId()))
	case limit == guard.LimitPeerGroups:
		l.peerLimit.Do(func() {
			l.log.Warn("node group limit of a peer reached (TENDER_MAX_GROUPS_PER_CLIENT); its clients of new groups are "+
				"refused; raise it for load balancers",
				slog.String("peer", peer), slog.String("group", key), slog.String("node", n.GetId()), slog.Any("err", err))
		})
	}
}

// hasRoom logs that there is room for a new group, if the opposite was logged.
func (l *refusalLog) hasRoom() {
	if l.limitLogged.Swap(false) {
		l.log.Info("node group limit no longer reached; clients of new groups are accepted")
	}
}

// A groupQuota limits the number of node groups that each peer creates, and their rate (B.35). A group counts for the
// peer that created it until it is removed, because a group without clients still has upstream streams. Groups that
// were restored from a snapshot count for no peer. It is guarded by groups.mu.
type groupQuota struct {
	shares    *quota.Pool
	burst     int // groups that a peer may create at once
	perMinute int // groups that a peer may create in a minute after that
	limiters  map[string]*rate.Limiter
}

// newGroupQuota returns the quota of at most total groups. A peer may create as many at once, and then perMinute.
func newGroupQuota(total, perMinute int) groupQuota {
	return groupQuota{
		shares: quota.NewPool(total, perMinute),
		burst:  total, perMinute: perMinute,
		limiters: make(map[string]*rate.Limiter),
	}
}

// tooFast reports whether a peer has exceeded its rate of new groups.
func (f *groupQuota) tooFast(peer string) bool {
	limiter := f.limiters[peer]
	return limiter != nil && limiter.Tokens() < 1
}

// countCreated counts a new group of a peer towards its rate. Groups without a peer are not limited.
func (f *groupQuota) countCreated(peer string) {
	if peer == "" {
		return
	}
	limiter := f.limiters[peer]
	if limiter == nil {
		for other, idle := range f.limiters { // drop the limiters of peers without recent groups
			if idle.Tokens() >= float64(f.burst) {
				delete(f.limiters, other)
			}
		}
		limiter = rate.NewLimiter(rate.Limit(float64(f.perMinute)/time.Minute.Seconds()), f.burst)
		f.limiters[peer] = limiter
	}
	limiter.Allow()
}

// reserveGroup reserves a place for a new group of a peer. It returns the peer's share, which counts the group, or an
// error with the exceeded limit. To make room it evicts groups without clients: those of the peer itself if the peer
// has used up its share, otherwise those of the peer with most groups. groups.mu must be held.
func (g *groups) reserveGroup(key, peer string) (*quota.Share, error) {
	f := &g.quota
	share, over := f.shares.Take(peer)
	for over != nil {
		evictFrom := "" // any peer
		if over.PerPeer {
			evictFrom = peer
		}
		oldest := g.evictable(evictFrom)
		switch {
		case oldest != nil && f.tooFast(peer):
			return nil, f.rateError(key, peer)
		case oldest != nil:
			g.log.Info("node group without clients evicted", slog.String("evicted", oldest.key), slog.String("group", key),
				slog.String("evicted_peer", oldest.creator.Peer()), slog.String("peer", peer))
			g.evict(oldest)
		case over.PerPeer:
			return nil, guard.Exceeds(guard.LimitPeerGroups,
				"too many node groups of %[2]s: group %[1]q would exceed its limit of %[3]d, which applies while more than half "+
					"of %[4]d groups exist; TENDER_NODE_GROUP_BY defines groups",
				key, peer, over.Limit, over.Total)
		default:
			return nil, guard.Exceeds(guard.LimitGroups,
				"too many node groups: group %q would exceed the limit of %d; TENDER_NODE_GROUP_BY defines groups", key, over.Limit)
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
		"too many new node groups of %[2]s: group %[1]q would exceed %[3]d at once and %[4]d per minute; "+
			"TENDER_NODE_GROUP_BY defines groups",
		key, peer, f.burst, f.perMinute)
}

// evictable returns the group to evict among those that a peer created, or among all groups if peer is empty. It
// chooses the peer with most groups, and of its groups the one that has been without streams for longest. It returns
// nil if no group may be evicted.
func (g *groups) evictable(peer string) *group {
	if g.decisions.anyFrozen() {
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

// irreplaceable reports whether a new group would not receive the same resources from the origins: an origin is
// unreachable or has not confirmed restored resources, or removals are held.
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
