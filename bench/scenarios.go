package main

import (
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// clusters returns a setup of count clusters of 1 KiB, and clients that subscribe to all of them by the wildcard.
func clusters(count, clients int) setup {
	return setup{
		kinds:     []content.Kind{{TypeURL: content.Cluster, Count: count, Bytes: 1024}},
		interests: []load.Interest{{TypeURL: content.Cluster, Wildcard: true, Of: count}},
		clients:   clients,
		workers:   2,
	}
}

// idle is IDLE: memory and start time of the relay without clients.
func (o options) idle() scenario {
	return scenario{
		id: "IDLE", title: "the relay without a client", rounds: 3,
		rows: []row{{label: "tender", kind: "tender", setup: clusters(1, 1), act: func(st *stage, f *figures) error {
			time.Sleep(2 * settle)
			m, err := st.servers.Memory()
			f.held, f.listening = float64(m.Resident)/(1<<20), milliseconds(st.listening)
			return err
		}}},
		checks: []check{{what: "RSS, MiB", figure: held, a: "tender", most: 20}},
	}
}

// wildcard is S1: wildcard CDS over Delta. Other scenarios use its load for comparison.
func (o options) wildcard() scenario {
	s := clusters(100, o.scaled(1000))
	act := changing(o.s1Changes())
	return scenario{
		id: "S1", title: "delta wildcard CDS, 100 clusters of 1 KiB, 1,000 clients, one changed every 250 ms", rounds: 3,
		rows: []row{
			{label: "raw", kind: "raw", setup: s, act: act},
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "ads", kind: "tender", setup: s.ads(), act: act},
			{label: "gcp-linear", kind: "gcp-linear", once: true, setup: s, act: act},
			{label: "gcp-linear+", kind: "gcp-linear+", once: true, setup: s, act: act},
			{label: "gcp-snapshot", kind: "gcp-snapshot", once: true, setup: s, act: act},
			{label: "gcp-snapshot+", kind: "gcp-snapshot+", once: true, setup: s, act: act},
		},
		checks: []check{
			{what: "CPU a delivery", figure: cpu, a: "tender", b: "grpc", most: 1.05},
			{what: "CPU a delivery", figure: cpu, a: "tender", b: "raw", most: 2.1},
			{what: "p99 delay", figure: p99, a: "tender", b: "grpc", most: 1.3},
			{what: "CPU a delivery", figure: cpu, a: "grpc", b: "raw", reported: true},
			{what: "CPU a delivery", figure: cpu, a: "ads", b: "grpc", most: 1},
			{what: "CPU a delivery", figure: cpu, a: "ads", b: "raw", most: 1.9},
			{what: "CPU a delivery", figure: cpu, a: "ads", b: "tender", reported: true},
			{what: "p99 delay", figure: p99, a: "ads", b: "tender", reported: true},
			{what: "RSS a client, KiB", figure: resident, a: "ads", b: "tender", reported: true},
			{what: "RSS a client, KiB", figure: resident, a: "ads", most: 22},
		},
	}
}

