package conformance_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A restarting has a relay with snapshots that the test restarts, and its origin.
type restarting struct {
	*running
	t   *testing.T
	o   *relaytest.Origin
	dir string
	env []string
}

// restartBubble runs a test in a bubble for each variant, with a relay that writes snapshots.
func restartBubble(t *testing.T, f func(t *testing.T, r *restarting, v relaytest.Variant), env ...string) {
	t.Helper()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		r := &restarting{t: t, o: o, dir: filepath.Join(t.TempDir(), "snapshots")}
		r.env = append([]string{"TENDER_SNAPSHOT_DIR=" + r.dir}, env...)
		r.start()
		f(t, r, v)
	})
}

func (r *restarting) start() { r.running = start(r.t, r.o, r.env...) }

// stop stops the relay once its sets are complete and therefore in the snapshot.
func (r *restarting) stop() {
	r.t.Helper()
	sleep(10 * time.Second)
	r.Stop()
}

// following returns a client that ACKs every response and subscribes to the legacy wildcard of types.
func (r *restarting) following(v relaytest.Variant, types ...string) *relaytest.Client {
	r.t.Helper()
	c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
	for _, typeURL := range types {
		c.Subscribe(typeURL)
	}
	return c
}

// expectResources waits until a client has exactly these resources of a type.
func (r *restarting) expectResources(c *relaytest.Client, typeURL string, names ...string) {
	r.t.Helper()
	c.WaitState(r.t.Context(), func(s relaytest.State) bool { return slices.Equal(s.Names(typeURL), names) })
}

// complete returns a client that has exactly these clusters, of a set that is complete.
func (r *restarting) complete(v relaytest.Variant, clusters ...string) *relaytest.Client {
	r.t.Helper()
	c := r.following(v, typeCDS)
	r.expectResources(c, typeCDS, clusters...)
	sleep(10 * time.Second)
	return c
}

// sent returns the number of responses that a client gets within d.
func sent(c *relaytest.Client, d time.Duration) int {
	before := len(c.Responses())
	sleep(d)
	return len(c.Responses()) - before
}

// After a restart with a snapshot, a reconnecting client gets no response for the wildcard or, in Delta, for names
// other than endpoints (B.3), whether the origin is up or not. Changes are sent at once.
func TestR026_NothingIsResentAfterARestart(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("origin down %v", down), func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Listener("l", "x"),
					relaytest.Route("x", []string{"*"}, "a"))
				c := r.following(v, typeCDS, typeLDS)
				r.expectResources(c, typeCDS, "a", "b")
				r.expectResources(c, typeLDS, "l")
				if v == relaytest.Delta {
					c.Subscribe(typeRDS, "x")
					r.expectResources(c, typeRDS, "x")
				}
				r.stop()
				if down {
					r.o.Stop()
				}
				r.start()
				c.Reconnect(r.Conn())
				if n := sent(c, settled); n != 0 || c.Ended() {
					t.Errorf("got %d responses (stream ended: %v), want none: %v", n, c.Ended(), c.Responses())
				}
				if down {
					r.o.Restart()
				}
				before := len(c.Responses())
				r.o.Put(relaytest.Cluster("b", "changed"), relaytest.Cluster("c"))
				r.expectResources(c, typeCDS, "a", "b", "c")
				for _, resp := range c.Responses()[before:] {
					if v == relaytest.Delta && slices.Contains(resp.Names(), "a") || resp.TypeURL != typeCDS {
						t.Errorf("got %v, want only the changed cluster", resp)
					}
				}
			})
		})
	}
}

// While the origin is down, new clients are served from the snapshot, for the wildcard and for names, and the
// relay is ready at once. Other names get no response.
func TestB8_NewClientsAreServedFromASnapshot(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
		c := r.following(v, typeCDS)
		c.Subscribe(typeEDS, "a", "missing")
		r.expectResources(c, typeEDS, "a")
		r.stop()
		r.o.Stop()
		r.start()
		began := time.Now()
		health, err := healthpb.NewHealthClient(r.Conn()).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("got the health %v, %v, want SERVING", health, err)
		}
		c = r.following(v, typeCDS)
		c.Subscribe(typeEDS, "a", "missing")
		r.expectResources(c, typeCDS, "a", "b")
		r.expectResources(c, typeEDS, "a")
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("got the resources after %v, want at once", waited)
		}
		if n := sent(c, 10*time.Minute); n != 0 || c.Ended() {
			t.Errorf("got %d further responses (stream ended: %v): %v", n, c.Ended(), c.Responses())
		}
		if s := r.SnapshotStats(); s.Restored != 1 {
			t.Errorf("got the stats %+v, want one view restored", s)
		}
	})
}

