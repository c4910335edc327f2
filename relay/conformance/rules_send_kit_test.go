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
	sendAcme     = "type.googleapis.com/acme.Thing"
	sendSentinel = "type.googleapis.com/acme.Sentinel"
)

// wildcardTypes are those whose first empty request is a wildcard, one for each
// way in which SotW responses are made.
var wildcardTypes = []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.ScopedRouteType, sendAcme}

// sendOrigin starts an origin that has a resource of each name and type.
func sendOrigin(t *testing.T, opts relaytest.OriginOptions, types []string, names ...string) *relaytest.Origin {
	t.Helper()
	o := relaytest.NewOrigin(t, opts)
	o.Apply(func(tx *relaytest.Tx) {
		for _, typeURL := range types {
			for _, name := range names {
				tx.Put(sendThing(typeURL, name, "first"))
			}
		}
	})
	return o
}

// sendThing returns a resource of any type: nothing here looks inside.
func sendThing(typeURL, name, text string) *anypb.Any {
	return relaytest.Opaque(typeURL, name, []byte(text))
}

// sendWatchSentinel subscribes a client to the sentinel of an origin.
func sendWatchSentinel(t *testing.T, o *relaytest.Origin, c *relaytest.Client) {
	t.Helper()
	o.Put(sendThing(sendSentinel, "sentinel", "begin"))
	c.Subscribe(sendSentinel, "sentinel")
	streamTake(t, c, sendSentinel, "sentinel")
}

// sendQuiet shows that nothing is on its way to a client that watches the
// sentinel. What marks the change; it must not have been used before.
func sendQuiet(t *testing.T, o *relaytest.Origin, c *relaytest.Client, what string) {
	t.Helper()
	c.Fence(t.Context(), sendSentinel, "sentinel", func() { o.Put(sendThing(sendSentinel, "sentinel", what)) })
}

// sendSeen waits until the relay has applied a change: another client, that
// wants nothing else, has received it.
func sendSeen(t *testing.T, r *running, typeURL, name, text string) {
	t.Helper()
	sendHas(t, r, typeURL, []string{name}, name, text)
}

// sendHas is sendSeen by another way of asking.
func sendHas(t *testing.T, r *running, typeURL string, form []string, name, text string) {
	t.Helper()
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	defer c.Close()
	c.Subscribe(typeURL, form...)
	want := relaytest.DigestOf(sendThing(typeURL, name, text))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeURL, name) == want })
}

// sendSync returns when the relay has taken all that the client has sent: it has
// answered what was sent last.
func sendSync(t *testing.T, o *relaytest.Origin, c *relaytest.Client) {
	t.Helper()
	o.Put(sendThing(sendSentinel, "sync", "sync"))
	c.Subscribe(sendSentinel, "sync")
	streamTake(t, c, sendSentinel, "sync")
	c.Unsubscribe(sendSentinel, "sync")
}

// sendNames returns n names in order.
func sendNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	return names
}
