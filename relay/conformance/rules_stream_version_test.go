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

// confirmTimeout is long enough for a relay to confirm a set.
const confirmTimeout = 2 * time.Minute

// A SotW version consists of the origin's system version, if it has one, and a content version. Only the latter is
// compared (B.2).
func TestB2_TheOriginsVersionIsShown(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Subscribe(typeCDS, "*")
		if v := recvAndAck(t, c, typeCDS, "a").Version; !strings.HasPrefix(v, "r1.") {
			t.Errorf("got version %q, want r1.…", v)
		}
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "build~7" })
		o.Put(relaytest.Cluster("a", "2"))
		if v := recvAndAck(t, c, typeCDS, "a").Version; !strings.HasPrefix(v, "build~7~r1.") {
			t.Errorf("got version %q, want build~7~r1.…", v)
		}
		delta := r.Client(relaytest.ClientOptions{})
		delta.Subscribe(typeCDS, "*")
		if v := recvAndAck(t, delta, typeCDS, "a").Version; v != "build~7" {
			t.Errorf("got the system_version_info %q, want the origin's", v)
		}
		time.Sleep(confirmTimeout)
		// A new system version without a change of content causes no response, not even after a reconnect.
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "build~8" })
		o.Put(relaytest.Cluster("a", "2"))
		expectQuiet(t, c, time.Minute)
		c.Reconnect(r.Conn())
		expectQuiet(t, c, time.Minute)
	})
}

// The version depends only on the resources: replicas and restarted relays have the same one, whatever versions
// the origin sends.
func TestR026_ReplicasHaveTheSameVersion(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("b"), relaytest.Cluster("a"), domainRoute("r", "1"))
		versionsOf := func(r *running) (clusters, named, route string) {
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
		c1, n1, r1 := versionsOf(first)
		// The second relay has had other content before.
		o.Put(relaytest.Cluster("a", "for a while"))
		c := second.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Subscribe(typeCDS, "*")
		recvAndAck(t, c, typeCDS, "a", "b")
		o.Set(typeCDS, "a", relaytest.Cluster("a"), "another-number")
		recvAndAck(t, c, typeCDS, "a", "b")
		first.Stop()
		third := start(t, o)
		for i, r := range []*running{second, third} {
			if c2, n2, r2 := versionsOf(r); c2 != c1 || n2 != n1 || r2 != r1 {
				t.Errorf("relay %d has the versions %q %q %q, the first one has %q %q %q", i+2, c2, n2, r2, c1, n1, r1)
			}
		}
	})
}

// returningSotW returns the first request of a reconnecting SotW client.
func returningSotW(typeURL, version string, names ...string) *discoverypb.DiscoveryRequest {
	return withNode(&discoverypb.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: version, ResourceNames: names})
}

// A reconnecting SotW client gets no response only if it cannot request anything new: for a wildcard of listeners
// or clusters, with an equal version, and without resources that have a TTL (B.3).
func TestR027_OnlyUpToDateWildcardsAreSkipped(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Listener("a", "a"), domainRoute("a", "a"),
			relaytest.Endpoints("a", "127.0.0.1:1"))
		o.Set(acmeType, "a", relaytest.Opaque(acmeType, "a", nil), "1")
		o.Set(relaytest.ScopedRouteType, "a", relaytest.Opaque(relaytest.ScopedRouteType, "a", nil), "1")
		r := start(t, o)
		versions := make(map[string]string)
		scout := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		for _, typeURL := range []string{typeCDS, typeEDS, typeLDS, typeRDS, acmeType, relaytest.ScopedRouteType} {
			name := "*"
			if typeURL == typeEDS || typeURL == typeRDS {
				name = "a"
			}
			scout.Subscribe(typeURL, name)
			versions[typeURL] = recvAndAck(t, scout, typeURL, "a").Version
		}
		time.Sleep(confirmTimeout)
		for _, tc := range []struct {
			typeURL, version string
			names            []string
			upToDate         bool
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
			{acmeType, versions[acmeType], nil, false},
			{relaytest.ScopedRouteType, versions[relaytest.ScopedRouteType], nil, false},
		} {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Send(returningSotW(tc.typeURL, tc.version, tc.names...))
			if tc.upToDate {
				expectQuiet(t, c, time.Minute)
			} else {
				recvAndAck(t, c, tc.typeURL, "a")
			}
			c.Close()
		}
		// Later changes reach a client that got no response.
		c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Send(returningSotW(typeCDS, versions[typeCDS]))
		expectQuiet(t, c, time.Minute)
		o.Put(relaytest.Cluster("b"))
		recvAndAck(t, c, typeCDS, "a", "b")
		recvAndAck(t, scout, typeCDS, "a", "b")

		o.SetRaw(typeLDS, &discoverypb.Resource{Name: "t", Version: "1", Ttl: durationpb.New(time.Hour),
			Resource: relaytest.Opaque(typeLDS, "t", nil)})
		expiring := recvAndAck(t, scout, typeLDS, "a", "t").Version
		c = r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Send(returningSotW(typeLDS, expiring))
		recvAndAck(t, c, typeLDS, "a", "t")
	})
}

// returningDelta returns the first request of a reconnecting Delta client.
func returningDelta(n *corepb.Node, typeURL string, names []string,
	versions map[string]string) *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: typeURL, ResourceNamesSubscribe: names,
		InitialResourceVersions: versions}
}

