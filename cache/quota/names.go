package quota

// Names counts the resource names that clients subscribe to of one origin. A name counts once for each view that
// requests it from the origin. In each view, one of the subscribed peers is charged for it. The zero value counts
// nothing and has no limit.
type Names struct {
	pool             *Pool // nil counts nothing
	countedElsewhere bool
}

// NewNames returns a quota that counts names in a pool.
func NewNames(p *Pool) Names { return Names{pool: p} }

// CountedElsewhere returns the quota for a view that receives the names from another view, which requests them from
// the origin and counts them in the total. Peers are charged here, because the other view does not know them. The total
// grows only when the other view subscribes, so subscriptions in quick succession may exceed it, even on one stream.
func (n Names) CountedElsewhere() Names {
	n.countedElsewhere = true
	return n
}

// Used returns how many names are counted.
func (n Names) Used() int {
	if n.pool == nil {
		return 0
	}
	return n.pool.Used()
}

// Open returns the share of a peer, nil if nothing is counted. The caller closes it.
func (n Names) Open(peer string) *Share {
	if n.pool == nil {
		return nil
	}
	return n.pool.Open(peer)
}

// SamePool reports whether two quotas count in the same pool, or both count nothing.
func (n Names) SamePool(o Names) bool { return n.pool == o.pool }

// Charge adds count names to a share, which may be nil; a negative count removes names.
func (n Names) Charge(s *Share, count int) {
	if s != nil {
		s.add(count, !n.countedElsewhere)
	}
}
