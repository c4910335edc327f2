package conformance_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// In these tests, go-control-plane does not respond to missing names, so they use virtual time and connections in
// memory.

// planeBubble runs f in a bubble for each kind of control plane, with a relay.
func planeBubble(t *testing.T, env []string, f func(t *testing.T, o *controlplane.Server, r *running)) {
	for _, kind := range []string{controlplane.Linear, controlplane.Snapshots, controlplane.ADSSnapshots} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := new(memnet.Network)
				o := controlplane.New(t, kind, memory, planeWorld()...)
				r := startRelay(t, instance.Of(o), env...)
				f(t, o, r)
			})
		})
	}
}

// A SotW client that subscribes to clusters of which some do not exist gets a response within 10s. Later clients
// get one at once.
func TestInterop_GoControlPlaneSilence(t *testing.T) {
	planeBubble(t, nil, func(t *testing.T, o *controlplane.Server, r *running) {
		client := func() *relaytest.Client {
			return r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true, Node: relaytest.GRPCNode("grpc")})
		}
		c, began := client(), time.Now()
		c.Subscribe(relaytest.ClusterType, "c0", "ghost")
		o.Follow(c, relaytest.ClusterType, "c0", "ghost")
		if waited := time.Since(began); waited < 9*time.Second || waited > 11*time.Second {
			t.Errorf("got a response after %v, want 10s", waited)
		}
		later := client()
		later.Subscribe(relaytest.ClusterType, "c0", "ghost")
		synctest.Wait()
		if resp := later.TryRecv(); resp == nil || !slices.Equal(resp.Names(), []string{"c0"}) {
			t.Errorf("a later client got %v at once, want c0", resp)
		}
		o.Put(relaytest.Cluster("ghost"))
		o.Follow(c, relaytest.ClusterType, "c0", "ghost")
		o.Remove(relaytest.ClusterType, "ghost")
		o.Follow(c, relaytest.ClusterType, "c0", "ghost")
		o.Follow(later, relaytest.ClusterType, "c0", "ghost")
	})
}

// With TENDER_RESYNC=full, the relay sends no versions, so go-control-plane reports no removals from its outage.
// The relay detects them by subscribing to the names, for which go-control-plane sends nothing.
func TestInterop_GoControlPlaneSweep(t *testing.T) {
	planeBubble(t, []string{"TENDER_RESYNC=full"}, func(t *testing.T, o *controlplane.Server, r *running) {
		p := newPlaneClients(o, r)
		p.converge()
		time.Sleep(time.Minute) // until the sets are confirmed

		o.Stop()
		o.Edit(nil, map[string][]string{relaytest.ClusterType: {"c3", "c4"}, relaytest.ListenerType: {"l1"}})
		o.Restart()
		time.Sleep(35 * time.Second)
		p.converge()
		time.Sleep(settled)
		p.converge()
	})
}

// If all remaining clusters are subscribed to by name, go-control-plane does not resend them. A missing response
// then does not prove a removal. That of one resource waits for a second look at new streams.
func TestInterop_GoControlPlaneSweepAllNamed(t *testing.T) {
	planeBubble(t, []string{"TENDER_RESYNC=full"}, func(t *testing.T, o *controlplane.Server, r *running) {
		all, named := r.Client(relaytest.ClientOptions{AutoAck: true}), r.Client(relaytest.ClientOptions{AutoAck: true})
		all.Subscribe(relaytest.ClusterType)
		o.Follow(all, relaytest.ClusterType)
		named.Subscribe(relaytest.ClusterType, "c0", "c1", "c2", "c4")
		o.Follow(named, relaytest.ClusterType, "c0", "c1", "c2", "c4")
		time.Sleep(time.Minute)

		o.Stop()
		o.Edit(nil, map[string][]string{relaytest.ClusterType: {"c3"}})
		o.Restart()
		time.Sleep(40 * time.Second)
		if got := all.State(); !got.Has(relaytest.ClusterType, "c0", "c1", "c2", "c3", "c4") {
			t.Errorf("before the second look the client has %v, want all clusters", got.Names(relaytest.ClusterType))
		}
		time.Sleep(time.Minute)
		o.Follow(all, relaytest.ClusterType)
		o.Follow(named, relaytest.ClusterType, "c0", "c1", "c2", "c4")
	})
}

