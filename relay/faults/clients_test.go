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

// A blob is a resource that is as large as it is to be.
const (
	blobType = "type.googleapis.com/faults.Blob"
	blobName = "blob"
)

func putBlob(o *relaytest.Origin, size, i int) (is func(relaytest.State) bool) {
	body := relaytest.Opaque(blobType, blobName, bytes.Repeat(fmt.Appendf(nil, "%8d", i), size/8))
	o.Set(blobType, blobName, body, fmt.Sprint(i))
	want := relaytest.DigestOf(body)
	return func(s relaytest.State) bool { return s.Digest(blobType, blobName) == want }
}

// awaits waits until a condition holds of the metrics.
func (r met) awaits(what string, cond func(page []byte) bool) {
	r.tb.Helper()
	for ctx := within(r.tb, 2*relaytest.Patience); ; {
		page := r.page("/metrics")
		if cond(page) {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond): // nobody tells of a change
		case <-ctx.Done():
			r.tb.Fatalf("waited for %s:\n%s", what, page)
		}
	}
}

// From some time on nothing passes between some clients and the relay, and neither is told: those
// that were quiet, that owe an answer, and to which a send blocks. The relay finds all of
// them, counts them and is rid of all that they had; the others are told of each change.
func TestC22_B34_HalfOpenClientsAreFound(t *testing.T) {
	t.Parallel()
	const size = 48 << 10 // two are more than fits on the way to a client that does not read
	const group = `group="user_agent_name=lost"`
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("c"))
	newest := putBlob(origin, size, 0)
	r := run(t, relay.Options{PingAfter: time.Second, PingTimeout: 15 * time.Second},
		"TENDER_ORIGIN="+origin.Addr(), "TENDER_ACK_WAIT=100ms", "TENDER_LINGER=1s", "TENDER_WILDCARD_LINGER=1s")
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
	r.awaits("the end of what half-open clients had", func(page []byte) bool {
		i++
		change(i)
		return !bytes.Contains(page, []byte(group))
	})
	r.counts(`tender_client_streams 2`, fmt.Sprintf(`tender_client_streams_ended_total\{reason="client"\} %d`, len(lost)),
		`tender_client_streams_ended_total\{reason="stalled"\} 0`)
	change(i + 1)
	for _, c := range stay {
		if c.Ended() {
			t.Errorf("the stream of %v, which was there all the time, has ended: %v", c, c.WaitEnd(context.Background()))
		}
	}
	for _, c := range lost {
		if c.Ended() {
			t.Errorf("%v was told that its stream has ended", c)
		}
	}
	if n := link.State().Open; n != len(lost) {
		t.Errorf("%d half-open connections are left of %d: somebody was told", n, len(lost))
	}
}
