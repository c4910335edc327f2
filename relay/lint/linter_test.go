package lint

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// A rig is a view with a running linter, in a synctest bubble.
type rig struct {
	*testing.T
	linter *Linter
	view   *cache.View
	writer *cache.Writer
	logged *strings.Builder
}

// check runs a test on a view. Clients subscribe to clusters and listeners by wildcard, to the route configuration r,
// and to the endpoints a and b.
func check(t *testing.T, static Patterns, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		view, writers := cache.NewRouted(cache.Config{})
		r := &rig{T: t, view: view, writer: writers[0], logged: new(strings.Builder)}
		watch := view.Watch()
		wc, names := watch.SubscribeAll(wire.ClusterType), watch.Subscribe(wire.RouteType, []string{"r"})
		listeners, endpoints := watch.SubscribeAll(wire.ListenerType), watch.Subscribe(wire.EndpointType, []string{"a", "b"})
		r.linter = New(Config{
			Views: func() []View { return []View{{view, "g"}} }, Static: static, Logger: slog.New(slog.NewTextHandler(r.logged, nil)),
		})
		r.writer.SetConnected(true)
		r.writer.TakeDemand()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends before check returns
			defer close(ended)
			r.linter.Run(ctx)
		}()
		test(r)
		cancel()
		<-ended
		watch.UnsubscribeAll(wc)
		watch.UnsubscribeAll(listeners)
		watch.Unsubscribe(wire.RouteType, names)
		watch.Unsubscribe(wire.EndpointType, endpoints)
		watch.Close()
	})
}

// put applies resources from the origin: JSON fields by name. A wildcard set is confirmed.
func (r *rig) put(kind cache.Kind, typeURL string, resources map[string]string) {
	r.Helper()
	u := wire.Update{TypeURL: typeURL}
	for name, json := range resources {
		_, value, err := schema.UnmarshalJSON([]byte(`{"@type":"` + typeURL + `","name":"` + name + `"` + json + `}`))
		if err != nil {
			r.Fatal(err)
		}
		made, err := wire.NewResource(typeURL, name, "", value)
		if err != nil {
			r.Fatal(err)
		}
		u.Resources = append(u.Resources, made)
	}
	r.writer.Apply(kind, u)
	if kind == cache.Wildcard {
		r.writer.SetPhase(typeURL, cache.Confirmed)
	}
}

const (
	static = `,"connect_timeout":"1s"`
	byEDS  = `,"connect_timeout":"1s","type":"EDS","eds_cluster_config":{"eds_config":{"ads":{}}}`
)

// routeTo returns the JSON fields of a route configuration with a route to a cluster.
func routeTo(cluster string) string {
	return `,"virtual_hosts":[{"name":"v","domains":["*"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"` + cluster + `"}}]}]`
}

// finds waits until a new absence would be reported, and then compares all findings with want. Each want is a prefix of
// the kind, short type, name and detail of a finding.
func (r *rig) finds(want ...string) {
	r.Helper()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	report := r.linter.Report()
	var got []string
	for _, f := range report.Findings {
		short, _ := schema.ShortName(f.TypeURL)
		got = append(got, fmt.Sprintf("%s %s %s: %s", f.Kind, short, f.Name, f.Detail))
	}
	n := 0
	for _, c := range report.Counts {
		n += c.Number
	}
	if len(got) != len(want) || n != len(want) {
		r.Fatalf("%d findings, %d counted, want %d: %q", len(got), n, len(want), got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			r.Errorf("finding %q, want %q", got[i], want[i])
		}
	}
}

// TestLinter_References checks that a reference to a missing cluster is reported until the cluster exists, and again
// after it was removed.
func TestLinter_References(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("a")})
		r.finds() // the wildcard set of clusters is not confirmed
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"b": static})
		r.finds(`missing_reference rds r: names cluster "a", which does not exist: it is none of the 1`)
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": static})
		r.finds()
		r.writer.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Removed: []string{"a"}})
		r.finds(`removed_reference rds r: names cluster "a", which the control plane has removed`)
		r.put(cache.Wildcard, wire.ListenerType, map[string]string{"l": ""}) // any change
		r.finds(`removed_reference rds r: names cluster "a"`)
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("b")})
		r.finds()
		if n := strings.Count(r.logged.String(), "resource failed validation"); n != 2 {
			t.Errorf("%d lines in the log, want 2, one per new finding:\n%s", n, r.logged)
		}
		if n := strings.Count(r.logged.String(), "resource no longer fails validation"); n != 2 {
			t.Errorf("%d lines in the log about findings that ended, want 2:\n%s", n, r.logged)
		}
	})
}

