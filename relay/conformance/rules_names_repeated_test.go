package conformance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// A SotW client that repeats many names in each ACK has its last list as subscription, also after it adds and
// removes names.
func TestR036_RepeatedNames(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		names := make([]string, 101)
		for i := range names {
			names[i] = fmt.Sprintf("e%03d", i)
			o.Put(relaytest.Endpoints(names[i], "10.0.0.1:80"))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true})
		expectChange := func(what string, changed string, addr string) {
			t.Helper()
			before := c.State()[relaytest.EndpointType][changed]
			o.Put(relaytest.Endpoints(changed, addr))
			time.Sleep(10 * time.Second) // virtual time
			if after := c.State()[relaytest.EndpointType][changed]; after == before {
				t.Errorf("%s: the client got no change of %s: %v", what, changed, after)
			}
		}
		c.Subscribe(relaytest.EndpointType, names[:100]...)
		time.Sleep(10 * time.Second) // virtual time
		for i, name := range names[:5] {
			expectChange("100 names", name, fmt.Sprint("10.0.0.2:", 80+i))
		}
		c.Subscribe(relaytest.EndpointType, names[100])
		time.Sleep(10 * time.Second) // virtual time
		expectChange("one more", names[100], "10.0.0.3:80")
		c.Unsubscribe(relaytest.EndpointType, names[100])
		expectChange("one less", names[0], "10.0.0.4:80")
		before := len(c.Responses())
		o.Put(relaytest.Endpoints(names[100], "10.0.0.5:80"))
		time.Sleep(10 * time.Second) // virtual time
		if n := len(c.Responses()); n != before {
			t.Errorf("the client got %d responses for a name after it had unsubscribed", n-before)
		}
		c.Subscribe(relaytest.EndpointType, names[100])
		time.Sleep(10 * time.Second) // virtual time
		expectChange("one more name", names[100], "10.0.0.6:80")
	})
}
