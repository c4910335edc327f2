package conformance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// outageParts are the kinds of outage, and how each ends.
var outageParts = []struct {
	name string
	stop func(o *relaytest.Origin)
	end  func(o *relaytest.Origin)
}{
	{"killed", func(o *relaytest.Origin) { o.Stop(); outageLasts(2) }, (*relaytest.Origin).Restart},
	{"half-open", func(o *relaytest.Origin) { o.Freeze(true); outageLasts(1) },
		func(o *relaytest.Origin) { o.Freeze(false) }},
	{"mute", func(o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		o.Restart()
		outageLasts(1)
	}, func(o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.Manual = false })
		o.Restart()
	}},
	{"coming and going", func(o *relaytest.Origin) {
		for range 6 {
			o.Stop()
			outageLasts(1.0 / 12)
			o.Restart()
			outageLasts(1.0 / 12)
		}
	}, func(*relaytest.Origin) {}},
	{"draining", func(o *relaytest.Origin) {
		for range 6 {
			o.GoAway()
			outageLasts(1.0 / 6)
		}
	}, (*relaytest.Origin).Restart},
}

// B.8, B.15: during six hours of outages, clients keep their streams and resources and get no response, and new
// clients are served. Afterwards unchanged resources cause no response, and changes are sent. Package faults tests
// outages at the socket level.
func TestB8_B15_C29_R068_R112_HoursWithoutOrigin(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(chainResources("1")...)
		r := start(t, o)
		early := outageClients(r, "early")
		outageLasts(0.1)
		var counts []int
		for _, c := range early {
			outageServed(t, c)
			counts = append(counts, len(c.Responses()))
		}
		for n, part := range outageParts {
			part.stop(o)
			for _, c := range outageClients(r, "newcomer while "+part.name) {
				outageLasts(0.01)
				outageServed(t, c)
				c.Close()
			}
			part.end(o)
			outageLasts(0.1)
			for i, c := range early {
				outageServed(t, c)
				if more := c.Responses()[counts[i]:]; len(more) > 0 {
					t.Fatalf("%s: %v got %v, want no response", part.name, c, more)
				}
			}
			o.Put(relaytest.StaticCluster("c", fmt.Sprint("127.0.0.1:", 99+n)))
			outageLasts(0.1)
			for i, c := range early {
				if more := c.Responses()[counts[i]:]; len(more) != 1 {
					t.Errorf("%s: %v got %v, want the change", part.name, c, more)
				}
				counts[i]++
			}
		}
	})
}

// outageLasts lets virtual time pass.
func outageLasts(hours float64) {
	sleep(time.Duration(hours * float64(time.Hour)))
}

// outageClients returns a client of each variant.
func outageClients(r *running, id string) []*relaytest.Client {
	return r.bothVariants(relaytest.ClientOptions{Node: relaytest.EnvoyNode(id)}, func(c *relaytest.Client) {
		c.Subscribe(typeCDS)
		c.Subscribe(typeEDS, "a", "b")
		c.Subscribe(typeLDS)
	})
}

// outageServed fails the test unless a client has its stream and all resources, and got no removal.
func outageServed(t *testing.T, c *relaytest.Client) {
	t.Helper()
	s := c.State()
	if c.Ended() || len(s[typeCDS]) != 3 || len(s[typeEDS]) != 2 || len(s[typeLDS]) != 2 {
		t.Errorf("%v: stream ended: %v; resources %v", c, c.Ended(), s)
	}
	for _, resp := range c.Responses() {
		if len(resp.Removed) > 0 {
			t.Errorf("%v got removals: %v", c, resp)
		}
	}
}