// A reconnecting client with newer resources than the snapshot keeps them until the origin responds. Then it has
// the origin's resources.
func TestR068_ARestartLosesAndRemovesNothing(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Listener("l", "x"))
		r.expectResources(r.following(v, typeCDS, typeLDS), typeCDS, "a", "b")
		r.stop()
		r.o.Put(relaytest.Cluster("c"), relaytest.Listener("m", "x"))
		other := start(t, r.o) // a replica that has c and m
		c := relaytest.NewClient(t, other.Conn(), relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(typeCDS)
		c.Subscribe(typeLDS)
		r.expectResources(c, typeCDS, "a", "b", "c")
		r.expectResources(c, typeLDS, "l", "m")
		r.o.Stop()
		r.start()
		c.Reconnect(r.Conn())
		if n := sent(c, settled); n != 0 {
			t.Errorf("got %d responses of a relay with an older snapshot, want none: %v", n, c.Responses())
		}
		r.o.Apply(func(tx *relaytest.Tx) { tx.Remove(typeCDS, "b"); tx.Put(relaytest.Cluster("d")) })
		r.o.Restart()
		r.expectResources(c, typeCDS, "a", "c", "d")
		r.expectResources(c, typeLDS, "l", "m")
	})
}

// After a restart, a client whose set differs from the snapshot gets a response, even if the origin sends nothing
// because the relay is up to date.
func TestB42_SilentOriginConfirmsTheSet(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		c := r.complete(v, "a", "b")
		r.o.Remove(typeCDS, "b")
		r.expectResources(c, typeCDS, "a")
		late := r.following(v, typeCDS)
		r.expectResources(late, typeCDS, "a")
		r.o.Put(relaytest.Cluster("b"))
		r.expectResources(late, typeCDS, "a", "b")
		late.Close()
		r.o.Remove(typeCDS, "b")
		r.expectResources(c, typeCDS, "a")
		r.stop()
		r.start()
		late.Reconnect(r.Conn())
		r.expectResources(late, typeCDS, "a")
	})
}

// Snapshots contain no Secrets, no uncached resources, and private keys only with TENDER_SNAPSHOT_SENSITIVE=on. A
// client that needs a complete set waits for omitted resources; a partial set is not sent (R066).
func TestB36_SnapshotsOmitSecrets(t *testing.T) {
	t.Parallel()
	const secretText = "hush-hush-canary"
	private := &clusterpb.Cluster{Name: "private",
		TransportSocket: &corepb.TransportSocket{ConfigType: &corepb.TransportSocket_TypedConfig{
			TypedConfig: &anypb.Any{
				TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
				// common_tls_context.tls_certificates.private_key.inline_string
				Value: nested([]byte(secretText), 4, 2, 2, 1),
			},
		}}}
	for _, sensitive := range []string{"off", "on"} {
		t.Run("sensitive "+sensitive, func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("public"), private)
				r.o.Apply(func(tx *relaytest.Tx) {
					tx.Set(relaytest.SecretType, "key", relaytest.Opaque(relaytest.SecretType, "key", []byte("secret "+secretText)),
						"1")
					tx.SetRaw(typeEDS, &discoverypb.Resource{
						Name: "fleeting", Version: "1", CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
						Resource: relaytest.Opaque(typeEDS, "fleeting", []byte("fleeting "+secretText)),
					})
				})
				c := r.following(v, typeCDS)
				c.Subscribe(typeEDS, "fleeting")
				c.Subscribe(relaytest.SecretType, "key")
				r.expectResources(c, typeCDS, "private", "public")
				r.stop()
				stored := r.files()
				for content, want := range map[string]bool{"secret " + secretText: false, "fleeting " + secretText: false,
					secretText: sensitive == "on", "public": true} {
					if got := bytes.Contains(stored, []byte(content)); got != want {
						t.Errorf("snapshots contain %q: %v, want %v", content, got, want)
					}
				}
				r.o.Stop()
				r.start()
				c = r.following(v, typeCDS)
				n := sent(c, 5*time.Second)
				switch names := c.State().Names(typeCDS); {
				case sensitive == "on" && len(names) != 2, sensitive == "off" && v == relaytest.SotW && n > 0,
					sensitive == "off" && v == relaytest.Delta && !slices.Equal(names, []string{"public"}):
					t.Errorf("while the origin is down, the client has %q after %d responses", names, n)
				}
				r.o.Restart()
				r.expectResources(c, typeCDS, "private", "public")
			}, "TENDER_SNAPSHOT_SENSITIVE="+sensitive)
		})
	}
}

// nested encodes value as a field of nested messages, the outermost field first.
func nested(value []byte, fields ...byte) []byte {
	for _, num := range slices.Backward(fields) {
		value = append([]byte{num<<3 | 2, byte(len(value))}, value...)
	}
	return value
}

