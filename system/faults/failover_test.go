package faults_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/logs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestB40_NameWithABrokenAddress: of two addresses of a name, one accepts connections and ends every stream. A relay
// without state is ready and serves clients, whichever address it connects to first.
func TestB40_NameWithABrokenAddress(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	var refused atomic.Int64
	broken := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		refused.Add(1)
		return status.Error(codes.ResourceExhausted, "try another server")
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- broken.Serve(l) }() // awaited below
	t.Cleanup(func() {
		broken.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	const name = "origin.test:18000"
	hosts.Set(t, name, l.Addr().String(), plane.addr)
	for i := 0; refused.Load() == 0; i++ { // half of the relays connect to the broken server first
		log := new(logs.Log)
		r := run(t, relay.Options{Logger: slog.New(slog.NewJSONHandler(log, nil))}, "TENDER_ORIGIN=dns:///"+name)
		c := r.client(relaytest.Delta, fmt.Sprint("cold ", i))
		subscribe(c)
		served(t, 1000, c)
		if refused.Load() > 0 {
			check.Equal(t, "lines about the address", log.Count("origin address ends all streams"), 1)
			r.counts(`tender_origin_streams_ended_total\{.*reason="RESOURCE_EXHAUSTED"\} [1-9].*`)
			r.counts(`tender_origin_addresses_failed\{origin="default"\} 1`)
			failed := r.failedAddresses()
			if len(failed) != 1 || failed[0].Target != "dns:///"+name || failed[0].Address != l.Addr().String() ||
				failed[0].Since.IsZero() || !strings.Contains(failed[0].Error, "try another server") {
				t.Errorf("failed addresses: %+v, want %s with the error of its streams", failed, l.Addr())
			}
			text := r.output("status")
			if want := l.Addr().String() + " of dns:///" + name + " is NOT USED for "; !strings.Contains(text, want) {
				t.Errorf("tender status:\n%s\nwant %q", text, want)
			}
		}
	}
}

// failedAddresses returns the failed addresses of the primary origin in the status.
func (r met) failedAddresses() []admin.FailedAddress {
	r.tb.Helper()
	var s admin.Status
	if err := json.Unmarshal(r.page("/api/v1/status"), &s); err != nil {
		r.tb.Fatal(err)
	}
	return s.Origins[0].FailedAddresses
}

// TestB40_AddressesAndOrigins: when one address of an origin fails, the relay connects to the next one. Clients
// receive only the changes that come from there. A separate origin for one type is down all the time. Other types
// keep changing, its resources stay, and new clients receive both. (B.40)
func TestB40_AddressesAndOrigins(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	one, two, other := proxy.New(t, plane.addr), proxy.New(t, plane.addr), proxy.New(t, plane.addr)
	r := serve(t, "TENDER_ORIGIN="+one.Addr()+","+two.Addr(), "TENDER_ORIGINS=routes="+other.Addr(), "TENDER_ROUTES=type:"+relaytest.RouteType+"=routes")
	join := func(id string) (clients []*relaytest.Client) {
		for _, v := range variants {
			c := r.client(v, fmt.Sprint(id, " ", v))
			subscribe(c)
			clients = append(clients, c)
		}
		return clients
	}
	clients := join("early")
	served(t, 1000, clients...)
	plane.change(2000) // earlier responses arrive before this change
	served(t, 2000, clients...)
	before := len(clients[0].Responses())

	other.Set(proxy.Link{Refuse: true})
	other.Reset()
	mark := r.Mark()
	one.Set(proxy.Link{Refuse: true})
	one.Reset()
	r.AwaitLine(mark, "connected to the origin")
	if s := two.State(); s.Open == 0 {
		t.Errorf("the relay is connected, but not to the second address: %+v", s)
	}
	plane.change(3000)
	served(t, 3000, append(clients, join("late")...)...)
	if failed := r.failedAddresses(); len(failed) != 1 || failed[0].Target != one.Addr() || failed[0].Address != "" || failed[0].Error == "" {
		t.Errorf("failed addresses: %+v, want the first target with its error", failed)
	}

	mark = r.Mark()
	one.Set(proxy.Link{})
	two.Set(proxy.Link{Refuse: true})
	two.Reset()
	r.AwaitLine(mark, "connected to the origin")
	plane.change(4000)
	served(t, 4000, clients...)
	if failed := r.failedAddresses(); len(failed) > 0 {
		t.Errorf("failed addresses: %+v, want none while the first target is used", failed)
	}
	for _, c := range clients {
		if c.Ended() {
			t.Errorf("%v: the stream ended", c)
		}
		for _, resp := range c.Responses() {
			if len(resp.Removed) > 0 {
				t.Errorf("%v received removals: %v", c, resp)
			}
		}
	}
	if after := clients[0].Responses()[before:]; len(after) != 2 {
		t.Errorf("%v received %v, want the two changes", clients[0], after)
	}
}