// bounds is BOUNDS: the cost of the accounting for the rate limits and buffer limits of clients.
func (o options) bounds() scenario {
	s := clusters(100, o.scaled(1000))
	act := changing(o.s1Changes())
	return scenario{
		id: "BOUNDS", title: "as S1, beside a Tender that charges clients nothing for connections, frames and requests", rounds: 5,
		rows: []row{
			{label: "without", kind: "tender", free: true, setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
		},
		checks: []check{{what: "CPU a delivery", figure: cpu, a: "tender", b: "without", most: 1.03}},
	}
}

// s1Changes are the changes of S1.
func (o options) s1Changes() serve.Changes {
	return serve.Changes{TypeURL: content.Cluster, Count: o.scaled(20), Every: 250 * time.Millisecond}
}

// manyClusters is S2: CPU per delivery must not grow with the number of cached resources.
func (o options) manyClusters() scenario {
	act := changing(o.s1Changes())
	clients := o.scaled(1000)
	slower := changing(serve.Changes{TypeURL: content.Cluster, Count: 4, Every: time.Second})
	slowest := changing(serve.Changes{TypeURL: content.Cluster, Count: 2, Every: 2 * time.Second})
	return scenario{
		id: "S2", title: "as S1, with 2,000 and with 10,000 clusters", rounds: 2,
		rows: []row{
			{label: "tender, 100", kind: "tender", setup: clusters(100, clients), act: act},
			{label: "tender, 2,000", kind: "tender", setup: clusters(2000, clients), act: act},
			{label: "tender, 10,000", kind: "tender", setup: clusters(10_000, clients), act: act},
			{label: "gcp-linear+, 2,000, one a second", kind: "gcp-linear+", once: true, setup: clusters(2000, clients), act: slower},
			{label: "gcp-snapshot+, 2,000, one every 2 s", kind: "gcp-snapshot+", once: true, setup: clusters(2000, clients), act: slowest},
		},
		checks: []check{
			{what: "CPU a delivery", figure: cpu, a: "tender, 2,000", b: "tender, 100", most: 1.1},
			{what: "CPU a delivery", figure: cpu, a: "tender, 10,000", b: "tender, 100", most: 1.1},
		},
	}
}

// sotw is S3: wildcard CDS over SotW, in which each response repeats all clusters.
func (o options) sotw() scenario {
	s := clusters(1000, o.scaled(200))
	s.sotw, s.workers = true, 0
	fewer := s
	fewer.clients = o.scaled(50)
	act := changing(serve.Changes{TypeURL: content.Cluster, Count: o.scaled(8), Every: 700 * time.Millisecond})
	response := float64(len(content.NewSet(s.kinds).SotW(s.kinds[0]))) / (1 << 20)
	return scenario{
		id: "S3", title: "SotW wildcard CDS, 1,000 clusters of 1 KiB, 200 clients, one changed every 700 ms", rounds: 3,
		rows: []row{
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "tender, 50 clients", kind: "tender", setup: fewer, act: act},
		},
		checks: []check{
			{what: "CPU a response", figure: cpu, a: "tender", b: "grpc", most: 1.15},
			{what: "peak RSS above idle, MiB", figure: peak, a: "tender", most: max(4*response, 16)},
			{what: "peak RSS above idle, MiB", figure: peak, a: "tender, 50 clients", most: max(4*response, 16)},
		},
	}
}

// cold is S4: clients without state connect at once and receive all clusters.
func (o options) cold() scenario {
	s := clusters(2000, o.scaled(300))
	s.workers = 0
	act := (*stage).fill
	return scenario{
		id: "S4", title: "cold start: 300 clients × 2,000 clusters of 1 KiB", rounds: 5,
		rows: []row{
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "ads", kind: "tender", setup: s.ads(), act: act},
			{label: "gcp-linear", kind: "gcp-linear", once: true, setup: s, act: act},
			{label: "gcp-linear+", kind: "gcp-linear+", once: true, setup: s, act: act},
		},
		checks: []check{
			{what: "time until in sync", figure: synced, a: "tender", b: "grpc", most: 1.15},
			{what: "CPU until in sync", figure: syncCPU, a: "tender", b: "grpc", most: 1.15},
			{what: "time until in sync", figure: synced, a: "ads", b: "grpc", reported: true},
			{what: "CPU until in sync", figure: syncCPU, a: "ads", b: "grpc", most: 0.8},
		},
	}
}

// envoys is S5: memory per idle client with the subscriptions of an Envoy.
func (o options) envoys() scenario {
	s := setup{clients: o.scaled(5000), workers: 2}
	for _, k := range []content.Kind{
		{TypeURL: content.Cluster, Count: 100, Bytes: 1024},
		{TypeURL: content.Listener, Count: 20, Bytes: 1024},
		{TypeURL: content.Endpoint, Count: 100, Bytes: 256},
		{TypeURL: content.Route, Count: 20, Bytes: 1024},
	} {
		s.kinds = append(s.kinds, k)
		wildcard := k.TypeURL == content.Cluster || k.TypeURL == content.Listener
		s.interests = append(s.interests, load.Interest{TypeURL: k.TypeURL, Wildcard: wildcard, Count: k.Count, Of: k.Count})
	}
	wait := idleFor
	if o.scale < 1 { // no measurement
		wait = settle
	}
	act := func(st *stage, f *figures) error { return st.connect(f, wait) }
	return scenario{
		id: "S5", title: "idle Envoys: wildcard CDS and LDS, 100 EDS and 20 RDS names, 5,000 clients", rounds: 2,
		rows: []row{
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "ads", kind: "tender", setup: s.ads(), act: act},
		},
		checks: []check{
			{what: "RSS a client, KiB", figure: resident, a: "tender", b: "grpc", most: 1.15},
			{what: "RSS a client, KiB", figure: resident, a: "ads", b: "tender", reported: true},
			{what: "RSS a client, KiB", figure: resident, a: "ads", most: 30},
		},
	}
}

