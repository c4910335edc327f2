package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// openStreams returns the number of all streams to an origin, and of those that are open.
func openStreams(o *relaytest.Origin) (opened, open int) {
	for _, s := range o.State().Streams {
		if opened++; !s.Ended {
			open++
		}
	}
	return opened, open
}

// B.35: short-lived node groups open at most 600 streams per minute to the origin after the initial
// burst. The status shows waiting groups, and each is served in its turn.
func TestB35_OriginStreamsUnderChurn(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		const groups, rate, ofGroups, shared = 1200, 600, 2 * 4, 2 * 4
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_NODE_GROUP_BY=id", "TENDER_MAX_GROUPS=4", operated)
		client := func(id string) *relaytest.Client {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true, Node: relaytest.EnvoyNode(id)})
			c.Subscribe(typeCDS)
			return c
		}
		for i := range groups {
			c := client(fmt.Sprint("node-", i))
			time.Sleep(time.Minute / groups)
			c.Close()
			synctest.Wait()
		}
		if opened, _ := openStreams(o); opened > ofGroups+shared+rate || opened < ofGroups+shared {
			t.Errorf("%d groups opened %d streams in a minute, want %d at once and %d during the minute", groups, opened,
				ofGroups+shared, rate)
		}
		last := client("last")
		synctest.Wait()
		if n := statusOf(t, r).Origins[0].StreamsWaiting; n == 0 {
			t.Error("the status shows no waiting stream")
		}
		last.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a") })
		time.Sleep(settled)
		if n := statusOf(t, r).Origins[0].StreamsWaiting; n != 0 {
			t.Errorf("the status shows %d waiting streams, want none", n)
		}
	})
}

// B.35: the rate limit does not delay reconnects. When the origin restarts every minute, both streams of each
// group are open within three seconds: one for connections, two for streams.
func TestB35_AllGroupsReturnAtOnce(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		const groups = 60
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		r := startMuted(t, o, "TENDER_NODE_GROUP_BY=id", fmt.Sprint("TENDER_MAX_GROUPS=", groups))
		for i := range groups {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true,
				Node: relaytest.EnvoyNode(fmt.Sprint("node-", i))})
			c.Subscribe(typeCDS, "*", "a")
		}
		for range 2 {
			time.Sleep(time.Minute)
			o.Stop()
			time.Sleep(10 * time.Second)
			o.Restart()
			sleep(3 * time.Second)
			if _, open := openStreams(o); open != 2*groups {
				t.Errorf("%d streams are open, want two of each of %d groups", open, groups)
			}
		}
	})
}
