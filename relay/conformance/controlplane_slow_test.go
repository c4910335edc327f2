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
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// These are the cases in which go-control-plane's silence has to be waited out:
// they run on a clock of their own, over memory.

// planeBubble runs f for each kind of control plane in a bubble, below a relay
// that is configured by env.
func planeBubble(t *testing.T, env []string, f func(t *testing.T, o *relaytest.ControlPlane, r *running)) {
	for _, kind := range []string{relaytest.LinearCaches, relaytest.Snapshots, relaytest.ADSSnapshots} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := new(memnet.Network)
				o := relaytest.NewControlPlane(t, kind, memory, planeWorld()...)
				r := startRelay(t, o.RelayOptions(), env...)
				f(t, o, r)
			})
		})
	}
}

// TestInterop_GoControlPlaneSilence: a SotW client that names clusters that do
// not all exist is answered within 10s, and later at once.
func TestInterop_GoControlPlaneSilence(t *testing.T) {
	planeBubble(t, nil, func(t *testing.T, o *relaytest.ControlPlane, r *running) {
		client := func() *relaytest.Client {
			return r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true, Node: relaytest.GRPCNode("grpc")})
		}
		c, began := client(), time.Now()
		c.Subscribe(relaytest.ClusterType, "c0", "ghost")
		o.Follow(c, relaytest.ClusterType, "c0", "ghost")
		if waited := time.Since(began); waited < 9*time.Second || waited > 11*time.Second {
			t.Errorf("answered after %v, want 10s", waited)
		}
		again := client()
		again.Subscribe(relaytest.ClusterType, "c0", "ghost")
		synctest.Wait()
		if resp := again.TryRecv(); resp == nil || !slices.Equal(resp.Names(), []string{"c0"}) {
			t.Errorf("a later client got %v at once, want c0", resp)
		}
		o.Put(relaytest.Cluster("ghost"))
		o.Follow(c, relaytest.ClusterType, "c0", "ghost")
		o.Remove(relaytest.ClusterType, "ghost")
		o.Follow(c, relaytest.ClusterType, "c0", "ghost")
		o.Follow(again, relaytest.ClusterType, "c0", "ghost")
	})
}

// TestInterop_GoControlPlaneSweep: what was removed while the control plane was
// away is found out although the relay does not say what it holds, and so is
// told nothing of it: by asking for it, on which go-control-plane is silent.
func TestInterop_GoControlPlaneSweep(t *testing.T) {
	planeBubble(t, []string{"TENDER_RESYNC=full"}, func(t *testing.T, o *relaytest.ControlPlane, r *running) {
		p := newPlaneClients(o, r)
		p.converge()
		time.Sleep(time.Minute) // the members are known by then

		o.Stop()
		o.Edit(nil, map[string][]string{relaytest.ClusterType: {"c3", "c4"}, relaytest.ListenerType: {"l1"}})
		o.Restart()
		time.Sleep(35 * time.Second)
		p.converge()
		time.Sleep(time.Hour)
		p.converge()
	})
}

// TestInterop_GoControlPlaneSweepAllNamed is the same where clients have named
// all that is left: go-control-plane does not say it again, so that its silence
// proves nothing at once, and the removal is held back like one of many.
func TestInterop_GoControlPlaneSweepAllNamed(t *testing.T) {
	planeBubble(t, []string{"TENDER_RESYNC=full"}, func(t *testing.T, o *relaytest.ControlPlane, r *running) {
		all, named := r.Client(relaytest.ClientOptions{AutoAck: true}), r.Client(relaytest.ClientOptions{AutoAck: true})
		all.Subscribe(relaytest.ClusterType)
		o.Follow(all, relaytest.ClusterType)
		named.Subscribe(relaytest.ClusterType, "c0", "c1", "c2", "c4")
		o.Follow(named, relaytest.ClusterType, "c0", "c1", "c2", "c4")
		time.Sleep(time.Minute)

		o.Stop()
		o.Edit(nil, map[string][]string{relaytest.ClusterType: {"c3"}})
		o.Restart()
		time.Sleep(10 * time.Minute)
		if got := all.State(); !got.Has(relaytest.ClusterType, "c0", "c1", "c2", "c3", "c4") {
			t.Errorf("without proof the client has %v, want all that it had", got.Names(relaytest.ClusterType))
		}
		time.Sleep(2 * time.Minute)
		o.Follow(all, relaytest.ClusterType)
		o.Follow(named, relaytest.ClusterType, "c0", "c1", "c2", "c4")
	})
}