// sparse is S6: many changes, each of which concerns few clients.
func (o options) sparse() scenario {
	names := setup{
		kinds:     []content.Kind{{TypeURL: content.Endpoint, Count: 10_000, Bytes: 256}},
		interests: []load.Interest{{TypeURL: content.Endpoint, Count: 50, Of: 10_000}},
		clients:   o.scaled(5000),
		workers:   2,
		byName:    true,
	}
	act := changing(serve.Changes{TypeURL: content.Endpoint, Count: o.scaled(20_000), Every: time.Millisecond, Random: true})
	return scenario{
		id: "S6", title: "sparse interest: 5,000 clients × 50 of 10,000 EDS names, 1,000 changes a second for 20 s", rounds: 1,
		rows: []row{
			{label: "tender, S1", kind: "tender", setup: clusters(100, o.scaled(1000)), act: changing(o.s1Changes())},
			{label: "grpc, S1", kind: "grpc", setup: clusters(100, o.scaled(1000)), act: changing(o.s1Changes())},
			{label: "tender", kind: "tender", setup: names, act: act},
			{label: "grpc", kind: "grpc", setup: names, act: act},
		},
		checks: []check{
			{what: "CPU a delivery", figure: cpu, a: "tender", b: "tender, S1", most: 1.5},
			{what: "streams woken with nothing to send, %", figure: idle, a: "tender", most: 1},
			{what: "CPU a delivery", figure: cpu, a: "grpc", b: "grpc, S1", reported: true},
			{what: "CPU a delivery", figure: cpu, a: "tender", b: "grpc", most: 1.1},
			{what: "p99 delay", figure: p99, a: "tender", b: "grpc", most: 1.3},
			{what: "p50 delay, ms", figure: p50, a: "tender", reported: true},
			{what: "longest delay, ms", figure: longest, a: "tender", reported: true},
		},
	}
}

// names is S7: memory of large named subscriptions. All clients also subscribe to one
// listener; its changes produce the garbage that triggers collections.
func (o options) names() scenario {
	const each = 5000
	listener := load.Interest{TypeURL: content.Listener, Wildcard: true, Of: 1}
	endpoints := func(count int) []load.Interest {
		return []load.Interest{{TypeURL: content.Endpoint, Count: count, Of: 2 * each}, listener}
	}
	clients := o.scaled(1000)
	s := setup{
		kinds:   []content.Kind{{TypeURL: content.Endpoint, Count: 2 * each, Bytes: 192}, {TypeURL: content.Listener, Count: 1, Bytes: 1024}},
		clients: 1 + 2*clients,
		environ: tracing,
	}
	act := func(st *stage, f *figures) error {
		var live [3]float64 // with all names cached; plus clients of one name; plus clients of many names
		for i, step := range []struct {
			interests []load.Interest
			clients   int
		}{{endpoints(2 * each), 1}, {endpoints(1), 1 + clients}, {endpoints(each), 1 + 2*clients}} {
			st.interests = step.interests
			if _, err := st.open(step.clients); err != nil {
				return err
			}
			var err error
			if live[i], err = st.liveHeap(serve.Changes{TypeURL: content.Listener, Count: 5, Every: 20 * time.Millisecond}); err != nil {
				return err
			}
		}
		idle := live[1] - live[0]
		f.heap = (live[2] - live[1] - idle) / float64(clients*(each-1))
		return nil
	}
	return scenario{
		id: "S7", title: "large named subscriptions: 1,000 clients × 5,000 EDS names", rounds: 1,
		rows:   []row{{label: "tender", kind: "tender", setup: s, act: act}},
		checks: []check{{what: "live heap a client and name, bytes", figure: heap, a: "tender", most: 24}},
	}
}