// R085: a Delta client is not sent resources whose versions it reports, except for endpoints and Secrets that it
// subscribes to by name. Relays are not sent these either (B.3).
func TestR085_B3_CurrentVersionsAreSkipped(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		secret := relaytest.Opaque(relaytest.SecretType, "a", nil)
		for _, typeURL := range []string{typeCDS, typeEDS, typeRDS, relaytest.SecretType, acmeType} {
			o.Set(typeURL, "a", relaytest.Opaque(typeURL, "a", secret.GetValue()), "v1")
		}
		r := start(t, o)
		envoy, lower := relaytest.EnvoyNode("e"), &corepb.Node{Id: "r", UserAgentName: "tender"}
		for _, tc := range []struct {
			node     *corepb.Node
			typeURL  string
			name     string // "" means the legacy wildcard
			version  string
			upToDate bool
		}{
			{envoy, typeCDS, "", "v1", true},
			{envoy, typeCDS, "*", "v1", true},
			{envoy, typeCDS, "a", "v1", true},
			{envoy, typeRDS, "a", "v1", true},
			{envoy, acmeType, "", "v1", true},
			{envoy, acmeType, "a", "v1", true},
			{envoy, typeEDS, "*", "v1", true},
			{envoy, typeEDS, "a", "v1", false},
			{envoy, relaytest.SecretType, "a", "v1", false},
			{lower, typeEDS, "a", "v1", true},
			{lower, relaytest.SecretType, "a", "v1", true},
			{lower, typeEDS, "a", "v0", false},
			{envoy, typeCDS, "", "v0", false},
			{envoy, typeCDS, "", "", false},
			{envoy, typeRDS, "a", "v0", false},
		} {
			var names []string
			if tc.name != "" {
				names = []string{tc.name}
			}
			c := r.Client(relaytest.ClientOptions{})
			c.Send(returningDelta(tc.node, tc.typeURL, names, map[string]string{"a": tc.version}))
			if tc.upToDate {
				expectQuiet(t, c, confirmTimeout)
			} else {
				recvAndAck(t, c, tc.typeURL, "a")
			}
			c.Close()
		}
	})
}

// A version that the origin gave to the same content earlier is as good as the current one. If the origin reuses a
// version for other content, none of its versions is trusted, and the relay logs this once (B.2).
func TestB2_VersionsOfTheOriginInDelta(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Set(typeCDS, "a", relaytest.Cluster("a"), "v1")
		o.Set(typeCDS, "b", relaytest.Cluster("b"), "v1")
		r := start(t, o)
		watcher := r.Client(relaytest.ClientOptions{})
		watcher.Subscribe(typeCDS, "*")
		recvAndAck(t, watcher, typeCDS, "a", "b")
		upToDate := func(version string) bool {
			c := r.Client(relaytest.ClientOptions{})
			defer c.Close()
			c.Send(returningDelta(relaytest.EnvoyNode("e"), typeCDS, []string{"*"}, map[string]string{"a": version, "b": "v1"}))
			time.Sleep(confirmTimeout)
			return c.TryRecv() == nil
		}
		for i := 2; i <= 5; i++ {
			o.Set(typeCDS, "a", relaytest.Cluster("a"), fmt.Sprint("v", i))
			expectQuiet(t, watcher, time.Second)
		}
		for version, want := range map[string]bool{"v1": false, "v2": true, "v3": true, "v4": true, "v5": true, "v6": false} {
			if got := upToDate(version); got != want {
				t.Errorf("%s after v5 of the same content: up to date is %v, want %v", version, got, want)
			}
		}
		before := r.Log.Count("level=WARN")
		for i := range 3 {
			o.Set(typeCDS, "b", relaytest.Cluster("b", fmt.Sprint(i)), "v1")
			recvAndAck(t, watcher, typeCDS, "b")
		}
		if got := r.Log.Count("level=WARN") - before; got != 1 {
			t.Errorf("logged the reuse of a version %d times, want once", got)
		}
		if upToDate("v5") {
			t.Error("the version of an origin that reuses versions was trusted")
		}
	})
}

// If the origin sends no versions, or with TENDER_DELTA_VERSIONS=content, versions are derived from content, so
// changes are detected even if the origin reuses a version.
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
					t.Errorf("got version %q, want h1. and 22 characters", v)
				}
				time.Sleep(confirmTimeout)
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

// After an origin restarts and reuses version numbers for other content, all clients receive the new content, from
// this relay or another.
func TestC36_ReusedVersions(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion, b.IgnoreIRV = "1", true })
		o.Set(typeCDS, "a", relaytest.Cluster("a", "old"), "1")
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		old := recvAndAck(t, c, typeCDS, "a")
		reconnecting := r.Client(relaytest.ClientOptions{Variant: v})
		reconnecting.Subscribe(typeCDS, "*")
		recvAndAck(t, reconnecting, typeCDS, "a")
		reconnecting.Close()

		o.Stop()
		o.Clear()
		o.Set(typeCDS, "a", relaytest.Cluster("a", "new"), "1")
		o.Restart()
		got := recvAndAck(t, c, typeCDS, "a")
		if v == relaytest.SotW && got.Version == old.Version {
			t.Errorf("version %q stands for two sets", got.Version)
		}
		reconnecting.Reconnect(r.Conn())
		recvAndAck(t, reconnecting, typeCDS, "a")
		if v == relaytest.SotW { // another replica, which never had the old content
			reconnecting.Reconnect(start(t, o).Conn())
			expectQuiet(t, reconnecting, confirmTimeout)
			c.Close()
			c = start(t, o).Client(relaytest.ClientOptions{Variant: v})
			c.Send(returningSotW(typeCDS, old.Version))
			recvAndAck(t, c, typeCDS, "a")
		}
	})
}
