package downstream

import (
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// B.35: the goroutine that reads a connection handles an ACK itself, and nothing else: neither a request that may take
// time or wait, nor an ACK while another goroutine has the stream.
func TestB35_OnlyAcksAreHandledByTheReader(t *testing.T) {
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	putClusters(t, w, "1", 0, 1)
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	server := check.Must(New(Config{Views: oneView{view}}))
	c := newBenchClient(t, server, true, wire.ClusterType, []string{"*"})
	p := &pushed{stream: c.st}
	encode := func(r *discoverypb.DeltaDiscoveryRequest) []byte {
		r.TypeUrl = wire.ClusterType
		return check.Must(proto.Marshal(r))
	}
	change := func(version string) (ack []byte) {
		putClusters(t, w, version, 0, 1)
		c.flush(t)
		if c.st.bytesSent == c.st.bytesRead {
			t.Fatal("nothing was sent")
		}
		return encode(&discoverypb.DeltaDiscoveryRequest{ResponseNonce: c.last.Nonce})
	}
	if !p.Offer(change("2")) {
		t.Error("an ACK was not handled")
	}
	check.Equal(t, "unread bytes after the ACK", c.st.bytesSent-c.st.bytesRead, 0)
	ack := change("3")
	for name, request := range map[string][]byte{
		"subscription": encode(&discoverypb.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}}),
		"NACK":         encode(&discoverypb.DeltaDiscoveryRequest{ResponseNonce: c.last.Nonce, ErrorDetail: &status.Status{Code: 3}}),
		"other type":   check.Must(proto.Marshal(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t", ResponseNonce: "1"})),
		"malformed":    {0xff},
	} {
		if p.Offer(request) {
			t.Errorf("%s: handled by the reader", name)
		}
		p.left = nil
	}
	c.st.lock.acquire()
	if p.Offer(ack) {
		t.Error("an ACK was handled while another goroutine has the lock")
	}
	c.st.lock.release()
	p.Continue()
	check.Equal(t, "unread bytes after the second ACK", c.st.bytesSent-c.st.bytesRead, 0)
}

// TestB14_AckWakesNoStreamWithNothingToSend: an ACK wakes the stream only if a response may wait for it. That of endpoints
// does not, in either variant. Sets in which a client misses what was removed do: a removal may follow the ACK.
func TestB14_AckWakesNoStreamWithNothingToSend(t *testing.T) {
	for _, tt := range []struct {
		typeURL string
		delta   bool
		wakes   bool
	}{
		{wire.EndpointType, true, false}, {wire.EndpointType, false, false},
		{wire.ClusterType, true, false}, {wire.ClusterType, false, true},
	} {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		watch := view.Watch()
		watch.Subscribe(tt.typeURL, []string{benchName(0)})
		w.TakeDemand()
		put := func(version string) {
			r := benchResource(t, tt.typeURL, 0, version)
			w.Apply(cache.ByName, wire.Update{TypeURL: tt.typeURL, Resources: []*wire.Resource{r}})
		}
		put("1")
		c := newBenchClient(t, check.Must(New(Config{Views: oneView{view}})), tt.delta, tt.typeURL, []string{benchName(0)})
		before := c.sent
		put("2")
		c.flush(t)
		check.Equal(t, tt.typeURL+" responses", c.sent, before+1)
		if c.st.idle == tt.wakes { // an idle stream waits for no answer
			t.Errorf("%s, Delta %t: the ACK wakes the stream: %t, want %t", tt.typeURL, tt.delta, !c.st.idle, tt.wakes)
		}
		watch.Close()
	}
}