// single is S8: the delay that the relay adds for one client.
func (o options) single() scenario {
	s := clusters(100, 1)
	act := changing(serve.Changes{TypeURL: content.Cluster, Count: o.scaled(100), Every: 20 * time.Millisecond})
	return scenario{
		id: "S8", title: "one client, one change at a time, through the relay against straight from the origin", rounds: 3,
		rows: []row{
			{label: "origin", kind: "origin", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
		},
		checks: []check{{what: "median delay added, ms", figure: p50, a: "tender", b: "origin", most: 0.5, more: true}},
	}
}

// storm is S9: all clients reconnect at once. One cluster changes while they are
// disconnected, and a client is in sync when it has received that change.
func (o options) storm() scenario {
	s := clusters(100, o.scaled(2000))
	act := func(st *stage, f *figures) error {
		var first figures
		if err := st.fill(&first); err != nil {
			return err
		}
		return st.dropAndReturn(f)
	}
	return scenario{
		id: "S9", title: "storm: all 2,000 clients drop and return at once with what they know", rounds: 3,
		rows: []row{
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "ads", kind: "tender", setup: s.ads(), act: act},
		},
		checks: []check{
			{what: "time until in sync", figure: synced, a: "tender", b: "grpc", most: 1.3},
			{what: "resources resent a client", figure: again, a: "tender", most: 0},
			{what: "CPU until in sync", figure: syncCPU, a: "ads", b: "grpc", most: 0.8},
			{what: "resources resent a client", figure: again, a: "ads", most: 0},
		},
	}
}

// stalled is S10: a tenth of the clients stops reading. The first responses to them, with
// every cluster, exceed their receive buffers.
func (o options) stalled() scenario {
	clients := o.scaled(1000)
	s := clusters(100, clients)
	small := s
	small.buffered = max(clients/10, 1)
	traced := small
	traced.environ = tracing
	act := func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
		if err := st.stall(); err != nil {
			return err
		}
		return st.follow(f, o.s1Changes())
	}
	live := func(st *stage, f *figures) error { return st.heapOfStalled(f, o.s1Changes()) }
	return scenario{
		id: "S10", title: "a tenth of 1,000 clients stops reading", rounds: 3,
		rows: []row{
			{label: "tender, S1", kind: "tender", setup: s, act: changing(o.s1Changes())},
			{label: "tender, the rest", kind: "tender", setup: small, act: act},
			{label: "tender, heap", kind: "tender", once: true, setup: traced, act: live},
		},
		checks: []check{
			{what: "p99 delay", figure: p99, a: "tender, the rest", b: "tender, S1", most: 1.2},
			{what: "live heap a stalled client, bytes", figure: heap, a: "tender, heap", most: 64 << 10},
		},
	}
}

// tree is TREE: the load of S1 at a lower rate, on one relay and on a tree of three relays.
func (o options) tree() scenario {
	s := clusters(100, o.scaled(5000))
	three := s
	three.lower = 2
	act := changing(serve.Changes{TypeURL: content.Cluster, Count: o.scaled(8), Every: 500 * time.Millisecond})
	return scenario{
		id: "TREE", title: "100 clusters of 1 KiB, 5,000 clients, one changed every 500 ms: one relay, and two behind a third", rounds: 2,
		rows: []row{
			{label: "one relay", kind: "tender", setup: s, act: act},
			{label: "tree of three", kind: "tender", setup: three, act: act},
		},
		checks: []check{
			{what: "CPU a delivery, all relays", figure: cpu, a: "tree of three", b: "one relay", reported: true},
			{what: "median delay added, ms", figure: p50, a: "tree of three", b: "one relay", more: true, reported: true},
			{what: "p99 delay", figure: p99, a: "tree of three", b: "one relay", reported: true},
		},
	}
}
