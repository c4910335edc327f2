package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// resident returns the resident memory of a relay in bytes, without the pages of its program file. It does not read the metrics,
// since a scrape allocates memory.
func (r *relayProcess) resident() int {
	r.tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Pid()))
	if err != nil {
		r.tb.Fatal(err)
	}
	_, value, _ := strings.Cut(string(status), "RssAnon:")
	var kib int
	if _, err := fmt.Sscan(value, &kib); err != nil {
		r.tb.Fatalf("no RssAnon in KiB in\n%s", status)
	}
	return kib << 10
}

// awaitReturned waits until a relay has returned three quarters of the memory that a burst took, beyond the memory before it.
func (r *relayProcess) awaitReturned(before int) {
	r.tb.Helper()
	peak := r.resident()
	r.Await("memory returned", func() error {
		if now := r.resident(); now > before+(peak-before)/4 {
			return fmt.Errorf("%d bytes are resident, %d before the burst and %d after it", now, before, peak)
		}
		return nil
	})
	r.tb.Logf("resident bytes: %d before the burst, %d after it, %d later", before, peak, r.resident())
}

// TestB35_MemoryOfResourcesIsReturned: the origin serves large clusters, changes all of them, and removes them. The relay
// then returns the memory to the operating system.
func TestB35_MemoryOfResourcesIsReturned(t *testing.T) {
	t.Parallel()
	const clusters, size = 500, 100_000
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("kept"))
	r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "TENDER_ADMIN_LISTEN=off") // without operators, it keeps no history
	c := relaytest.NewLightClient(t, r.conn(), relaytest.LightOptions{})
	c.Subscribe(relaytest.ClusterType)
	receives := func(n int) {
		t.Helper()
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == n })
	}
	receives(1)
	before := r.resident()
	for _, content := range []string{"first", "second"} {
		origin.Apply(func(tx *relaytest.Tx) {
			for i := range clusters {
				name := fmt.Sprint("large-", i)
				tx.Put(&clusterpb.Cluster{Name: name, AltStatName: content + strings.Repeat("x", size)})
			}
		})
		receives(clusters + 1)
	}
	origin.Apply(func(tx *relaytest.Tx) {
		for i := range clusters {
			tx.Remove(relaytest.ClusterType, fmt.Sprint("large-", i))
		}
	})
	receives(1)
	r.awaitReturned(before)
}

// TestB35_MemoryOfInventedNamesIsReturned: many clients subscribe to names that do not exist, and disconnect. The relay
// then returns the memory to the operating system.
func TestB35_MemoryOfInventedNamesIsReturned(t *testing.T) {
	t.Parallel()
	const peers, clients, names = 4, 200, 450
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("kept"))
	r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "TENDER_LINGER=1s", "TENDER_ADMIN_LISTEN=off")
	before := r.resident()
	var conns []*grpc.ClientConn
	for i := range clients {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprint("127.0.0.", 10+i%peers))}}
		conn := connect(t, r.addr, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return from.DialContext(ctx, "tcp", addr)
		}))
		conns = append(conns, conn)
		c := relaytest.NewLightClient(t, conn, relaytest.LightOptions{})
		var invented []string
		for n := range names {
			invented = append(invented, fmt.Sprintf("invented-%d-%d-%060d", i, n, 0))
		}
		c.Subscribe(relaytest.EndpointType, invented...)
		c.Subscribe(relaytest.ClusterType)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == 1 })
	}
	for _, conn := range conns {
		check.OK(t, conn.Close())
	}
	r.awaitReturned(before)
}
