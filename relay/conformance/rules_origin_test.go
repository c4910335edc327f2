package conformance_test

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
)

// The relay ACKs each response of the origin at once, even if many clients do not read, do not answer or send
// NACKs.
func TestR032_SlowClientsDoNotDelayTheAck(t *testing.T) {
	t.Parallel()
	const slow, updates = 30, 10
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("web"))
		r := startMuted(t, o, "TENDER_ACK_WAIT=1s", "TENDER_SEND_TIMEOUT=1h")
		r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		for i := range slow {
			opts := relaytest.ClientOptions{Variant: relaytest.Variant(i % 2)}
			if i%3 == 0 {
				opts.AutoAck = true
				opts.Reject = func(*relaytest.Response) error { return fmt.Errorf("no") }
			}
			c := r.Client(opts)
			c.Subscribe(relaytest.ClusterType, "*")
			c.Recv(t.Context())
			if i%3 == 1 {
				c.Pause()
			}
		}
		for i := range updates {
			time.Sleep(2 * time.Second) // longer than the ACK timeout, so that sends to clients that do not read block
			body := bytes.Repeat([]byte{byte(i)}, 32<<10)
			began := time.Now()
			o.Set(relaytest.ClusterType, "web", relaytest.Opaque(relaytest.ClusterType, "web", body), fmt.Sprint(i))
			synctest.Wait()
			if st := o.State().Type(relaytest.ClusterType); st.Sent != i+2 || st.ACKs != i+2 || st.NACKs != 0 ||
				st.Strays != 0 || !time.Now().Equal(began) {
				t.Fatalf("%v after %d responses: %d ACKs, %d NACKs, %d other requests, want an ACK for each at once",
					time.Since(began), st.Sent, st.ACKs, st.NACKs, st.Strays)
			}
		}
	})
}

// Responses of the origin without changes, and those that violate the protocol, reach no client.
func TestR062_R063_R069_R091_NothingForClients(t *testing.T) {
	t.Parallel()
	cds := relaytest.ClusterType
	web := &discoverypb.Resource{Name: "web", Version: "9", Resource: relaytest.Opaque(cds, "web", []byte("bad"))}
	wrong := &discoverypb.Resource{Name: "web", Version: "9",
		Resource: relaytest.Opaque(relaytest.EndpointType, "web", nil)}
	tests := []struct {
		name string
		resp *discoverypb.DeltaDiscoveryResponse
	}{
		{"R062 duplicate", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{web, web}}},
		{"R063 other type", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{wrong}}},
		{"R069 unknown name", &discoverypb.DeltaDiscoveryResponse{RemovedResources: []string{"nope"}}},
		{"R091 system version", &discoverypb.DeltaDiscoveryResponse{SystemVersionInfo: "new"}},
	}
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		t.Run(v.String(), func(t *testing.T) {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			o.Put(relaytest.Cluster("web"))
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(cds, "*")
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(cds, "web") })
			for i, tt := range tests {
				tt.resp.TypeUrl = cds
				o.Inject(tt.resp)
				c.Fence(t.Context(), cds, "web", func() { o.Put(relaytest.Cluster("web", fmt.Sprint("service", i))) })
			}
		})
	}
}
