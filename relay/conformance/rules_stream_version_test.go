package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// streamConfirm is long enough for a relay to be sure that it knows a whole set.
const streamConfirm = 2 * time.Minute

// The origin's own version of a type stands before ours, and is not compared
// (B.2); without one, ours stands alone.
func TestB2_TheOriginsVersionIsShown(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Subscribe(typeCDS, "*")
		if v := recvAndAck(t, c, typeCDS, "a").Version; !strings.HasPrefix(v, "r1.") {
			t.Errorf("version %q, want r1.…", v)
		}
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "build~7" })
		o.Put(relaytest.Cluster("a", "2"))
		if v := recvAndAck(t, c, typeCDS, "a").Version; !strings.HasPrefix(v, "build~7~r1.") {
			t.Errorf("version %q, want build~7~r1.…", v)
		}
		delta := r.Client(relaytest.ClientOptions{})
		delta.Subscribe(typeCDS, "*")
		if v := recvAndAck(t, delta, typeCDS, "a").Version; v != "build~7" {
			t.Errorf("system_version_info %q, want the origin's", v)
		}
		time.Sleep(streamConfirm)
		// The same content under another version of the origin: not pushed, and nothing
		// that a client that returns would be sent.
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "build~8" })
		o.Put(relaytest.Cluster("a", "2"))
		expectQuiet(t, c, time.Minute)
		c.Reconnect(r.Conn())
		expectQuiet(t, c, time.Minute)
	})
}

// The version is a property of the resources: two relays of one origin say the
// same, and so does one that was started again, whatever the origin numbers.
func TestR026_ReplicasSayTheSameVersion(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("b"), relaytest.Cluster("a"), domainRoute("r", "1"))
		ask := func(r *running) (clusters, named, route string) {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Subscribe(typeCDS, "*")
			clusters = recvAndAck(t, c, typeCDS, "a", "b").Version
			c.Subscribe(typeRDS, "r")
			route = recvAndAck(t, c, typeRDS, "r").Version
			one := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			one.Subscribe(typeCDS, "a")
			named = recvAndAck(t, one, typeCDS, "a").Version
			return clusters, named, route
		}
		first, second := start(t, o), start(t, o, "TENDER_NODE_ID=tender/other")
		c1, n1, r1 := ask(first)
		// The other one has seen other content before.
		o.Put(relaytest.Cluster("a", "for a while"))
		c := second.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Subscribe(typeCDS, "*")
		recvAndAck(t, c, typeCDS, "a", "b")
		o.Set(typeCDS, "a", relaytest.Cluster("a"), "another-number")
		recvAndAck(t, c, typeCDS, "a", "b")
		first.Stop()
		third := start(t, o)
		for i, r := range []*running{second, third} {
			if c2, n2, r2 := ask(r); c2 != c1 || n2 != n1 || r2 != r1 {
				t.Errorf("relay %d says %q %q %q, the first said %q %q %q", i+2, c2, n2, r2, c1, n1, r1)
			}
		}
	})
}

// streamReturning is the first request of a SotW client that comes back.
func streamReturning(typeURL, version string, names ...string) *discoverypb.DiscoveryRequest {
	return withNode(&discoverypb.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: version, ResourceNames: names})
}

