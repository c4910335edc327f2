package downstream

import (
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestQuotes: a name is quoted by itself, and not as a part of a longer one.
func TestQuotes(t *testing.T) {
	for _, tt := range []struct {
		text, name string
		want       bool
	}{
		{"Error adding/updating listener(s) web: bad filter", "web", true},
		{"web", "web", true},
		{`cluster "a|b": no`, "a|b", true},
		{"no cluster outbound|80||a.b.svc.", "outbound|80||a.b.svc", true},
		{"web-2 and web2 and my/web and the web", "web", true},
		{"web-2 and web2 and my/web and _web", "web", false},
		{"anything", "", false},
		{"", "web", false},
	} {
		if got := quotes(tt.text, tt.name); got != tt.want {
			t.Errorf("%q quotes %q: %v, want %v", tt.text, tt.name, got, tt.want)
		}
	}
}

// newRejectingBench returns a server with clients of a wildcard set, of which each n-th rejects a change.
func newRejectingBench(b testing.TB, clients, n, resources int) *Server {
	d := newDeliveryBench(b, true, wire.ClusterType, 0, resources, 0)
	server := d.clients[0].st.server
	for len(d.clients) < clients {
		d.clients = append(d.clients, newBenchClient(b, server, true, wire.ClusterType, nil))
	}
	d.change()
	for i, c := range d.clients {
		c.st.number = uint64(i + 1)
		server.registry.Store(c.st.number, c.st)
		c.flush(b)
		if i%n > 0 {
			c.ack(b)
			continue
		}
		nack := &wire.Request{Delta: true, TypeURL: c.typeURL, Nonce: c.last.Nonce, Rejected: true, ErrorMessage: "no " + benchName(7)}
		check.OK(b, c.st.handleNow(nack, time.Now()))
	}
	return server
}

// TestB10_RejectionsAreCounted: each client that is served the rejected content counts, and each that rejects it.
func TestB10_RejectionsAreCounted(t *testing.T) {
	all := newRejectingBench(t, 120, 4, 50).RejectedResources()
	if len(all) != 1 || all[0].Name != benchName(7) || all[0].Rejecting != 30 || all[0].Clients != 120 || all[0].First == nil {
		t.Errorf("rejections %+v, want %s by 30 of 120 clients", all, benchName(7))
	}
}

// BenchmarkRejectedResources looks for what clients reject, as a relay does each second while any of them rejects something.
func BenchmarkRejectedResources(b *testing.B) {
	for name, n := range map[string]int{"1 of 5000 clients": 5000, "all of 5000 clients": 1} {
		b.Run(name, func(b *testing.B) {
			server := newRejectingBench(b, 5000, n, 1000)
			for b.Loop() {
				if len(server.RejectedResources()) != 1 {
					b.Fatal("no rejection")
				}
			}
		})
	}
}