// files returns the content of all snapshots.
func (r *restarting) files() (all []byte) {
	r.t.Helper()
	paths := r.paths()
	if len(paths) == 0 {
		r.t.Fatal("no snapshots, want some")
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// paths returns the paths of all snapshots.
func (r *restarting) paths() []string {
	r.t.Helper()
	paths, err := filepath.Glob(filepath.Join(r.dir, "*.snapshot"))
	if err != nil {
		r.t.Fatal(err)
	}
	return paths
}

// A snapshot of another origin, Node or group is refused, and counted as a mismatch.
func TestB42_AMismatchIsAColdStart(t *testing.T) {
	t.Parallel()
	for _, env := range []string{
		"TENDER_NODE_CLUSTER=another", "TENDER_NODE_METADATA={\"a\":1}", "TENDER_NODE_GROUP_BY=none",
		"TENDER_NODE_GROUP_BY=cluster",
		"TENDER_DELTA_VERSIONS=content",
	} {
		t.Run(env, func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("a"))
				r.expectResources(r.following(v, typeCDS), typeCDS, "a")
				r.stop()
				r.o.Stop()
				r.env = append(r.env, env)
				r.start()
				synctest.Wait()
				if s := r.SnapshotStats(); s.Restored != 0 || s.Refused["mismatch"] != 1 {
					t.Errorf("got the stats %+v, want one mismatch", s)
				}
				expectStatus(t, r.following(v, typeCDS), codes.Unavailable)
			})
		})
	}
}

// Changes are written within seconds. Without changes, a snapshot is only written again before it reaches its
// maximum age.
func TestB42_ChangesAreWritten(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		r.expectResources(r.following(v, typeCDS), typeCDS, "a")
		time.Sleep(15 * time.Second)
		r.o.Put(relaytest.Cluster("canary"))
		sleep(7 * time.Second)
		if !bytes.Contains(r.files(), []byte("canary")) {
			t.Error("a change is not in the snapshot after 7s")
		}
		written := r.SnapshotStats().Written
		time.Sleep(10 * time.Minute)
		if now := r.SnapshotStats().Written; now != written {
			t.Errorf("wrote %d snapshots without a change", now-written)
		}
		time.Sleep(10 * time.Minute)
		if now := r.SnapshotStats().Written; now != written+1 {
			t.Errorf("wrote %d snapshots in 20m, want 1", now-written)
		}
	}, "TENDER_MAX_SNAPSHOT_AGE=1h")
}

// The snapshot of a group without clients is removed.
func TestB42_SnapshotsOfEndedGroupsAreRemoved(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		c := r.following(v, typeCDS)
		r.expectResources(c, typeCDS, "a")
		r.stop()
		r.start()
		r.files()
		sleep(5 * time.Minute)
		if paths := r.paths(); len(paths) != 0 {
			t.Errorf("got the files %v, want none", paths)
		}
	}, "TENDER_LINGER=20s")
}

// Names that groups share are restored from the snapshot.
func TestB42_NamesThatGroupsShareAreRestored(t *testing.T) {
	t.Parallel()
	const name = "xdstp://authority/envoy.config.endpoint.v3.ClusterLoadAssignment/x"
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		msg := relaytest.Endpoints("x", "127.0.0.1:1")
		b, err := proto.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		r.o.Apply(func(tx *relaytest.Tx) { tx.Set(typeEDS, name, &anypb.Any{TypeUrl: typeEDS, Value: b}, "1") })
		c := r.following(v)
		c.Subscribe(typeEDS, name)
		synctest.Wait()
		if len(c.Responses()) != 1 {
			t.Fatalf("got the responses %v, want 1", c.Responses())
		}
		r.o.Put(relaytest.Cluster("a"))
		c.Subscribe(typeCDS)
		r.expectResources(c, typeCDS, "a")
		r.stop()
		r.o.Stop()
		r.start()
		c = r.following(v)
		c.Subscribe(typeEDS, name)
		synctest.Wait()
		if got := c.Responses(); len(got) != 1 || got[0].TypeURL != typeEDS {
			t.Errorf("got the responses %v, want the endpoints", got)
		}
	})
}

// TestB42_OriginsAreNotWaitedForLonger: with peers, a relay whose origin answers serves clients as early as without.
func TestB42_OriginsAreNotWaitedForLonger(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		ca := certs.NewCA(t)
		cert, key := ca.Sign(certs.Leaf{URI: "spiffe://example.org/tender"}).Write(t, t.TempDir())
		began := time.Now()
		r := start(t, o, "TENDER_PEERS=127.0.0.1:1", "TENDER_PEERS_TLS_CERT="+cert, "TENDER_PEERS_TLS_KEY="+key)
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("a client was served after %v of virtual time, want 0.5s at most", took)
		}
	})
}
