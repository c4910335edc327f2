package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A blob is a resource of any size.
const (
	blobType = "type.googleapis.com/faults.Blob"
	blobName = "blob"
)

// putBlob gives the blob content number i of a size in bytes. is reports whether a client has that content.
func putBlob(o *relaytest.Origin, size, i int) (is func(relaytest.State) bool) {
	body := relaytest.Opaque(blobType, blobName, bytes.Repeat(fmt.Appendf(nil, "%8d", i), size/8))
	o.Set(blobType, blobName, body, fmt.Sprint(i))
	want := relaytest.DigestOf(body)
	return func(s relaytest.State) bool { return s.Digest(blobType, blobName) == want }
}

// awaits waits until cond returns true for the metrics page.
func (r met) awaits(what string, cond func(page []byte) bool) {
	r.tb.Helper()
	for ctx := within(r.tb, 2*relaytest.Patience); ; {
		page := r.page("/metrics")
		if cond(page) {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond): // metrics have no notification, so poll
		case <-ctx.Done():
			r.tb.Fatalf("timeout waiting for %s:\n%s", what, page)
		}
	}
}

// TestC22_B34_HalfOpenClientsAreFound: the connections of some clients lose all data without being closed. Some of
// these clients are idle, some have not acknowledged a response, and to some a send blocks. The relay detects and
// counts all of them, and releases their state. Other clients receive each change.
func TestC22_B34_HalfOpenClientsAreFound(t *testing.T) {
	t.Parallel()
	const size = 48 << 10 // two blobs exceed the flow-control window of a client that does not read
	const group = `group="user_agent_name=lost"`
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("c"))
	newest := putBlob(origin, size, 0)
	r := run(t, relay.Options{PingAfter: time.Second, PingTimeout: 15 * time.Second},
		"TENDER_ORIGIN="+origin.Addr(), "TENDER_ACK_WAIT=100ms", "TENDER_LINGER=1s")
	link := proxy.New(t, r.addr)

	var stay, lost []*relaytest.Client
	for _, v := range variants {
		c := r.client(v, fmt.Sprint(v))
		c.Subscribe(blobType)
		c.WaitState(t.Context(), newest)
		stay = append(stay, c)
		join := func(auto bool, typeURL string, names ...string) {
			node := &corepb.Node{Id: fmt.Sprintf("%v %d", v, len(lost)), UserAgentName: "lost"}
			c := relaytest.NewClient(t, connect(t, link.Addr()), relaytest.ClientOptions{Variant: v, AutoAck: auto, Node: node})
			c.Subscribe(typeURL, names...)
			c.Recv(t.Context())
			lost = append(lost, c)
		}
		join(true, relaytest.ClusterType)
		join(false, relaytest.ClusterType, "c")
		join(true, blobType)
	}
	r.counts(`tender_client_streams 8`, fmt.Sprintf(`tender_client_group_streams\{%s\} %d`, group, len(lost)))

	link.Set(proxy.Link{Up: proxy.Way{Hold: true}, Down: proxy.Way{Hold: true}})
	change := func(i int) {
		newest := putBlob(origin, size, i)
		for _, c := range stay {
			c.WaitState(t.Context(), newest)
		}
	}
	i := 0
	r.awaits("the removal of the group of half-open clients", func(page []byte) bool {
		i++
		change(i)
		return !bytes.Contains(page, []byte(group))
	})
	r.counts(`tender_client_streams 2`, fmt.Sprintf(`tender_client_streams_ended_total\{reason="client"\} %d`, len(lost)),
		`tender_client_streams_ended_total\{reason="stalled"\} 0`)
	change(i + 1)
	for _, c := range stay {
		if c.Ended() {
			t.Errorf("the stream of %v, whose connection is not half-open, ended: %v", c, c.WaitEnd(context.Background()))
		}
	}
	for _, c := range lost {
		if c.Ended() {
			t.Errorf("the half-open client %v received the end of its stream", c)
		}
	}
	if n := link.State().Open; n != len(lost) {
		t.Errorf("%d half-open connections at the proxy, want %d: a close passed through", n, len(lost))
	}
}
