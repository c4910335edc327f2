package conformance_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// Types that the relay does not know. Their resources are sent last, so the sentinel's last change arrives after
// all other responses.
const (
	acmeThing    = "type.googleapis.com/acme.Thing"
	sentinelType = "type.googleapis.com/acme.Sentinel"
)

// wildcardTypes are types with a legacy wildcard, one for each way in which the relay builds SotW responses.
var wildcardTypes = []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.ScopedRouteType, acmeThing}

// originWith starts an origin that has a resource of each name and type.
func originWith(t *testing.T, opts relaytest.OriginOptions, types []string, names ...string) *relaytest.Origin {
	t.Helper()
	o := relaytest.NewOrigin(t, opts)
	o.Apply(func(tx *relaytest.Tx) {
		for _, typeURL := range types {
			for _, name := range names {
				tx.Put(opaque(typeURL, name, "first"))
			}
		}
	})
	return o
}

// opaque returns a resource of any type; its content need not be valid.
func opaque(typeURL, name, text string) *anypb.Any {
	return relaytest.Opaque(typeURL, name, []byte(text))
}

// watchSentinel subscribes a client to the origin's sentinel.
func watchSentinel(t *testing.T, o *relaytest.Origin, c *relaytest.Client) {
	t.Helper()
	o.Put(opaque(sentinelType, "sentinel", "begin"))
	c.Subscribe(sentinelType, "sentinel")
	recvAndAck(t, c, sentinelType, "sentinel")
}

// expectNoneInFlight fails the test if responses are in flight to a client that watches the sentinel. mark is the
// sentinel's next content, and must be new.
func expectNoneInFlight(t *testing.T, o *relaytest.Origin, c *relaytest.Client, mark string) {
	t.Helper()
	c.Fence(t.Context(), sentinelType, "sentinel", func() { o.Put(opaque(sentinelType, "sentinel", mark)) })
}

// awaitApplied waits until the relay has applied a change: another client has received it.
func awaitApplied(t *testing.T, r *running, typeURL, name, text string) {
	t.Helper()
	awaitAppliedAs(t, r, typeURL, []string{name}, name, text)
}

// awaitAppliedAs is awaitApplied with another form of subscription.
func awaitAppliedAs(t *testing.T, r *running, typeURL string, form []string, name, text string) {
	t.Helper()
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	defer c.Close()
	c.Subscribe(typeURL, form...)
	want := relaytest.DigestOf(opaque(typeURL, name, text))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeURL, name) == want })
}

// awaitRequestsRead waits until the relay has processed the client's requests: it has answered the last one.
func awaitRequestsRead(t *testing.T, o *relaytest.Origin, c *relaytest.Client) {
	t.Helper()
	o.Put(opaque(sentinelType, "sync", "sync"))
	c.Subscribe(sentinelType, "sync")
	recvAndAck(t, c, sentinelType, "sync")
	c.Unsubscribe(sentinelType, "sync")
}

// numberedNames returns n sorted names.
func numberedNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	return names
}