// A control plane restarts before the relay has confirmed its sets. Clients still converge.
func TestInterop_GoControlPlaneEarlyRestart(t *testing.T) {
	planeBubble(t, nil, func(t *testing.T, o *controlplane.Server, r *running) {
		p := newPlaneClients(o, r)
		p.converge()
		o.Stop()
		o.Edit([]proto.Message{relaytest.Cluster("c7")}, map[string][]string{relaytest.ClusterType: {"c3"}})
		o.Restart()
		time.Sleep(35 * time.Second)
		p.converge()
		if strings.Contains(r.Log.String(), "sends no response") {
			t.Error("the relay logged a missing response, although it sent current versions")
		}
	})
}

// An origin ends its streams every hour, and sends nothing because the relay is up to date. The relay does not
// back off, but reconnects at once.
func TestInterop_GoControlPlaneQuietStreams(t *testing.T) {
	planeBubble(t, []string{"TENDER_CONNECTION_AGE=off"}, func(t *testing.T, o *controlplane.Server, r *running) {
		c := r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.GRPCNode("grpc")})
		c.Subscribe(relaytest.ClusterType, "c0")
		o.Follow(c, relaytest.ClusterType, "c0")
		for range 3 {
			time.Sleep(time.Hour)
			o.Restart()
		}
		o.Put(relaytest.Cluster("c0", "changed"))
		sleep(2 * time.Second)
		if got, want := c.State(), o.State(relaytest.ClusterType, "c0"); !got.SameContent(want, relaytest.ClusterType) {
			t.Errorf("2s after the restart of the origin the client has %v, want %v", got, want)
		}
	})
}

// Resources that a restarted SotW control plane does not list are removed at once, or held back if there are many.
func TestInterop_GoControlPlaneSotWReturns(t *testing.T) {
	for _, kind := range []string{controlplane.LinearSotW, controlplane.SnapshotsSotW} {
		for _, tt := range []struct {
			lost     int
			min, max time.Duration
		}{
			{2, 0, 5 * time.Second},
			{30, 10 * time.Minute, 11 * time.Minute},
		} {
			t.Run(fmt.Sprintf("%s, %d", kind, tt.lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					memory := new(memnet.Network)
					o := controlplane.New(t, kind, memory, planeWorld()...)
					removed := make(map[string][]string)
					for i := range tt.lost {
						name := fmt.Sprintf("lost%d", i)
						o.Edit([]proto.Message{relaytest.Cluster(name)}, nil)
						removed[relaytest.ClusterType] = append(removed[relaytest.ClusterType], name)
					}
					o.Push()
					before := slices.Sorted(maps.Keys(o.Resources[relaytest.ClusterType]))
					r := startRelay(t, instance.Of(o))
					clients := r.bothVariants(relaytest.ClientOptions{}, func(c *relaytest.Client) {
						c.Subscribe(relaytest.ClusterType)
						o.Follow(c, relaytest.ClusterType)
					})
					o.Stop()
					o.Edit(nil, removed)
					o.Restart()
					sleep(tt.min)
					for _, c := range clients {
						if tt.min > 0 && !c.State().Has(relaytest.ClusterType, before...) {
							t.Errorf("%v has %v after %v, want all clusters", c, c.State().Names(relaytest.ClusterType), tt.min)
						}
					}
					time.Sleep(tt.max - tt.min)
					for _, c := range clients {
						o.Follow(c, relaytest.ClusterType)
					}
				})
			})
		}
	}
}

