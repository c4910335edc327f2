package downstream

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// H10: a client answers after 12 seconds, while a resource changes each second. Its lag is limited by these 12 seconds
// and AckWait.
func TestH10_LagOfSlowClientIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}, AckWait: 5 * time.Second}))
		w.SetConnected(true)
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		c := serveScripted(t, server)
		number := slices.Collect(server.Clients())[0].Number
		c.request(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		c.answer("")
		const slow = 12
		answered := len(c.sent())
		sentAt := make(map[int]int) // second in which a response was sent
		var most time.Duration
		for second := range 300 {
			putClusters(t, w, fmt.Sprint(second), second%3)
			synctest.Wait()
			sent := c.sent()
			for n := answered; n < len(sent); n++ {
				if _, seen := sentAt[n]; !seen {
					sentAt[n] = second
				}
			}
			for ; answered < len(sent) && second-sentAt[answered] >= slow; answered++ {
				c.request(wire.Request{Nonce: sent[answered]})
			}
			time.Sleep(time.Second)
			status, _ := server.Client(number)
			most = max(most, status.Types[0].Lag)
		}
		if want := (slow + 6) * time.Second; most > want || most < slow*time.Second {
			t.Errorf("the largest lag is %v, want 12s to %v", most, want)
		}
		if status, _ := server.Client(number); status.Unread > 100_000 {
			t.Errorf("%d bytes are unread, want at most 100000", status.Unread)
		}
	})
}
