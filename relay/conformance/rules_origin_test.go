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

// The origin has every response acknowledged at once, however many clients do not
// read, do not answer, or refuse: no timer and no client is waited for.
func TestR032_SlowClientsDoNotDelayTheAck(t *testing.T) {
	t.Parallel()
	const slow, updates = 90, 20
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("web"))
		r := startMuted(t, o, "TENDER_ACK_WAIT=1s", "TENDER_SEND_STALL=1h")
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
			time.Sleep(2 * time.Second) // past the ACK wait, so that sends to those that do not read block
			body := bytes.Repeat([]byte{byte(i)}, 32<<10)
			began := time.Now()
			o.Set(relaytest.ClusterType, "web", relaytest.Opaque(relaytest.ClusterType, "web", body), fmt.Sprint(i))
			synctest.Wait()
			if st := o.State().Type(relaytest.ClusterType); st.Sent != i+2 || st.ACKs != i+2 || st.NACKs != 0 || st.Strays != 0 || !time.Now().Equal(began) {
				t.Fatalf("%v after %d responses: %d ACKs, %d NACKs, %d strays, want an ACK for each at once",
					time.Since(began), st.Sent, st.ACKs, st.NACKs, st.Strays)
			}
		}
	})
}

// What the origin says that changes nothing, or that breaks the protocol, reaches
// no client.
func TestR062_R063_R069_R091_NothingForClients(t *testing.T) {
	t.Parallel()
	cds := relaytest.ClusterType
	web := &discoverypb.Resource{Name: "web", Version: "9", Resource: relaytest.Opaque(cds, "web", []byte("bad"))}
	wrong := &discoverypb.Resource{Name: "web", Version: "9", Resource: relaytest.Opaque(relaytest.EndpointType, "web", nil)}
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

// A resync moves nothing at clients that have it all, whatever the origin makes of
// what it is told; what changed meanwhile reaches them.
func TestB15_ResyncIsQuietForClients(t *testing.T) {
	t.Parallel()
	for _, b := range []relaytest.Behaviour{{}, {IgnoreIRV: true}, {IgnoreIRV: true, EmptyVersions: true}} {
		t.Run(fmt.Sprintf("ignore=%v empty=%v", b.IgnoreIRV, b.EmptyVersions), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b})
				o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
				r := start(t, o)
				var clients []*relaytest.Client
				for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
					c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
					c.Subscribe(relaytest.ClusterType, "*")
					c.Subscribe(relaytest.EndpointType, "a")
					clients = append(clients, c)
				}
				rest := func() {
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				rest()
				seen := func(c *relaytest.Client) int { return len(c.Responses()) }
				before := []int{seen(clients[0]), seen(clients[1])}
				for range 3 {
					o.Restart()
					rest()
				}
				for i, c := range clients {
					if n := seen(c) - before[i]; n != 0 {
						t.Errorf("%v got %d responses, want none: %v", c, n, c.Responses()[before[i]:])
					}
				}
				o.Stop()
				o.Put(relaytest.Cluster("a", "other"))
				o.Remove(relaytest.ClusterType, "b")
				o.Restart()
				rest()
				for _, c := range clients {
					if s := c.State(); !s.Has(relaytest.ClusterType, "a") ||
						s.Digest(relaytest.ClusterType, "a") != relaytest.DigestOf(relaytest.Cluster("a", "other")) {
						t.Errorf("%v has clusters %v, want the new a only", c, s.Names(relaytest.ClusterType))
					}
				}
				r.Stop()
			})
		})
	}
}

// A mass of inferred deletions does not reach a client before the hold is over.
func TestB15_C15_HoldProtectsClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: relaytest.Behaviour{IgnoreIRV: true}})
		names := make([]string, 40)
		for i := range names {
			names[i] = fmt.Sprintf("c%02d", i)
			o.Put(relaytest.Cluster(names[i]))
		}
		r := start(t, o)
		var clients []*relaytest.Client
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(relaytest.ClusterType, "*")
			clients = append(clients, c)
		}
		rest := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		rest(10 * time.Second)
		o.Stop()
		for _, name := range names[20:] {
			o.Remove(relaytest.ClusterType, name)
		}
		o.Restart()
		rest(9 * time.Minute)
		// A client that comes during the hold gets it all, too.
		late := r.Client(relaytest.ClientOptions{AutoAck: true})
		late.Subscribe(relaytest.ClusterType, "*")
		rest(time.Second)
		clients = append(clients, late)
		for _, c := range clients {
			if s := c.State(); !s.Has(relaytest.ClusterType, names...) {
				t.Errorf("%v has %d clusters after 9 minutes, want 40", c, len(s.Names(relaytest.ClusterType)))
			}
		}
		rest(5 * time.Minute)
		for _, c := range clients {
			if s := c.State(); !s.Has(relaytest.ClusterType, names[:20]...) {
				t.Errorf("%v has %d clusters after the hold, want 20", c, len(s.Names(relaytest.ClusterType)))
			}
		}
		r.Stop()
	})
}

// The loss of the origin, whatever way it is lost, ends no client's stream, and
// the relay follows the origin again when it is back (C29).
func TestC29_LossOfOriginEndsNoStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("web"))
		r := start(t, o)
		var clients []*relaytest.Client
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(relaytest.ClusterType, "*")
			clients = append(clients, c)
		}
		time.Sleep(10 * time.Second)
		for i, lose := range []func(){o.Stop, o.GoAway, func() { o.Freeze(true) }} {
			lose()
			time.Sleep(10 * time.Minute)
			o.Freeze(false)
			o.Restart()
			o.Put(relaytest.Cluster("web", fmt.Sprint("service", i)))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			for _, c := range clients {
				if got := c.State().Digest(relaytest.ClusterType, "web"); got != relaytest.DigestOf(relaytest.Cluster("web", fmt.Sprint("service", i))) {
					t.Errorf("%v did not get the change after loss %d", c, i)
				}
			}
		}
		if n := r.Streams(); n != len(clients) {
			t.Errorf("%d streams, want the %d that there were", n, len(clients))
		}
		r.Stop()
	})
}
