package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/bench/bound"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/serve"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// fleet is ENVOYS: real Envoys that connect to a relay, and for comparison directly to go-control-plane.
func (o options) fleet() scenario {
	s := setup{kinds: []content.Kind{{TypeURL: content.Cluster, Count: 1}}, fleet: true, clients: o.scaled(50)}
	act := o.envoysFollow
	return scenario{
		id: "ENVOYS", title: fmt.Sprintf("%d real Envoys that start, and then 10 changes of a cluster", s.clients), rounds: 5,
		rows: []row{
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "gcp-snapshot", kind: "fleet", setup: s, act: act},
		},
		checks: []check{
			{what: "time until all are configured", figure: synced, a: "tender", b: "gcp-snapshot", reported: true},
			{what: "time until all have a change", figure: reached, a: "tender", b: "gcp-snapshot", reported: true},
			{what: "CPU until all are configured", figure: syncCPU, a: "tender", b: "gcp-snapshot", reported: true},
			{what: "CPU a delivery", figure: cpu, a: "tender", b: "gcp-snapshot", reported: true},
			{what: "RSS", figure: held, a: "tender", b: "gcp-snapshot", reported: true},
		},
	}
}

// envoysFollow is an act that starts Envoys, makes changes and measures both.
func (o options) envoysFollow(st *stage, f *figures) (err error) {
	tb := bound.New()
	defer func() { err = errors.Join(err, tb.End()) }()
	cpu, err := st.servers.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := startEnvoys(tb, st.addresses[0], st.clients); err != nil {
		return err
	}
	f.sync = milliseconds(time.Since(began))
	time.Sleep(settle) // until the servers have read the last ACKs
	after, err := st.servers.CPU()
	if err != nil {
		return err
	}
	m, err := st.servers.Memory()
	if err != nil {
		return err
	}
	f.syncCPU, f.held = milliseconds(after-cpu), float64(m.Resident)/(1<<20)
	return st.followProbes(f, 10)
}

// together is the number of Envoys that start concurrently: more of them would only wait for a processor.
const together = 8

// startEnvoys starts n Envoys, together at a time, and waits until each one is configured and accepts connections.
func startEnvoys(tb *bound.TB, server string, n int) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	starting := make(chan struct{}, together)
	for i := range n {
		starting <- struct{}{}
		all.Go(func() {
			defer func() { <-starting }()
			errs[i] = tb.Do(func() {
				e := envoytest.Start(tb, envoytest.Options{Server: server, Node: relaytest.EnvoyNode(fmt.Sprint("edge-", i))})
				e.AwaitReady()
				e.Listener("web")
			})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// followProbes makes changes one after the other, and measures the time until each Envoy has applied each change. An
// Envoy that has applied a change sends a health check to the path of that change.
func (st *stage) followProbes(f *figures, changes int) error {
	cpu, err := st.servers.CPU()
	if err != nil {
		return err
	}
	var each, last []time.Duration
	for change := 1; change <= changes; change++ {
		began := time.Now()
		if err := st.changer.Call("Change", serve.Changes{TypeURL: content.Cluster, Count: 1}, &[]int{}); err != nil {
			return err
		}
		arrived, err := st.arrivals.await(serve.ProbePath(change), st.clients)
		if err != nil {
			return err
		}
		for _, at := range arrived {
			each = append(each, at.Sub(began))
		}
		last = append(last, arrived[len(arrived)-1].Sub(began))
	}
	time.Sleep(settle) // until the servers have read the last ACKs
	after, err := st.servers.CPU()
	if err != nil {
		return err
	}
	slices.Sort(each)
	slices.Sort(last)
	f.cpu = float64((after - cpu).Microseconds()) / float64(changes*st.clients)
	f.reached = milliseconds(percentile(last, 50))
	f.p50, f.p99, f.max = milliseconds(percentile(each, 50)), milliseconds(percentile(each, 99)), milliseconds(percentile(each, 100))
	return nil
}

// arrivals is a web server that records the times of the requests for each path.
type arrivals struct {
	address string
	server  http.Server

	mu      sync.Mutex
	at      map[string][]time.Time // guarded by mu
	changed chan struct{}          // guarded by mu; closed at the next request
}

// newArrivals starts the web server on a free port of loopback. The caller must close it.
func newArrivals() (*arrivals, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for health checks: %w", err)
	}
	a := &arrivals{address: l.Addr().String(), at: make(map[string][]time.Time), changed: make(chan struct{})}
	a.server.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at[r.URL.Path] = append(a.at[r.URL.Path], time.Now())
		close(a.changed)
		a.changed = make(chan struct{})
	})
	go func() { _ = a.server.Serve(l) }() // ends with the server
	return a, nil
}

func (a *arrivals) close() { _ = a.server.Close() } // an error has no consequence here

// await waits until a path was requested n times, and returns the times of the first n requests.
func (a *arrivals) await(path string, n int) ([]time.Time, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		a.mu.Lock()
		at, changed := a.at[path], a.changed
		a.mu.Unlock()
		if len(at) >= n {
			return at[:n], nil
		}
		select {
		case <-changed:
		case <-late.C:
			return nil, fmt.Errorf("%d of %d Envoys have change %s after %v", len(at), n, path, patience)
		}
	}
}
