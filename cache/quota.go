package cache

import (
	"math"
	"slices"
)

// A Quota counts the names that streams want of one origin, over all views that have it
// (Config.Quotas), and says how many there may be, of all peers and of each (B.35). It counts a name once for each view:
// that is how often the origin is asked for it. In each view, one of the peers that want a name is charged for it. The zero value
// counts nothing and allows all.
type Quota struct {
	names     *Shares // nil: nothing is counted
	elsewhere bool
}

// NewQuota returns a quota of so many names.
func NewQuota(max int) Quota { return Quota{names: NewShares(max, Tenth(max))} }

// Elsewhere returns the same quota for a source that stands for another view, which asks the
// origin and counts. Peers are charged here, since the other view does not know them.
func (q Quota) Elsewhere() Quota {
	q.elsewhere = true
	return q
}

// Wanted returns how many names there are.
func (q Quota) Wanted() int {
	if q.names == nil {
		return 0
	}
	return q.names.Used()
}

// SetPeer says whose names the watch subscribes to, before it subscribes to any. Without it they are nobody's, and only the
// quotas' totals bound them.
func (w *Watch) SetPeer(peer string) {
	w.peer = peer
	w.shares = w.view.index.sharesOf(peer)
}

// Peer returns whose names the watch subscribes to.
func (w *Watch) Peer() string { return w.peer }

// sharesOf opens the shares of a peer in the quotas of all sources, nil where nothing is counted.
func (x *index) sharesOf(peer string) []*Share {
	shares := make([]*Share, len(x.sources))
	for i, s := range x.sources {
		switch same := slices.IndexFunc(x.sources, func(o *source) bool { return o.quota.names == s.quota.names }); {
		case s.quota.names == nil:
		case same < i:
			shares[i] = shares[same]
		default:
			shares[i] = s.quota.names.Open(peer)
		}
	}
	return shares
}

// closeShares undoes sharesOf.
func closeShares(shares []*Share) {
	for i, s := range shares {
		if s != nil && slices.Index(shares, s) == i {
			s.Close()
		}
	}
}

// charge has the peer of a watch charged for a name, in place of whoever is; nobody if w is nil. mu must be held.
func (x *index) charge(n *Name, w *Watch) {
	was, inAll := n.chargedTo, !x.sources[n.source].quota.elsewhere
	if n.chargedTo = nil; w != nil {
		n.chargedTo = w.shares[n.source]
	}
	if n.chargedTo != nil {
		n.chargedTo.add(1, inAll)
	}
	if was != nil {
		was.add(-1, inAll)
	}
}

// Room returns how many names more the watch's peer may want, whichever of the view's origins they
// are of.
func (w *Watch) Room() int {
	room := math.MaxInt
	for _, s := range w.shares {
		if s != nil {
			room = min(room, s.Room())
		}
	}
	return room
}

// OverQuota returns which of the names that the watch would begin to watch, of a type, are more than its peer may want of an
// origin, in order; and which bound of one of the origins there is. The watch would cease
// to watch some others at the same time. Names that somebody wants already, or goes on wanting, make no difference, and none that
// the view holds is over a bound: that others want what does not exist must not take it from anybody. As
// nothing is reserved, requests at the same time may exceed a bound together.
func (w *Watch) OverQuota(typeURL string, begins, ceases []string) (over []string, why Excess) {
	if len(begins) <= w.Room() {
		return nil, Excess{} // as nearly always
	}
	begins, ceases = sortedSet(begins), sortedSet(ceases)
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	more := make(map[*Share]*demanded)
	for _, share := range w.shares {
		more[share] = new(demanded)
	}
	t, held := x.types[typeURL], w.view.Generation().Type(typeURL)
	for _, text := range ceases {
		if _, stays := slices.BinarySearch(begins, text); !stays {
			w.cease(more, t.find(text))
		}
	}
	for _, text := range begins {
		n := t.find(text)
		share := w.shares[x.route(typeURL, text)]
		if share == nil || n != nil && len(n.watchers) > 0 {
			continue
		}
		by := more[share]
		if by.all >= 0 && share.room(by.all, by.own) == 0 && !held.has(n) {
			over, why = append(over, text), share.excess(by.all, by.own)
		}
		by.all, by.own = by.all+1, by.own+1
	}
	why.Used++ // as it would be
	return over, why
}

// demanded is how many names more there would be, of all and of those that a peer is charged for.
type demanded struct{ all, own int }

// cease counts a name, which may be nil, as given up by the watch.
func (w *Watch) cease(more map[*Share]*demanded, n *Name) {
	if n == nil || !slices.Contains(n.watchers, w.id) {
		return
	}
	by := more[w.shares[n.source]]
	if n.chargedTo == w.shares[n.source] {
		by.own--
	}
	if len(n.watchers) == 1 {
		by.all--
	}
}

// has reports whether there is a resource of a name, which may be nil.
func (t *Type) has(n *Name) bool {
	if n == nil {
		return false
	}
	e, _ := t.Lookup(n)
	return e.Present()
}

// sortedSet returns texts in order, each once.
func sortedSet(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// find returns the Name for a text, nil if there is none, or no such type.
func (t *indexType) find(text string) *Name {
	if t == nil {
		return nil
	}
	return t.names[text]
}
