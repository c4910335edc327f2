package cache

// InterestStats say what the streams of a view want of a type now.
type InterestStats struct {
	Wildcards int // subscriptions to all of its members, and to collections
	Names     int // subscriptions to names: a name that two streams want counts twice
}

// Plus returns the sums of both.
func (s InterestStats) Plus(o InterestStats) InterestStats {
	return InterestStats{s.Wildcards + o.Wildcards, s.Names + o.Names}
}

// Interest returns what streams want, by type URL. It takes as long as there are types and
// collections, and for that long keeps streams from subscribing.
func (v *View) Interest() map[string]InterestStats {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	stats := make(map[string]InterestStats)
	for key, t := range x.types {
		typeURL, _, _ := SplitCollection(key)
		of := stats[typeURL]
		of.Wildcards += len(t.wildcards)
		of.Names += t.watched
		stats[typeURL] = of
	}
	return stats
}