// TestLinter_Order checks that a route is never reported if it arrives shortly before its cluster.
func TestLinter_Order(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"b": static})
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("a")})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(r.linter.Report().Findings); n != 0 {
			t.Errorf("%d findings after 2s, want none before the end of settle", n)
		}
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": static})
		r.finds()
		if r.logged.Len() > 0 {
			t.Errorf("log is %s, want nothing", r.logged)
		}
	})
}

// TestLinter_Endpoints checks that missing endpoints, which are requested by name, are reported only after the origin
// has reported that they do not exist. The origin must still be connected.
func TestLinter_Endpoints(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": byEDS, "c": byEDS})
		r.finds()
		r.writer.Apply(cache.ByName, wire.Update{TypeURL: wire.EndpointType, Removed: []string{"a"}})
		r.finds(`missing_reference cds a: names endpoints "a", which does not exist: the control plane has no such`)
		r.writer.SetConnected(false) // the existence is now unknown
		r.finds()
	})
}

// TestLinter_OtherClusters checks that static clusters and clusters that are fetched on demand are not reported.
func TestLinter_OtherClusters(t *testing.T) {
	check(t, Patterns{"agent", "static-*"}, func(r *rig) {
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"b": static})
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("static-a/b")})
		r.finds()
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("static")})
		r.finds(`missing_reference rds r: names cluster "static"`)
		const onDemand = `,"address":{"socket_address":{"address":"::","port_value":80}},"filter_chains":[{"filters":[{"name":"t","typed_config":{
			"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy","stat_prefix":"s","cluster":"x","on_demand":{"odcds_config":{"ads":{}}}}}]}]`
		r.put(cache.Wildcard, wire.ListenerType, map[string]string{"l": onDemand})
		r.finds()
		r.writer.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ListenerType, Removed: []string{"l"}})
		r.finds(`missing_reference rds r: names cluster "static"`)
	})
}

// TestLinter_Resources checks that a finding about a resource disappears when the resource is fixed or removed.
func TestLinter_Resources(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": `,"connect_timeout":"0s"`, "b": `,"connect_timeout":"0s"`})
		r.finds("invalid cds a: ConnectTimeout", "invalid cds b: ConnectTimeout")
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": static})
		r.finds("invalid cds b: ConnectTimeout")
		r.writer.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Removed: []string{"b"}})
		r.finds()
		if n := r.linter.Report().Checked; n != 3 {
			t.Errorf("%d resources checked, want 3", n)
		}
		garbage, err := wire.NewResource(wire.ClusterType, "c", "", []byte{0x0a, 0x05, 'c'})
		if err != nil {
			t.Fatal(err)
		}
		r.writer.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{garbage}})
		r.finds("undecodable cds c: not of type envoy.config.cluster.v3.Cluster")
		large, err := wire.NewResource(wire.ClusterType, "c", "", append([]byte{0x0a, 0x01, 'c', 0xea, 0x01, 0x81, 0x80, 0x40}, make([]byte, largest+1)...))
		if err != nil {
			t.Fatal(err)
		}
		r.writer.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{large}})
		r.finds("unchecked cds c: larger than 1 MiB")
	})
}

// TestLinter_Bounds checks that the log and the list of findings are limited, but all findings are counted.
func TestLinter_Bounds(t *testing.T) {
	check(t, nil, func(r *rig) {
		clusters := make(map[string]string)
		for i := range 3 * mostListed {
			clusters[fmt.Sprint(i)] = `,"connect_timeout":"0s"`
		}
		r.put(cache.Wildcard, wire.ClusterType, clusters)
		time.Sleep(time.Minute)
		synctest.Wait()
		report := r.linter.Report()
		if want := []Count{{wire.ClusterType, Invalid, 3 * mostListed}}; len(report.Findings) != mostListed || !slices.Equal(report.Counts, want) {
			t.Errorf("%d findings listed, counts %v, want %d and %v", len(report.Findings), report.Counts, mostListed, want)
		}
		if n := strings.Count(r.logged.String(), "\n"); n > 12 {
			t.Errorf("%d lines in the log, want at most 12", n)
		}
	})
}

// TestPacer checks the share of time that a linter works. Each piece of work takes a millisecond of the bubble's clock.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace, began, worked := pacer(t.Context()), time.Now(), time.Duration(0)
		for range 1000 {
			time.Sleep(time.Millisecond) // the work
			worked += time.Millisecond
			pace()
		}
		if all := time.Since(began); all < 19*worked || all > 21*worked {
			t.Errorf("%v of work took %v, want 20 times as long", worked, all)
		}
	})
}
