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

// A rig is a view that a linter checks, in a bubble of synctest.
type rig struct {
	*testing.T
	linter *Linter
	view   *cache.View
	writer *cache.Writer
	logged *strings.Builder
}

// check runs a test on a view of which clients subscribe to all clusters, and to named routes and endpoints.
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
		go func() { // awaited below
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

// put has the origin state resources, in JSON by name.
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

func routeTo(cluster string) string {
	return `,"virtual_hosts":[{"name":"v","domains":["*"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"` + cluster + `"}}]}]`
}

// finds holds what is reported a while later: of each finding its kind, and a part of its detail.
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
		r.Fatalf("%d findings, counted %d, want %d: %q", len(got), n, len(want), got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			r.Errorf("finding %q, want %q", got[i], want[i])
		}
	}
}

// A route that names no cluster is reported until the cluster is there, and again once it is removed.
func TestLinter_References(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("a")})
		r.finds() // nobody knows which clusters there are
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
			t.Errorf("%d lines in the log, want one for each finding:\n%s", n, r.logged)
		}
	})
}

// A route that arrives shortly before its cluster is no finding at any time.
func TestLinter_Order(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"b": static})
		r.put(cache.ByName, wire.RouteType, map[string]string{"r": routeTo("a")})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(r.linter.Report().Findings); n != 0 {
			t.Errorf("%d findings within the time for another response", n)
		}
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": static})
		r.finds()
		if r.logged.Len() > 0 {
			t.Errorf("logged: %s", r.logged)
		}
	})
}

// Endpoints are requested by name: nothing is known of them before the origin has answered.
func TestLinter_Endpoints(t *testing.T) {
	check(t, nil, func(r *rig) {
		r.put(cache.Wildcard, wire.ClusterType, map[string]string{"a": byEDS, "c": byEDS})
		r.finds()
		r.writer.Apply(cache.ByName, wire.Update{TypeURL: wire.EndpointType, Removed: []string{"a"}})
		r.finds(`missing_reference cds a: names endpoints "a", which does not exist: the control plane has no such`)
		r.writer.SetConnected(false) // who knows
		r.finds()
	})
}

// Clusters of the bootstrap, and those that are fetched on demand, need not exist.
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

// A finding about a resource itself goes when the resource is mended, or removed.
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

// However many findings there are, the list, the log and the report are bounded, and all findings are counted.
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
			t.Errorf("%d lines in the log, want a few", n)
		}
	})
}

// TestPacer holds the share of a core that a linter takes, by a clock that work moves: a step is a millisecond.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace, began, worked := pacer(t.Context()), time.Now(), time.Duration(0)
		for range 1000 {
			time.Sleep(time.Millisecond) // the work
			worked += time.Millisecond
			pace()
		}
		if all := time.Since(began); all < 19*worked || all > 21*worked {
			t.Errorf("%v of work took %v, want twenty times that", worked, all)
		}
	})
}
