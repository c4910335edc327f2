package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
)

// secure writes the certificates of a Tender into a temporary directory, and returns the variables with their paths.
func (st *stage) secure() (environ []string, err error) {
	if st.keys == "" {
		if st.keys, err = os.MkdirTemp("", "bench"); err != nil {
			return nil, fmt.Errorf("make a directory for certificates: %w", err)
		}
	}
	return st.certs.Environ(st.keys)
}

// secured is TLS: S1, S4, reconnecting and idle clients with mutual TLS and in plaintext. It also measures other clients
// while a herd connects.
func (o options) secured() scenario {
	s := scenario{id: "TLS", title: "S1, S4, 1,000 clients that return, 1,000 idle ones, and a herd of 1,000 beside 100 served ones, in plaintext and with mutual TLS 1.3", rounds: 3}
	cold := clusters(2000, o.scaled(300))
	cold.workers = 0
	many := clusters(100, o.scaled(1000))
	served := clusters(100, 100)
	served.environ = []string{"TENDER_FIRST_REQUEST_TIMEOUT=2m"} // the process of the herd has the lowest CPU priority, so requests are late
	add := func(label, kind string, of setup, act func(*stage, *figures) error) {
		plain := row{label: label + ", plaintext", kind: kind, setup: of, act: act}
		mutual := plain
		mutual.label, mutual.setup.tls = label+", mTLS", true
		s.rows = append(s.rows, plain, mutual)
	}
	add("S1", "tender", many, changing(o.s1Changes()))
	add("S1, ads", "tender", many.ads(), changing(o.s1Changes()))
	add("S4", "tender", cold, (*stage).fill)
	add("return", "tender", many, filledAndReturned)
	add("return, grpc", "grpc", many, filledAndReturned)
	resumed := s.rows[len(s.rows)-1]
	resumed.label, resumed.setup.resume = resumed.label+", resumed", true
	s.rows = append(s.rows, resumed)
	add("return, ads", "tender", many.ads(), filledAndReturned)
	idle := many
	idle.profiled = true
	add("idle", "tender", idle, func(st *stage, f *figures) (err error) {
		f.heap, err = st.heapOfIdle(many.clients)
		return err
	})
	add("herd", "tender", served, o.besideHerd(o.scaled(1000)))
	against := func(of string, what string, figure func(figures) float64) check {
		return check{what: what, figure: figure, a: of + ", mTLS", b: of + ", plaintext", reported: true}
	}
	s.checks = []check{
		against("S1", "CPU a delivery", cpu), against("S1", "p99 delay", p99), against("S1", "RSS a client, KiB", resident),
		against("S1, ads", "CPU a delivery", cpu),
		{what: "CPU a delivery", figure: cpu, a: "S1, ads, mTLS", most: 24},
		{what: "RSS a client, KiB", figure: resident, a: "S1, ads, mTLS", most: 55},
		against("S4", "time until in sync", synced), against("S4", "CPU until in sync", syncCPU),
		against("return", "CPU until in sync", syncCPU), against("return, grpc", "CPU until in sync", syncCPU),
		{what: "live heap a client, bytes", figure: heap, a: "idle, mTLS", b: "idle, plaintext", more: true, most: 12 << 10},
		{what: "CPU until in sync", figure: syncCPU, a: resumed.label, b: "return, grpc, mTLS", reported: true},
		{what: "p99 delay, times that in peace", figure: ratio(p99, inPeace(p99)), a: "herd, plaintext", most: mostOfPeace, reported: true},
		{what: "p99 delay, times that in peace", figure: ratio(p99, inPeace(p99)), a: "herd, mTLS", most: mostOfPeace},
	}
	return s
}

// filledAndReturned is an act that connects all clients, disconnects them, and reconnects them with their versions.
func filledAndReturned(st *stage, f *figures) error {
	if err := st.fill(&figures{}); err != nil {
		return err
	}
	return st.dropAndReturn(f)
}

// besideHerd returns an act that measures changes before and while n clients of another process repeatedly connect all
// at once. They send the current versions with the same subscriptions, so that the relay pays for connecting only.
func (o options) besideHerd(n int) func(*stage, *figures) error {
	c := serve.Changes{TypeURL: content.Cluster, Count: o.scaled(100), Every: 20 * time.Millisecond}
	return func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
		h, err := st.raiseHerd(n)
		if err != nil {
			return err
		}
		defer h.load.Kill()
		f.peace = new(figures)
		if err := st.followBusy(f.peace, c); err != nil {
			return err
		}
		end := h.stampede()
		began := time.Now()
		err = st.followBusy(f, c)
		over := time.Since(began)
		connected, failed := end()
		f.connects = float64(connected) / over.Seconds()
		return errors.Join(err, failed)
	}
}

// A herd is a process with clients that connect all at once. It uses one processor at the lowest priority, so that it
// takes little CPU time from the measured processes.
type herd struct {
	load *process.Process
	size int
}

// raiseHerd starts a herd, connects it once so that its clients have versions, and closes its connections.
func (st *stage) raiseHerd(n int) (h *herd, err error) {
	h = &herd{size: n}
	if h.load, err = process.StartRole(os.Stderr, "load"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.load.Kill()
		}
	}()
	order := st.openOf(0, n)
	order.All = n
	if err := errors.Join(h.load.Call("GiveWay", struct{}{}, &struct{}{}), h.load.Call("Open", order, &struct{}{})); err != nil {
		return nil, err
	}
	if _, err := awaitLoad(h.load, "the herd in sync", func(p load.Progress) bool { return p.Synced == n }); err != nil {
		return nil, err
	}
	return h, h.load.Call("Drop", struct{}{}, &struct{}{})
}

// stampede makes the herd connect repeatedly until end is called. end returns the number of established connections.
func (h *herd) stampede() (end func() (connected int, err error)) {
	var over sync.WaitGroup
	stop := make(chan struct{})
	connected, failed := 0, error(nil)
	over.Go(func() {
		for failed == nil {
			select {
			case <-stop:
				return
			default:
				n, err := h.once(stop)
				connected, failed = connected+n, err
			}
		}
	})
	return func() (int, error) {
		close(stop)
		over.Wait()
		return connected, failed
	}
}

// once makes the herd connect and disconnect. It returns the number of connections that were established before stop
// was closed.
func (h *herd) once(stop <-chan struct{}) (connected int, err error) {
	if err := errors.Join(h.load.Call("Mark", struct{}{}, &struct{}{}), h.load.Call("Return", struct{}{}, &struct{}{})); err != nil {
		return 0, err
	}
	_, err = awaitLoad(h.load, "the herd connected", func(p load.Progress) bool {
		select {
		case <-stop:
		default:
			connected = p.Connected
		}
		return p.Connected == h.size
	})
	if err != nil {
		return 0, err
	}
	return connected, h.load.Call("Drop", struct{}{}, &struct{}{})
}
