package upstream

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream/reconcile"
)

const acme = "type.googleapis.com/acme.Thing"

// globName returns the name of the i-th collection of acme.
func globName(i int) string { return fmt.Sprintf("xdstp://one/acme.Thing/%d/*", i) }

// collections returns a connected view with n empty collections, each with a client, and its writer.
func collections(b *testing.B, n int) (*cache.View, *cache.Writer) {
	b.Helper()
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	for i := range n {
		watch.SubscribeAll(cache.Collection(acme, globName(i)))
	}
	w.SetConnected(true)
	return view, w
}

// member returns an update with new content for one member of the first collection.
func member(b *testing.B, version int) wire.Update {
	b.Helper()
	r := check.Must(wire.NewResource(acme, "xdstp://one/acme.Thing/0/a", fmt.Sprint(version), fmt.Append(nil, version)))
	return wire.Update{TypeURL: acme, Resources: []*wire.Resource{r}}
}

// BenchmarkShareAmongCollections measures a share when one of n shared collections changes.
func BenchmarkShareAmongCollections(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			from, fromWriter := cache.New(cache.Config{})
			fromWriter.SetConnected(true)
			view, w := collections(b, n)
			s := newShare(from, pending.New(w, nil))
			s.demand(time.Now())
			s.follow(time.Now())
			key := cache.Collection(acme, globName(0))
			rounds := 0
			for b.Loop() {
				u := member(b, rounds)
				u.TypeURL = key
				fromWriter.Apply(cache.Wildcard, u)
				s.follow(time.Now())
				rounds++
			}
			if got := view.Generation().Type(key).Wildcard.Last(); got < cache.Seq(rounds) {
				b.Fatalf("the share applied %d changes, want %d", got, rounds)
			}
		})
	}
}

// benchMirror returns a viewSync without a loop, with an open stream that has received nothing.
func benchMirror(b testing.TB, w *cache.Writer) *viewSync {
	b.Helper()
	session := check.Must(New(Config{Targets: []string{"127.0.0.1:1"}}))
	b.Cleanup(func() { _ = session.Close() })
	v := session.newViewSync(b.Context(), nil, pending.New(w, nil), slog.New(slog.DiscardHandler), NewControl(false, nil))
	v.trunk.byRole[main] = adsStream{stream: benchStream(v, main), open: true, openedAt: time.Now(), retry: backoff.NewExponentialBackOff()}
	return v
}

// benchStream returns a stream without goroutines.
func benchStream(v *viewSync, r role) *stream {
	return &stream{
		branch: v.trunk, role: r, cancel: func(error) {}, out: make(chan proto.Message, sendQueue),
		requested: make(map[string]bool), answers: make(map[string]*answer),
	}
}

// BenchmarkUpdate measures one response with new content for some of 1,000 resources, and the following step of the
// loop: on a stream that has just opened, and once the set is confirmed.
func BenchmarkUpdate(b *testing.B) {
	const all = 1000
	name := func(i int) string { return fmt.Sprintf("service-%03d", i) }
	for _, typeURL := range []string{wire.ClusterType, wire.EndpointType} {
		var versions [32][]*wire.Resource // more versions than an entry remembers
		for v := range versions {
			for i := range all {
				versions[v] = append(versions[v], benchResource(b, typeURL, name(i), v))
			}
		}
		for _, changed := range []int{1, all} {
			for _, confirmed := range []bool{true, false} {
				b.Run(fmt.Sprintf("type=%s/changed=%d/confirmed=%t", typeURL[strings.LastIndexByte(typeURL, '.')+1:], changed, confirmed), func(b *testing.B) {
					view, w := cache.New(cache.Config{})
					watch := view.Watch()
					for i := range all {
						if typeURL == wire.EndpointType {
							watch.Subscribe(typeURL, []string{name(i)})
						}
					}
					if typeURL == wire.ClusterType {
						watch.SubscribeAll(typeURL)
					}
					w.SetConnected(true)
					m := benchMirror(b, w)
					now := m.trunk.byRole[main].openedAt
					m.demand(now)
					respond := func(n, version int) {
						u := wire.Update{TypeURL: typeURL, Nonce: "1", Resources: versions[version%len(versions)][:n]}
						m.handleResponse(&m.trunk.byRole[main], event{stream: m.trunk.byRole[main].stream, update: u, at: now}, now)
						m.step(now)
						for len(m.trunk.byRole[main].out) > 0 {
							<-m.trunk.byRole[main].out
						}
					}
					now = now.Add(time.Second)
					m.step(now)
					respond(all, 0)
					now = now.Add(2 * time.Minute)
					m.step(now)
					if !confirmed { // a new stream resets the set
						m.streamOpened(&m.trunk.byRole[main], now)
					}
					respond(all, 0)
					before, rounds := view.Generation().Seq, 0
					b.ReportAllocs()
					for b.Loop() {
						rounds++
						respond(changed, rounds)
					}
					if got := view.Generation().Seq - before; got < cache.Seq(rounds) {
						b.Fatalf("%d changes applied, want %d", got, rounds)
					}
				})
			}
		}
	}
}

