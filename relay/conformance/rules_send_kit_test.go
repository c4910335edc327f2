package conformance_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// Types that only these tests know. Unknown types are sent last, so a change of
// the sentinel, made last, is the last response: it shows that nothing else was
// sent.
const (
	acmeThing    = "type.googleapis.com/acme.Thing"
	sentinelType = "type.googleapis.com/acme.Sentinel"
)

// wildcardTypes are those whose first empty request is a wildcard, one for each
// way in which SotW responses are made.
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

// opaque returns a resource of any type: nothing here looks inside.
func opaque(typeURL, name, text string) *anypb.Any {
	return relaytest.Opaque(typeURL, name, []byte(text))
}

// watchSentinel subscribes a client to the sentinel of an origin.
func watchSentinel(t *testing.T, o *relaytest.Origin, c *relaytest.Client) {
	t.Helper()
	o.Put(opaque(sentinelType, "sentinel", "begin"))
	c.Subscribe(sentinelType, "sentinel")
	recvAndAck(t, c, sentinelType, "sentinel")
}

// expectNoneInFlight shows that nothing is on its way to a client that watches the
// sentinel. What marks the change; it must not have been used before.
func expectNoneInFlight(t *testing.T, o *relaytest.Origin, c *relaytest.Client, what string) {
	t.Helper()
	c.Fence(t.Context(), sentinelType, "sentinel", func() { o.Put(opaque(sentinelType, "sentinel", what)) })
}

// awaitApplied waits until the relay has applied a change: another client, that
// wants nothing else, has received it.
func awaitApplied(t *testing.T, r *running, typeURL, name, text string) {
	t.Helper()
	awaitAppliedAs(t, r, typeURL, []string{name}, name, text)
}

// awaitAppliedAs is awaitApplied by another way of asking.
func awaitAppliedAs(t *testing.T, r *running, typeURL string, form []string, name, text string) {
	t.Helper()
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	defer c.Close()
	c.Subscribe(typeURL, form...)
	want := relaytest.DigestOf(opaque(typeURL, name, text))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeURL, name) == want })
}

// awaitRequestsRead returns when the relay has taken all that the client has sent: it has
// answered what was sent last.
func awaitRequestsRead(t *testing.T, o *relaytest.Origin, c *relaytest.Client) {
	t.Helper()
	o.Put(opaque(sentinelType, "sync", "sync"))
	c.Subscribe(sentinelType, "sync")
	recvAndAck(t, c, sentinelType, "sync")
	c.Unsubscribe(sentinelType, "sync")
}

// numberedNames returns n names in order.
func numberedNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	return names
}
