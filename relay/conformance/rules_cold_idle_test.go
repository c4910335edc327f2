package conformance_test

import (
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// B8: a client that asks for nothing lacks nothing, whether or not the origin is there;
// its stream ends when it asks for what cannot be answered.
func TestB8_WhoAsksForNothingStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("idle"), TypeUrl: relaytest.EndpointType})
		time.Sleep(time.Minute)
		o.Stop()
		time.Sleep(time.Minute)
		c.Subscribe(relaytest.EndpointType, "a")
		began := time.Now()
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want %v", err, codes.Unavailable)
		}
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("it ended %v after something was asked for, want TENDER_COLD_WAIT", waited)
		}
		if got := r.Stats().Ended[guard.EndedCold]; got != 1 {
			t.Errorf("counted %d streams for which nothing was known, want 1", got)
		}
	})
}
