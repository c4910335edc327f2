package downstream

import (
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A countedGroup serves one view to every node, and has counters.
type countedGroup struct {
	view   *cache.View
	counts Counts
}

func (g *countedGroup) Join(*node, Caller) (Group, error) {
	return Group{View: g.view, Key: "all", Leave: func() {}, Counts: &g.counts}, nil
}

// TestCounts checks that each response and each answer is counted once, by type, in whichever copy of the counters.
func TestCounts(t *testing.T) {
	for _, tt := range deliveries {
		if tt.named > 100 {
			continue // same code as with fewer names
		}
		t.Run(tt.name, func(t *testing.T) {
			d := newDeliveryBench(t, tt.delta, tt.typeURL, tt.named, 100, 0)
			group := d.clients[0].st.cfg.Views.(*countedGroup)
			before := group.counts.Types()[tt.typeURL]
			for range 3 {
				d.change()
				d.deliver(t)
			}
			now := group.counts.Types()[tt.typeURL]
			const want = 3 * benchStreams
			if now.Responses-before.Responses != want || now.Acks-before.Acks != want || now.Nacks != 0 ||
				now.Bytes-before.Bytes < want {
				t.Errorf("after %d deliveries: %+v, before %+v", want, now, before)
			}
			d.change()
			d.clients[0].flush(t)
			d.clients[0].nack()
			if got := group.counts.Types()[tt.typeURL]; got.Nacks != 1 || got.Acks != now.Acks {
				t.Errorf("after a NACK: %+v, before %+v", got, now)
			}
		})
	}
}

// nack rejects the newest response.
func (c *benchClient) nack() {
	sub := c.st.subscription(c.typeURL)
	sub.ApplyRequest(&wire.Request{Delta: c.st.delta, TypeURL: c.typeURL, Nonce: c.last.Nonce, Rejected: true}, time.Now())
}

// TestCountsOfUnknownTypes checks that types that clients invent share counters, and that streams use all copies of
// these.
func TestCountsOfUnknownTypes(t *testing.T) {
	var c Counts
	copies := make(map[*tally]bool)
	for stream := range uint64(2 * tallyCount) {
		for _, typeURL := range []string{"a/b.C", "a/b.D", ""} {
			at := c.tally(typeURL, stream)
			at.Sent(10)
			copies[at] = true
		}
	}
	if got := c.Types(); len(got) != 1 || got[""] != (TypeStats{Responses: 6 * tallyCount, Bytes: 60 * tallyCount}) ||
		len(copies) != tallyCount {
		t.Errorf("got %+v in %d copies, want one sum and %d copies", got, len(copies), tallyCount)
	}
	var none *Counts
	none.tally("a/b.C", 1).Sent(1)
	none.tally("a/b.C", 1).Answered(true)
}

// TestDurations checks the bucket of durations: that of the least upper bound, or the last.
func TestDurations(t *testing.T) {
	for took, bucket := range map[time.Duration]int{
		-time.Second: 0, 0: 0, time.Millisecond: 0, time.Millisecond + 1: 1, time.Second: 9, time.Minute: len(Bounds) - 1,
		time.Minute + 1: len(Bounds),
	} {
		var d durations
		d.observe(took)
		d.observe(took)
		want := Distribution{Sum: 2 * max(took, 0)}
		want.Buckets[bucket] = 2
		if got := d.snapshot(); got != want || got.Count() != 2 {
			t.Errorf("%v, twice: got %+v, want %+v", took, got, want)
		}
	}
}