// Mass deletions are held back for the configured time, whether go-control-plane sends them in its first responses
// or the relay infers them.
func TestH02_GoControlPlaneMassDeletion(t *testing.T) {
	const min, max = 10 * time.Minute, 13 * time.Minute
	for _, resync := range []string{"trust_versions", "full"} {
		t.Run(resync, func(t *testing.T) {
			planeBubble(t, []string{"TENDER_RESYNC=" + resync}, func(t *testing.T, o *controlplane.Server, r *running) {
				removed := make(map[string][]string)
				for i := range 30 {
					name := fmt.Sprintf("mass%d", i)
					o.Edit([]proto.Message{relaytest.Cluster(name)}, nil)
					removed[relaytest.ClusterType] = append(removed[relaytest.ClusterType], name)
				}
				o.Push()
				before := slices.Sorted(maps.Keys(o.Resources[relaytest.ClusterType]))
				c := r.Client(relaytest.ClientOptions{AutoAck: true})
				c.Subscribe(relaytest.ClusterType)
				o.Follow(c, relaytest.ClusterType)
				time.Sleep(time.Minute)

				o.Stop()
				o.Edit(nil, removed)
				o.Restart()
				sleep(min)
				if !c.State().Has(relaytest.ClusterType, before...) {
					t.Errorf("%v after the restart the client has %v, want all clusters", min, c.State().Names(relaytest.ClusterType))
				}
				time.Sleep(max - min)
				o.Follow(c, relaytest.ClusterType)
			})
		})
	}
}

// After a relay restarts with a snapshot, reconnecting clients receive only changes, whether the control plane is
// up or not. New clients are served while it is down.
func TestInterop_GoControlPlaneAfterARestart(t *testing.T) {
	dir := t.TempDir()
	planeBubble(t, nil, func(t *testing.T, o *controlplane.Server, first *running) {
		env := "TENDER_SNAPSHOT_DIR=" + filepath.Join(dir, strings.ReplaceAll(o.Kind, " ", ""))
		first.Stop()
		r := startRelay(t, instance.Of(o), env)
		p := &planeClients{o: o, r: r}
		clients := []*relaytest.Client{p.wildcards(relaytest.Delta, "a"), p.wildcards(relaytest.SotW, "b")}
		for _, c := range clients {
			o.Follow(c, relaytest.ClusterType)
			o.Follow(c, relaytest.ListenerType)
		}
		time.Sleep(10 * time.Second) // until the sets are complete
		r.Stop()
		o.Stop()
		r = startRelay(t, instance.Of(o), env)
		p.r = r
		for _, c := range clients {
			before := len(c.Responses())
			c.Reconnect(r.Conn())
			sleep(time.Minute)
			if n := len(c.Responses()) - before; n != 0 || c.Ended() {
				t.Errorf("%v got %d responses (stream ended: %v): %v", c, n, c.Ended(), c.Responses()[before:])
			}
		}
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			newClient := p.wildcards(v, "newcomer")
			o.Follow(newClient, relaytest.ClusterType)
			o.Follow(newClient, relaytest.ListenerType)
			clients = append(clients, newClient)
		}
		o.Restart()
		o.Put(relaytest.Cluster("c1", "elsewhere"))
		o.Remove(relaytest.ListenerType, "l1")
		for _, c := range clients {
			o.Follow(c, relaytest.ClusterType)
			o.Follow(c, relaytest.ListenerType)
		}
	})
}

// go-control-plane sends no removal for a name that it never sent to the relay. The relay sends the removal to a
// client that holds the resource.
func TestH18_GoControlPlane(t *testing.T) {
	t.Parallel()
	planeBubble(t, nil, func(t *testing.T, _ *controlplane.Server, r *running) {
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
		c.Send(returningDelta(relaytest.EnvoyNode("client"), typeEDS, []string{"c0", "gone"}, unknownVersions("c0", "gone")))
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{14 * time.Second, 0}, {3 * time.Second, 1}} {
			sleep(step.wait)
			var removed []string
			for _, resp := range c.Responses() {
				removed = append(removed, resp.Removed...)
			}
			if len(removed) != step.want {
				t.Errorf("got the removals %q, want %d", removed, step.want)
			}
		}
	})
}
