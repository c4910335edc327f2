package conformance_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// Only clients that announce TTL support receive TTLs. A SotW client needs wrapper support as well, since the TTL
// is a field of the wrapper.
func TestR104_R110_TTLsNeedClientSupport(t *testing.T) {
	t.Parallel()
	nodes := map[string]struct {
		features    []string
		delta, sotw bool
	}{
		"plain":        {nil, false, false},
		"TTLs":         {[]string{relaytest.FeatureTTL}, true, false},
		"wrappers":     {[]string{relaytest.FeatureWrapper}, false, false},
		"both":         {[]string{relaytest.FeatureTTL, relaytest.FeatureWrapper}, true, true},
		"another case": {[]string{"XDS.config.supports-resource-ttl", "xds.config.supports-resource-ttl2"}, false, false},
	}
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			clients := make(map[string]*worldClient)
			for name, node := range nodes {
				clients[name] = w.syncedClient(f.variant, relaytest.WithFeatures(relaytest.EnvoyNode(name), node.features...),
					f.short, f.names)
			}
			w.set(f.short+" a@1 1m", f.short+" b@1")
			for name, c := range clients {
				hasTTL := map[relaytest.Variant]bool{relaytest.Delta: nodes[name].delta,
					relaytest.SotW: nodes[name].sotw}[f.variant]
				if hasTTL {
					c.expectAndAck(f.response("a@1(1m0s) b@1", "a@1(1m0s) b@1"))
				} else {
					c.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
				}
				// Resources of unknown types are wrapped for every client with wrapper support (B.19).
				wraps := slices.Contains(nodes[name].features, relaytest.FeatureWrapper) && f.variant == relaytest.SotW
				for _, res := range c.batch[0].Resources {
					if want := wraps && (f.short == "acme" || res.TTL > 0); res.Wrapped != want {
						t.Errorf("%s: %s is wrapped: %t, want %t", name, res.Name, res.Wrapped, want)
					}
				}
			}
		})
	})
}

// Every spelling of a client feature that is in use is accepted, and no other (X19).
func TestR142_SpellingsOfFeatures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		ttl, wrap string
		delta     bool
		sotw      bool
	}{
		{"xds.config.supports-resource-ttl", "xds.config.resource-in-sotw", true, true},
		{"xds.config.supports-resource-ttl", "xds.config.supports-resource-in-sotw", true, true},
		{"envoy.config.supports-resource-ttl", "envoy.config.resource-in-sotw", true, true},
		{"xds.config.resource-ttl", "xds.config.resource-in-sotw", false, false},
		{"xds.config.supports-resource-ttl", "envoy.config.supports-resource-in-sotw", true, false},
	}
	for _, tt := range tests {
		t.Run(tt.ttl+" "+tt.wrap, func(t *testing.T) {
			ttlBubble(t, nil, func(w *ttlWorld) {
				n := relaytest.EnvoyNode("client")
				n.ClientFeatures = []string{"something.else", tt.wrap, tt.ttl}
				delta := w.syncedClient(relaytest.Delta, n, "cds", "*")
				sotw := w.syncedClient(relaytest.SotW, n, "cds", "*")
				w.set("cds a@1 1m")
				if tt.delta {
					delta.expectAndAck("cds a@1(1m0s)")
				} else {
					delta.expectAndAck("cds a@1")
				}
				if tt.sotw {
					sotw.expectAndAck("cds {a@1(1m0s)}")
				} else {
					sotw.expectAndAck("cds {a@1}")
				}
			})
		})
	}
}

