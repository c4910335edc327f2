package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/serve"
)

// A sink is a collector of traces in the driver's process. It accepts and discards all
// exports.
type sink struct {
	server  http.Server
	address string
	taken   atomic.Int64 // number of exports
}

// newSink starts a sink on a free port of loopback. The caller must close it.
func newSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for traces: %w", err)
	}
	s := &sink{address: l.Addr().String()}
	s.server.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // on an error, the exporter reports it
		s.taken.Add(1)
	})
	go func() { _ = s.server.Serve(l) }() // ends with the server
	return s, nil
}

func (s *sink) close() { _ = s.server.Close() } // an error has no consequence here

// exportEvery is the interval of exports. It is shorter than the default, so that the spans of
// connecting clients are exported before the measurement.
const exportEvery = time.Second

// environ returns the variables that make Tender trace the fraction ratio of the changes and export to the sink.
func (s *sink) environ(ratio float64) []string {
	return []string{
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://" + s.address + "/v1/traces",
		"OTEL_TRACES_SAMPLER=traceidratio", fmt.Sprintf("OTEL_TRACES_SAMPLER_ARG=%g", ratio),
		fmt.Sprintf("OTEL_BSP_SCHEDULE_DELAY=%d", exportEvery.Milliseconds()),
	}
}

// exported waits until no export of spans has arrived for an interval. Without a sink it waits as
// long, so that all servers are measured at the same age.
func (st *stage) exported() error {
	for deadline := time.Now().Add(patience); ; {
		before := st.exports()
		time.Sleep(exportEvery + settle)
		if st.exports() == before {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for the end of %d exports of spans: not after %v", st.exports(), patience)
		}
	}
}

// exports returns the number of exports so far; 0 without a sink.
func (st *stage) exports() int64 {
	if st.sink == nil {
		return 0
	}
	return st.sink.taken.Load()
}

// traces is TRACE: the cost of tracing, with the load of S1 at a higher rate. The number of
// changes is high enough that sampling selects some.
func (o options) traces() scenario {
	changes := serve.Changes{TypeURL: content.Cluster, Count: o.scaled(200), Every: 50 * time.Millisecond}
	act := func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
		if err := st.exported(); err != nil {
			return err
		}
		if err := st.follow(f, changes); err != nil {
			return err
		}
		if err := st.exported(); err != nil {
			return err
		}
		if st.sampled == 1 && st.exports() == 0 {
			return errors.New("nothing was traced")
		}
		return nil
	}
	traced := func(label string, sampled float64) row {
		s := clusters(100, o.scaled(1000))
		s.sampled = sampled
		return row{label: label, kind: "tender", setup: s, act: act}
	}
	all := traced("tender, all", 1)
	all.once = true
	return scenario{
		id: "TRACE", title: "as S1, with one changed every 50 ms: without traces, with one change in a hundred traced, and with all", rounds: 7,
		rows: []row{traced("tender", 0), traced("tender, 1 %", 0.01), all},
		checks: []check{
			{what: "CPU a delivery", figure: cpu, a: "tender, 1 %", b: "tender", most: 1.03},
			{what: "p99 delay", figure: p99, a: "tender, 1 %", b: "tender", reported: true},
		},
	}
}