// TestInterop_GoControlPlaneEarlyRestart is the same for a control plane that
// dies before the relay could be sure of having seen everything.
func TestInterop_GoControlPlaneEarlyRestart(t *testing.T) {
	planeBubble(t, nil, func(t *testing.T, o *relaytest.ControlPlane, r *running) {
		p := newPlaneClients(o, r)
		p.converge()
		o.Stop()
		o.Edit([]proto.Message{relaytest.Cluster("c7")}, map[string][]string{relaytest.ClusterType: {"c3"}})
		o.Restart()
		time.Sleep(35 * time.Second)
		p.converge()
		if strings.Contains(r.Log.String(), "sends no response") {
			t.Error("the origin is called silent, although it was told what is held, and nothing of that changed")
		}
	})
}

// TestInterop_GoControlPlaneQuietStreams: an origin that has nothing to say to
// what the relay holds, and ends its streams every hour, as many do, is not taken
// for one that fails: the relay returns at once, however often.
func TestInterop_GoControlPlaneQuietStreams(t *testing.T) {
	planeBubble(t, []string{"TENDER_CONNECTION_AGE=off"}, func(t *testing.T, o *relaytest.ControlPlane, r *running) {
		c := r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.GRPCNode("grpc")})
		c.Subscribe(relaytest.ClusterType, "c0")
		o.Follow(c, relaytest.ClusterType, "c0")
		for range 12 {
			time.Sleep(time.Hour)
			o.Restart()
		}
		o.Put(relaytest.Cluster("c0", "changed"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, want := c.State(), o.State(relaytest.ClusterType, "c0"); !got.SameContent(want, relaytest.ClusterType) {
			t.Errorf("2s after the return of the origin the client has %v, want %v", got, want)
		}
	})
}