// A resource is wrapped in SotW only if the wrapper has information for the client, and only for clients with
// wrapper support.
func TestB19_WrappersOnlyWhereNeeded(t *testing.T) {
	t.Parallel()
	ttlBubble(t, nil, func(w *ttlWorld) {
		wraps := relaytest.WithFeatures(relaytest.EnvoyNode("wraps"), relaytest.FeatureWrapper)
		wrapped := func(c *worldClient) (names []string) {
			t.Helper()
			r := c.Recv(w.t.Context())
			c.Ack(r)
			for _, res := range r.Resources {
				if res.Wrapped {
					names = append(names, res.Name)
				}
			}
			return names
		}
		w.origin.Apply(func(tx *relaytest.Tx) {
			for _, short := range []string{"cds", "acme"} {
				typeURL, r := w.resource(short + " plain@1")
				tx.SetRaw(typeURL, r)
				_, r = w.resource(short + " aliased@1")
				r.Aliases = []string{"another"}
				tx.SetRaw(typeURL, r)
				_, r = w.resource(short + " expires@1 1h")
				tx.SetRaw(typeURL, r)
			}
		})
		for _, tt := range []struct {
			name  string
			c     *worldClient
			short string
			want  []string
		}{
			{"no wrapper support", w.client(relaytest.SotW, plainEnvoy, "cds", ""), "cds", nil},
			{"wrappers without TTLs", w.client(relaytest.SotW, wraps, "cds", ""), "cds", nil},
			{"wrappers with TTLs", w.client(relaytest.SotW, ttlEnvoy, "cds", ""), "cds", []string{"expires"}},
			{"an unknown type", w.client(relaytest.SotW, wraps, "acme", "*"), "acme", []string{"aliased", "expires", "plain"}},
			{"an unknown type, no wrapper support", w.client(relaytest.SotW, plainEnvoy, "acme", "*"), "acme", nil},
		} {
			if got := wrapped(tt.c); !slices.Equal(slices.Sorted(slices.Values(got)), tt.want) {
				t.Errorf("%s: got %q wrapped, want %q", tt.name, got, tt.want)
			}
		}
	})
}

// Metadata and unknown fields of an origin's Resource message reach the clients that are sent Resource messages.
func TestR127_UnknownFieldsSurvive(t *testing.T) {
	t.Parallel()
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		ttlBubble(t, nil, func(w *ttlWorld) {
			typeURL, r := w.resource("acme a@1 1h")
			r.Metadata = &corepb.Metadata{FilterMetadata: map[string]*structpb.Struct{"acme": {}}}
			r.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 4242, protowire.BytesType),
				[]byte("kept")))
			w.origin.SetRaw(typeURL, r)
			c := w.client(v, ttlEnvoy, "acme", "a")
			resp := c.Recv(w.t.Context())
			got := firstResource(t, resp)
			want := proto.CloneOf(r)
			want.Ttl = durationpb.New(resp.Resources[0].TTL)
			if !proto.Equal(got, want) {
				t.Errorf("%v: got %v, want %v", v, got, want)
			}
		})
	}
}

// The relay announces its own features to the origin, whatever its clients support.
func TestB31_RelayAnnouncesTTLs(t *testing.T) {
	t.Parallel()
	for name, n := range map[string][]string{"clients without": nil,
		"clients with": {relaytest.FeatureTTL, relaytest.FeatureWrapper}} {
		ttlBubble(t, nil, func(w *ttlWorld) {
			w.syncedClient(relaytest.SotW, relaytest.WithFeatures(relaytest.EnvoyNode("client"), n...), "cds", "")
			got := w.origin.State().Last().Node.GetClientFeatures()
			for _, want := range []string{"xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"} {
				if !slices.Contains(got, want) {
					t.Errorf("%s: the relay announced the features %q, want %s", name, got, want)
				}
			}
			if slices.Sort(got); len(slices.Compact(got)) != len(got) {
				t.Errorf("%s: the relay announced a feature twice: %q", name, got)
			}
		})
	}
}

// Clients with and without TTL support share a view. Responses to one kind do not depend on the other.
func TestR104_ClientsSideBySide(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			keep := w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
			w.set(f.short+" a@1 1h", f.short+" b@1")
			keep.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			for i := range 3 {
				w.sleep(10 * time.Minute)
				remaining := (time.Hour - time.Duration(i+1)*10*time.Minute).String()
				for _, n := range []string{"ttl", "plain", "ttl"} {
					node, want := plainEnvoy, "a@1 b@1"
					if n == "ttl" {
						node, want = ttlEnvoy, "a@1("+remaining+") b@1"
					}
					c := w.client(f.variant, node, f.short, f.names)
					synctest.Wait()
					c.expectAndAck(f.response(want, want))
					c.Close()
				}
				keep.expectAndAck()
			}
		})
	})
}
