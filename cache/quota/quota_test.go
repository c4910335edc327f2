package quota

import (
	"fmt"
	"testing"
)

// B.35: one peer has all that there is while half of it is free, and leaves the other half to others.
func TestB35_OnePeerLeavesRoom(t *testing.T) {
	s := NewPool(2000, Tenth(2000))
	var taken []*Share
	take := func(peer string) *Exceeded {
		share, over := s.Take(peer)
		if over == nil {
			taken = append(taken, share)
		}
		return over
	}
	n := 0
	for ; take("greedy") == nil; n++ {
	}
	if n != 1000 {
		t.Errorf("one peer has %d of 2000, want half of them", n)
	}
	for peer := range 5 {
		for i := range 200 {
			if over := take(fmt.Sprint(peer)); over != nil {
				t.Fatalf("peer %d, number %d: %+v", peer, i, over)
			}
		}
		if over := take(fmt.Sprint(peer)); peer < 4 && (over == nil || *over != Exceeded{true, 200, 200, 2000}) {
			t.Errorf("peer %d has more than a tenth of all: %+v", peer, over)
		}
	}
	if over := take(""); over == nil || *over != (Exceeded{false, 2000, 2000, 2000}) {
		t.Errorf("there are more than allowed: %+v", over)
	}
	for _, share := range taken {
		share.Release()
	}
	if s.Used() != 0 || len(s.peers) != 0 {
		t.Errorf("%d are in use, of %v, want none", s.Used(), s.peers)
	}
}

// B.35: what is not known to be of a peer is bounded by the total alone, and a small total has room for one peer.
func TestB35_SharesOfUnknownPeersAndOfFew(t *testing.T) {
	for _, tt := range []struct {
		total int
		peer  string
	}{{150, ""}, {3, "one"}, {1, "one"}, {100, "one"}} {
		s := NewPool(tt.total, Tenth(tt.total))
		n := 0
		for over := (*Exceeded)(nil); over == nil; n++ {
			_, over = s.Take(tt.peer)
		}
		if n-1 != tt.total {
			t.Errorf("%q has %d of %d, want all", tt.peer, n-1, tt.total)
		}
	}
}