// A SotW client that returns is sent nothing only where it cannot be asking for
// anything new: Listeners and Clusters, the wildcard alone, an equal version, and
// no resource that expires (B.3).
func TestR027_OnlyAWildcardWithAnEqualVersionIsSpared(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Listener("a", "a"), domainRoute("a", "a"), relaytest.Endpoints("a", "127.0.0.1:1"))
		o.Set(streamAcmeType, "a", relaytest.Opaque(streamAcmeType, "a", nil), "1")
		o.Set(relaytest.ScopedRouteType, "a", relaytest.Opaque(relaytest.ScopedRouteType, "a", nil), "1")
		r := start(t, o)
		versions := make(map[string]string)
		scout := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		for _, typeURL := range []string{typeCDS, typeEDS, typeLDS, typeRDS, streamAcmeType, relaytest.ScopedRouteType} {
			name := "*"
			if typeURL == typeEDS || typeURL == typeRDS {
				name = "a"
			}
			scout.Subscribe(typeURL, name)
			versions[typeURL] = recvAndAck(t, scout, typeURL, "a").Version
		}
		time.Sleep(streamConfirm)
		for _, tc := range []struct {
			typeURL, version string
			names            []string
			spared           bool
		}{
			{typeCDS, versions[typeCDS], nil, true},
			{typeCDS, versions[typeCDS], []string{"*"}, true},
			{typeLDS, versions[typeLDS], nil, true},
			{typeCDS, "build-9~" + versions[typeCDS], nil, true},
			{typeCDS, "", nil, false},
			{typeCDS, versions[typeCDS] + "x", nil, false},
			{typeCDS, versions[typeCDS] + "~", nil, false},
			{typeCDS, versions[typeLDS], nil, false},
			{typeCDS, versions[typeCDS], []string{"a"}, false},
			{typeCDS, versions[typeCDS], []string{"*", "a"}, false},
			{typeLDS, versions[typeLDS], []string{"a"}, false},
			{typeEDS, versions[typeEDS], []string{"a"}, false},
			{typeRDS, versions[typeRDS], []string{"a"}, false},
			{streamAcmeType, versions[streamAcmeType], nil, false},
			{relaytest.ScopedRouteType, versions[relaytest.ScopedRouteType], nil, false},
		} {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Send(streamReturning(tc.typeURL, tc.version, tc.names...))
			if tc.spared {
				expectQuiet(t, c, time.Minute)
			} else {
				recvAndAck(t, c, tc.typeURL, "a")
			}
			c.Close()
		}
		// What changes afterwards reaches a client that was spared.
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Send(streamReturning(typeCDS, versions[typeCDS]))
		expectQuiet(t, c, time.Minute)
		o.Put(relaytest.Cluster("b"))
		recvAndAck(t, c, typeCDS, "a", "b")
		recvAndAck(t, scout, typeCDS, "a", "b")

		o.SetRaw(typeLDS, &discoverypb.Resource{Name: "t", Version: "1", Ttl: durationpb.New(time.Hour),
			Resource: relaytest.Opaque(typeLDS, "t", nil)})
		expiring := recvAndAck(t, scout, typeLDS, "a", "t").Version
		c = r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Send(streamReturning(typeLDS, expiring))
		recvAndAck(t, c, typeLDS, "a", "t")
	})
}

// streamDelta is the first request of a Delta client that comes back.
func streamDelta(n *corepb.Node, typeURL string, names []string, known map[string]string) *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: known}
}

// R085: a Delta client that says which versions it holds is spared those, but for
// endpoints and Secrets that it names, unless it is a relay (B.3).
func TestR085_B3_KnownVersionsAreSpared(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		secret := relaytest.Opaque(relaytest.SecretType, "a", nil)
		for _, typeURL := range []string{typeCDS, typeEDS, typeRDS, relaytest.SecretType, streamAcmeType} {
			o.Set(typeURL, "a", relaytest.Opaque(typeURL, "a", secret.GetValue()), "v1")
		}
		r := start(t, o)
		envoy, below := relaytest.EnvoyNode("e"), &corepb.Node{Id: "r", UserAgentName: "tender"}
		for _, tc := range []struct {
			node    *corepb.Node
			typeURL string
			name    string // "" for the legacy wildcard
			version string
			spared  bool
		}{
			{envoy, typeCDS, "", "v1", true},
			{envoy, typeCDS, "*", "v1", true},
			{envoy, typeCDS, "a", "v1", true},
			{envoy, typeRDS, "a", "v1", true},
			{envoy, streamAcmeType, "", "v1", true},
			{envoy, streamAcmeType, "a", "v1", true},
			{envoy, typeEDS, "*", "v1", true},
			{envoy, typeEDS, "a", "v1", false},
			{envoy, relaytest.SecretType, "a", "v1", false},
			{below, typeEDS, "a", "v1", true},
			{below, relaytest.SecretType, "a", "v1", true},
			{below, typeEDS, "a", "v0", false},
			{envoy, typeCDS, "", "v0", false},
			{envoy, typeCDS, "", "", false},
			{envoy, typeRDS, "a", "v0", false},
		} {
			var names []string
			if tc.name != "" {
				names = []string{tc.name}
			}
			c := r.Client(relaytest.ClientOptions{})
			c.Send(streamDelta(tc.node, tc.typeURL, names, map[string]string{"a": tc.version}))
			if tc.spared {
				expectQuiet(t, c, streamConfirm)
			} else {
				recvAndAck(t, c, tc.typeURL, "a")
			}
			c.Close()
		}
	})
}