// BenchmarkUpdateBesideKept measures a response with 1,000 assignments while the removal of 500 clusters is dropped,
// each of which may reference one.
func BenchmarkUpdateBesideKept(b *testing.B) {
	const all, kept = 1000, 500
	name := func(i int) string { return fmt.Sprintf("service-%03d", i) }
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	watch.SubscribeAll(wire.ClusterType)
	for i := range all {
		watch.Subscribe(wire.EndpointType, []string{name(i)})
	}
	w.SetConnected(true)
	m := benchMirror(b, w)
	now := m.trunk.byRole[main].openedAt
	m.demand(now)
	clusters := m.trunk.subs[wire.ClusterType]
	u := wire.Update{TypeURL: wire.ClusterType}
	for i := range kept {
		u.Resources = append(u.Resources, benchResource(b, wire.ClusterType, name(i), 0))
		clusters.members.RestoreDropped(name(i), &reconcile.Hold{})
	}
	w.Apply(cache.Wildcard, u)
	var versions [2][]*wire.Resource
	for v := range versions {
		for i := range all {
			versions[v] = append(versions[v], benchResource(b, wire.EndpointType, name(i), v))
		}
	}
	now = now.Add(2 * time.Minute)
	m.step(now)
	rounds := 0
	for b.Loop() {
		rounds++
		m.applyResponse(m.trunk.subs[wire.EndpointType], main, wire.Update{TypeURL: wire.EndpointType, Resources: versions[rounds%2]}, now)
	}
	if got := view.Generation().Seq; got < cache.Seq(rounds) {
		b.Fatalf("%d changes applied, want %d", got, rounds)
	}
}

// benchResource returns a cluster, or an assignment with three endpoints. Its content contains the version.
func benchResource(b *testing.B, typeURL, name string, version int) *wire.Resource {
	var m proto.Message = &clusterpb.Cluster{Name: name, AltStatName: fmt.Sprint(version)}
	if typeURL == wire.EndpointType {
		locality := &endpointpb.LocalityLbEndpoints{Priority: uint32(version)}
		for range 3 {
			locality.LbEndpoints = append(locality.LbEndpoints, &endpointpb.LbEndpoint{})
		}
		m = &endpointpb.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointpb.LocalityLbEndpoints{locality}}
	}
	value := check.Must(proto.Marshal(m))
	r := check.Must(wire.NewResource(typeURL, name, fmt.Sprint(version), value))
	return r
}

// BenchmarkMirrorAmongCollections measures one step of the loop when one of many collections changes.
func BenchmarkMirrorAmongCollections(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			view, w := collections(b, n)
			v := benchMirror(b, w)
			now := time.Now()
			v.demand(now)
			s := v.sub(v.trunk, acme)
			u := wire.Update{TypeURL: acme}
			for i := range n {
				u.Removed = append(u.Removed, globName(i))
			}
			v.applyResponse(s, main, u, now)
			rounds := 0
			for b.Loop() {
				rounds++
				v.applyResponse(s, main, member(b, rounds), now)
				v.step(now)
			}
			if got := view.Generation().Seq; got < cache.Seq(rounds) {
				b.Fatalf("%d changes applied, want %d", got, rounds)
			}
		})
	}
}

// BenchmarkIdleStep measures a step of a view whose origin sends nothing, by the number of types that it subscribes to.
func BenchmarkIdleStep(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("types=%d", n), func(b *testing.B) {
			v, now := idle(b, n)
			b.ReportAllocs()
			for b.Loop() {
				now = v.step(now)
			}
		})
	}
}
