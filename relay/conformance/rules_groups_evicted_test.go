package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// node returns a client that is alone in its group and ACKs every response.
func (r *restarting) node(v relaytest.Variant, id string) *relaytest.Client {
	r.t.Helper()
	return r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
}

// connectOnce connects a client of a group, waits until it has the clusters, and closes it.
func (r *restarting) connectOnce(v relaytest.Variant, id string, clusters ...string) {
	r.t.Helper()
	c := r.node(v, id)
	c.Subscribe(typeCDS)
	r.expectResources(c, typeCDS, clusters...)
	time.Sleep(30 * time.Second) // until the set is complete
	c.Close()
	synctest.Wait()
}

// A client that returns to an evicted group gets the group's last resources, without the origin, in the same
// process and after a restart, whether or not a snapshot was written before the eviction. A group without
// resources can be evicted while the origin is down.
func TestB35_SnapshotsOutliveEviction(t *testing.T) {
	t.Parallel()
	const shared = "xdstp://authority/envoy.config.route.v3.RouteConfiguration/a"
	for _, when := range []string{"at once", "later", "after a restart"} {
		t.Run(when, func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), domainRoute(shared, "1"))
				stable := r.node(v, "stays")
				stable.Subscribe(typeCDS)
				r.expectResources(stable, typeCDS, "a", "b")
				c := r.node(v, "one")
				c.Subscribe(typeRDS, shared)
				r.expectResources(c, typeRDS, shared)
				c.Close()
				r.connectOnce(v, "one", "a", "b")
				evicts := r.node(v, "two")
				evicts.Subscribe(typeRDS, "none")
				synctest.Wait()
				if when != "at once" {
					time.Sleep(time.Minute)
				}
				r.o.Stop()
				evicts.Close()
				if when == "after a restart" {
					r.stop()
					r.start()
				}
				synctest.Wait()
				returning := r.node(v, "one")
				returning.Subscribe(typeCDS)
				r.expectResources(returning, typeCDS, "a", "b")
				returning.Subscribe(typeRDS, shared)
				r.expectResources(returning, typeRDS, shared)
				r.o.Restart()
				time.Sleep(time.Minute)
				r.o.Put(relaytest.Cluster("b", "changed"), relaytest.Cluster("c"))
				r.expectResources(returning, typeCDS, "a", "b", "c")
				sleep(time.Minute)
				if n := len(r.paths()); n > 3 {
					t.Errorf("got %d snapshots, want those of two groups and of shared names", n)
				}
			}, "TENDER_NODE_GROUP_BY=id", "TENDER_MAX_GROUPS=2")
		})
	}
}

// A group that cannot be restored is not evicted: it is frozen, the origin is down or has not confirmed its
// restored set, or removals are held or dropped. Other groups are evicted first, however old it is.
func TestB35_UnrestorableGroupsAreNotEvicted(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("c%02d", i))
	}
	shrink := func(r *restarting) {
		r.o.Stop()
		for _, name := range names[20:] {
			r.o.Remove(relaytest.ClusterType, name)
		}
		r.o.Restart()
		sleep(time.Minute)
	}
	for _, tt := range []struct {
		name  string
		makes func(r *restarting)
	}{
		{"frozen", func(r *restarting) {
			r.freeze(admin.FreezeScope{})
		}},
		{"stale", func(r *restarting) { r.o.Stop(); synctest.Wait() }},
		{"restored", func(r *restarting) {
			r.stop()
			r.o.Change(func(b *relaytest.Behaviour) { b.Manual = true })
			r.start()
			synctest.Wait()
		}},
		{"held", shrink},
		{"dropped", func(r *restarting) {
			shrink(r)
			operate[admin.PendingScope, admin.PendingDecision](r.t, r.running, "drop", admin.PendingScope{All: true})
		}},
		{"", func(*restarting) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = true })
				for _, name := range names {
					r.o.Put(relaytest.Cluster(name))
				}
				r.connectOnce(v, "one", names...)
				tt.makes(r)
				c := r.node(v, "two")
				c.Subscribe(typeCDS)
				sleep(time.Second)
				if evicted := tt.name == ""; evicted == c.Ended() {
					t.Fatalf("the stream of another group ended: %t (evicted %t)", c.Ended(), evicted)
				}
				if limit := r.Stats().Refused[guard.LimitGroups]; tt.name != "" &&
					(limit != 1 || status.Code(c.WaitEnd(t.Context())) != codes.ResourceExhausted) {
					t.Errorf("counted %d refused streams, want 1 with RESOURCE_EXHAUSTED", limit)
				}
			}, "TENDER_NODE_GROUP_BY=id", "TENDER_MAX_GROUPS=1", operated)
		})
	}
}