// A version that the origin gave the same content before is as good as the
// present one; one that it gave to other content makes all its versions
// worthless, and is said once (B.2).
func TestB2_VersionsOfTheOriginInDelta(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Set(typeCDS, "a", relaytest.Cluster("a"), "v1")
		o.Set(typeCDS, "b", relaytest.Cluster("b"), "v1")
		r := start(t, o)
		watcher := r.Client(relaytest.ClientOptions{})
		watcher.Subscribe(typeCDS, "*")
		recvAndAck(t, watcher, typeCDS, "a", "b")
		spared := func(version string) bool {
			c := r.Client(relaytest.ClientOptions{})
			defer c.Close()
			c.Send(streamDelta(relaytest.EnvoyNode("e"), typeCDS, []string{"*"}, map[string]string{"a": version, "b": "v1"}))
			time.Sleep(streamConfirm)
			return c.TryRecv() == nil
		}
		for i := 2; i <= 5; i++ {
			o.Set(typeCDS, "a", relaytest.Cluster("a"), fmt.Sprint("v", i))
			expectQuiet(t, watcher, time.Second)
		}
		for version, want := range map[string]bool{"v1": false, "v2": true, "v3": true, "v4": true, "v5": true, "v6": false} {
			if got := spared(version); got != want {
				t.Errorf("%s after v5 of the same content: spared is %v, want %v", version, got, want)
			}
		}
		before := r.Log.Count("level=WARN")
		for i := range 3 {
			o.Set(typeCDS, "b", relaytest.Cluster("b", fmt.Sprint(i)), "v1")
			recvAndAck(t, watcher, typeCDS, "b")
		}
		if got := r.Log.Count("level=WARN") - before; got != 1 {
			t.Errorf("the reuse of a version was said %d times, want once", got)
		}
		if spared("v5") {
			t.Error("a client was spared by a version of an origin that reuses versions")
		}
	})
}

// Where the origin gives no versions, or TENDER_DELTA_VERSIONS=content says not
// to use them, they are made from content: a reused number hides nothing, and
// spares nobody what changed.
func TestB2_VersionsOfContentInDelta(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, env string
		behaviour relaytest.Behaviour
	}{
		{"none from the origin", "TENDER_DELTA_VERSIONS=origin", relaytest.Behaviour{EmptyVersions: true}},
		{"configured", "TENDER_DELTA_VERSIONS=content", relaytest.Behaviour{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Change(func(b *relaytest.Behaviour) { *b = tc.behaviour })
				o.Set(typeCDS, "a", relaytest.Cluster("a"), "1")
				r := start(t, o, tc.env)
				c := r.Client(relaytest.ClientOptions{})
				c.Subscribe(typeCDS, "*")
				v := recvAndAck(t, c, typeCDS, "a").Resources[0].Version
				if len(v) != len("h1.")+22 || !strings.HasPrefix(v, "h1.") {
					t.Errorf("version %q, want h1. and 22 characters", v)
				}
				time.Sleep(streamConfirm)
				c.Reconnect(r.Conn())
				expectQuiet(t, c, time.Minute)
				c.Close()
				o.Set(typeCDS, "a", relaytest.Cluster("a", "other"), "1")
				c.Reconnect(r.Conn())
				recvAndAck(t, c, typeCDS, "a")
			})
		})
	}
}

// An origin that starts again and counts its versions from one, by chance to the
// same number, hides nothing from SotW clients, old or new, of this relay or
// another.
func TestC36_ARestartedCounterHidesNothing(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion, b.IgnoreIRV = "1", true })
		o.Set(typeCDS, "a", relaytest.Cluster("a", "old"), "1")
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		old := recvAndAck(t, c, typeCDS, "a")
		away := r.Client(relaytest.ClientOptions{Variant: v})
		away.Subscribe(typeCDS, "*")
		recvAndAck(t, away, typeCDS, "a")
		away.Close()

		o.Stop()
		o.Clear()
		o.Set(typeCDS, "a", relaytest.Cluster("a", "new"), "1")
		o.Restart()
		got := recvAndAck(t, c, typeCDS, "a")
		if v == relaytest.SotW && got.Version == old.Version {
			t.Errorf("version %q stands for two contents", got.Version)
		}
		away.Reconnect(r.Conn())
		recvAndAck(t, away, typeCDS, "a")
		if v == relaytest.SotW { // another replica, which has never seen the old content
			away.Reconnect(start(t, o).Conn())
			expectQuiet(t, away, streamConfirm)
			c.Close()
			c = start(t, o).Client(relaytest.ClientOptions{Variant: v})
			c.Send(streamReturning(typeCDS, old.Version))
			recvAndAck(t, c, typeCDS, "a")
		}
	})
}