// TestInterop_GoControlPlaneSotWReturns: what a control plane that speaks SotW does
// not list when it returns is gone at once, and held back if it is a mass.
func TestInterop_GoControlPlaneSotWReturns(t *testing.T) {
	for _, kind := range []string{relaytest.LinearSotW, relaytest.SnapshotsSotW} {
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
					o := relaytest.NewControlPlane(t, kind, memory, planeWorld()...)
					gone := make(map[string][]string)
					for i := range tt.lost {
						name := fmt.Sprintf("lost%d", i)
						o.Edit([]proto.Message{relaytest.Cluster(name)}, nil)
						gone[relaytest.ClusterType] = append(gone[relaytest.ClusterType], name)
					}
					o.Push()
					before := slices.Sorted(maps.Keys(o.World[relaytest.ClusterType]))
					r := startRelay(t, o.RelayOptions())
					var clients []*relaytest.Client
					for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
						c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
						c.Subscribe(relaytest.ClusterType)
						o.Follow(c, relaytest.ClusterType)
						clients = append(clients, c)
					}
					o.Stop()
					o.Edit(nil, gone)
					o.Restart()
					time.Sleep(tt.min)
					synctest.Wait()
					for _, c := range clients {
						if tt.min > 0 && !c.State().Has(relaytest.ClusterType, before...) {
							t.Errorf("%v has %v after %v, want all that it had", c, c.State().Names(relaytest.ClusterType), tt.min)
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

// TestH02_GoControlPlaneMassDeletion: large removals are held back for the time that the configuration says, whether
// go-control-plane states them in its first answers or the relay infers them.
func TestH02_GoControlPlaneMassDeletion(t *testing.T) {
	const min, max = 10 * time.Minute, 13 * time.Minute
	for _, resync := range []string{"trust_versions", "full"} {
		t.Run(resync, func(t *testing.T) {
			planeBubble(t, []string{"TENDER_RESYNC=" + resync}, func(t *testing.T, o *relaytest.ControlPlane, r *running) {
				gone := make(map[string][]string)
				for i := range 30 {
					name := fmt.Sprintf("mass%d", i)
					o.Edit([]proto.Message{relaytest.Cluster(name)}, nil)
					gone[relaytest.ClusterType] = append(gone[relaytest.ClusterType], name)
				}
				o.Push()
				before := slices.Sorted(maps.Keys(o.World[relaytest.ClusterType]))
				c := r.Client(relaytest.ClientOptions{AutoAck: true})
				c.Subscribe(relaytest.ClusterType)
				o.Follow(c, relaytest.ClusterType)
				time.Sleep(time.Minute)

				o.Stop()
				o.Edit(nil, gone)
				o.Restart()
				time.Sleep(min)
				synctest.Wait()
				if !c.State().Has(relaytest.ClusterType, before...) {
					t.Errorf("%v after the restart the client has %v, want all that it had", min, c.State().Names(relaytest.ClusterType))
				}
				time.Sleep(max - min)
				o.Follow(c, relaytest.ClusterType)
			})
		})
	}
}

// TestInterop_GoControlPlaneAfterARestart: clients of a relay that starts again with a
// snapshot are sent nothing but what is new, be the control plane there or not, and so are
// served those that come while it is dead.
func TestInterop_GoControlPlaneAfterARestart(t *testing.T) {
	dir := t.TempDir()
	planeBubble(t, nil, func(t *testing.T, o *relaytest.ControlPlane, first *running) {
		env := "TENDER_SNAPSHOT_DIR=" + filepath.Join(dir, strings.ReplaceAll(o.Kind, " ", ""))
		first.Stop()
		r := startRelay(t, o.RelayOptions(), env)
		p := &planeClients{o: o, r: r}
		clients := []*relaytest.Client{p.wildcards(relaytest.Delta, "a"), p.wildcards(relaytest.SotW, "b")}
		for _, c := range clients {
			o.Follow(c, relaytest.ClusterType)
			o.Follow(c, relaytest.ListenerType)
		}
		time.Sleep(10 * time.Second) // until the sets are known to be complete
		r.Stop()
		o.Stop()
		r = startRelay(t, o.RelayOptions(), env)
		p.r = r
		for _, c := range clients {
			before := len(c.Responses())
			c.Reconnect(r.Conn())
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := len(c.Responses()) - before; n != 0 || c.Ended() {
				t.Errorf("%v was sent %d responses (stream ended: %v): %v", c, n, c.Ended(), c.Responses()[before:])
			}
		}
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			newcomer := p.wildcards(v, "newcomer")
			o.Follow(newcomer, relaytest.ClusterType)
			o.Follow(newcomer, relaytest.ListenerType)
			clients = append(clients, newcomer)
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

// TestH18_GoControlPlane: go-control-plane says nothing of a name that it never gave to the relay, and a removal to a
// client that holds it.
func TestH18_GoControlPlane(t *testing.T) {
	t.Parallel()
	planeBubble(t, nil, func(t *testing.T, _ *relaytest.ControlPlane, r *running) {
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
		c.Send(streamDelta(relaytest.EnvoyNode("client"), typeEDS, []string{"c0", "gone"}, silentHolds("c0", "gone")))
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{14 * time.Second, 0}, {3 * time.Second, 1}} {
			time.Sleep(step.wait)
			synctest.Wait()
			var removed []string
			for _, resp := range c.Responses() {
				removed = append(removed, resp.Removed...)
			}
			if len(removed) != step.want {
				t.Errorf("told that %q are gone, want %d", removed, step.want)
			}
		}
	})
}
