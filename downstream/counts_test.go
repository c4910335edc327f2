package downstream

import (
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A countedGroup serves one view to every node, and counts.
type countedGroup struct {
	view   *cache.View
	counts Counts
}

func (g *countedGroup) Join(*node, Caller) (Group, error) {
	return Group{View: g.view, Key: "all", Leave: func() {}, Counts: &g.counts}, nil
}

// TestCounts holds that each delivery and each answer is counted once, by type, whichever
// place a stream counts in.
func TestCounts(t *testing.T) {
	for _, tt := range deliveries {
		if tt.named > 100 {
			continue // as those with fewer names
		}
		t.Run(tt.name, func(t *testing.T) {
			d := newDelivering(t, tt.delta, tt.typeURL, tt.named, 100, 0)
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
			d.clients[0].nack()
			if got := group.counts.Types()[tt.typeURL]; got.Nacks != 1 || got.Acks != now.Acks {
				t.Errorf("after a NACK: %+v, before %+v", got, now)
			}
		})
	}
}

// nack refuses what the client was sent last.
func (c *benchClient) nack() {
	sub := c.st.subscription(c.typeURL)
	sub.ApplyRequest(&wire.Request{Delta: c.st.delta, TypeURL: c.typeURL, Nonce: c.last.Nonce, Refused: true}, time.Now())
}

// TestCountsOfUnknownTypes holds that types that clients make up are counted together, and
// that streams spread over the places.
func TestCountsOfUnknownTypes(t *testing.T) {
	var c Counts
	places := make(map[*tally]bool)
	for stream := range uint64(2 * tallyCount) {
		for _, typeURL := range []string{"a/b.C", "a/b.D", ""} {
			at := c.tally(typeURL, stream)
			at.Sent(10)
			places[at] = true
		}
	}
	if got := c.Types(); len(got) != 1 || got[""] != (TypeStats{Responses: 6 * tallyCount, Bytes: 60 * tallyCount}) ||
		len(places) != tallyCount {
		t.Errorf("counted %+v in %d places", got, len(places))
	}
	var nobody *Counts
	nobody.tally("a/b.C", 1).Sent(1)
	nobody.tally("a/b.C", 1).Answered(true)
}
