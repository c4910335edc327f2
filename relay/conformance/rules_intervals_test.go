package conformance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// A poll gets a change after the minimum push interval at the earliest, and then the newest state.
func TestB45_Polls(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		version := c.poll("clusters", "", "").expectNames("a")
		time.Sleep(time.Minute)
		o.Put(relaytest.Cluster("b"))
		synctest.Wait()
		version = c.poll("clusters", "", version).expectDuration(0).expectNames("a", "b")
		held := c.pollAsync(t.Context(), "clusters", "30000", version)
		for _, name := range []string{"c", "d"} {
			expectHeld(t, held, 100*time.Millisecond)
			o.Put(relaytest.Cluster(name))
		}
		synctest.Wait()
		c.poll("clusters", "", "").expectNames("a", "b") // like other clients
		expectHeld(t, held, 799*time.Millisecond)
		time.Sleep(time.Millisecond)
		expectAnswered(t, held).expectDuration(time.Second).expectNames("a", "b", "c", "d")
	}, "TENDER_MIN_PUSH_INTERVAL=cds=1s")
}

// A poll that already has a change from another replica, which waits for the interval here, does not get the older
// state.
func TestB45_ReplicasDoNotRevert(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		replica := restPoller(t, start(t, o), false)
		o.Put(relaytest.Cluster("a"))
		c.poll("clusters", "", "").expectNames("a")
		replica.poll("clusters", "", "").expectNames("a")
		time.Sleep(time.Minute)
		for _, name := range []string{"b", "c"} {
			o.Put(relaytest.Cluster(name))
			synctest.Wait()
		}
		newest := replica.poll("clusters", "", "").expectNames("a", "b", "c")
		c.poll("clusters", "", "").expectNames("a", "b")
		c.poll("clusters", "100", newest).expectNotModified()
	}, "TENDER_MIN_PUSH_INTERVAL=cds=1s")
}
