package conformance_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// from makes clients connect from an address of this host.
func from(host string) grpc.DialOption {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	})
}

// pollOf polls for clusters as a node of a cluster, and returns the status code.
func pollOf(t *testing.T, r *running, cluster string) int {
	t.Helper()
	resp, err := http.Post("http://"+r.RESTAddrs()[0].String()+"/v3/discovery:clusters", "application/json",
		strings.NewReader(`{"node": {"id": "p", "cluster": "`+cluster+`"}}`))
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	return resp.StatusCode
}

// awaitStreams waits until the relay has n streams.
func awaitStreams(t *testing.T, r *running, n int) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(relaytest.Patience); r.Streams() != n; <-look.C {
		if time.Now().After(end) {
			t.Fatalf("got %d streams, want %d", r.Streams(), n)
		}
	}
}

// B.35: once half of the possible groups exist, the number of groups that one address may have created is limited.
// Clients may join existing groups, and other addresses may create groups. A group without clients counts until it
// ends, and is evicted for a new one of the same address. The same applies to polls.
func TestB35_GroupsPerPeer(t *testing.T) {
	noLeaks(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := start(t, o, "TENDER_NODE_GROUP_BY=cluster", "TENDER_MAX_GROUPS=4", "TENDER_MAX_GROUPS_PER_CLIENT=2")
	dial := r.DialOptions
	client := func(host, cluster string) *relaytest.Client {
		r.DialOptions = append(dial[:len(dial):len(dial)], from(host))
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true,
			Node: groupedNode(func(n *corepb.Node) { n.Cluster = cluster })})
		c.Subscribe(typeCDS)
		return c
	}
	served := func(host, cluster string) *relaytest.Client {
		t.Helper()
		c := client(host, cluster)
		expectNames(t, c.Recv(t.Context()), typeCDS, "a")
		return c
	}
	refused := func(host, cluster string) {
		t.Helper()
		err := client(host, cluster).WaitEnd(t.Context())
		if got := status.Convert(err); got.Code() != codes.ResourceExhausted || !strings.Contains(got.Message(), host+":") ||
			!strings.HasSuffix(got.Message(), "(TENDER_MAX_GROUPS_PER_CLIENT)") {
			t.Errorf("%s in group %s got %v, want ResourceExhausted with the address and the variable", host, cluster, err)
		}
	}
	one := served("127.0.0.1", "one")
	two := served("127.0.0.1", "two")
	refused("127.0.0.1", "three")
	other := served("127.0.0.2", "three")
	served("127.0.0.1", "three") // created by the other address
	served("127.0.0.2", "two")
	if code := pollOf(t, r, "four"); code != http.StatusTooManyRequests {
		t.Errorf("a poll over the limit got status %d, want %d", code, http.StatusTooManyRequests)
	}

	two.Close() // not the group's last client
	other.Close()
	refused("127.0.0.1", "four")
	one.Close()
	awaitStreams(t, r, 2)
	served("127.0.0.1", "four")
	refused("127.0.0.1", "one") // it was evicted
	if s := r.Stats(); s.Refused[guard.LimitPeerGroups] != 4 {
		t.Errorf("got the counts %+v, want 4 refusals for the limit", s)
	}
}
