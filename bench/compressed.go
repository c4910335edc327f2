package main

import (
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// compressed is COMPRESSION: the cost of compressed responses. Real resources save more bytes than these: nine tenths of
// a set. Random letters are nearly the worst case.
func (o options) compressed() scenario {
	clients := o.scaled(1000)
	one := clusters(100, clients) // all clients share a response, with one cluster
	one.kinds[0].Words = true
	random := clusters(100, clients) // all clients share a response, with all clusters
	random.sotw = true
	set := random
	set.kinds = one.kinds
	names := setup{ // each client has a response of its own, with one name
		kinds:     []content.Kind{{TypeURL: content.Endpoint, Count: 100, Bytes: 4096, Words: true}},
		interests: []load.Interest{{TypeURL: content.Endpoint, Count: 50, Of: 100}},
		clients:   clients, byName: true,
	}
	of := func(typeURL string) func(*stage, *figures) error {
		return changing(serve.Changes{TypeURL: typeURL, Count: o.scaled(20), Every: 400 * time.Millisecond})
	}
	s := scenario{
		id: "COMPRESSION", rounds: 5,
		title: "1,000 clients that accept gzip: a shared response with a cluster of 1 KiB, or with all 100, and one of each client with 4 KiB",
	}
	for _, load := range []struct {
		label string
		setup setup
		act   func(*stage, *figures) error
	}{
		{"one cluster", one, of(content.Cluster)}, {"all clusters", set, of(content.Cluster)},
		{"one name", names, of(content.Endpoint)}, {"random letters", random, of(content.Cluster)},
	} {
		off, on := load.setup, load.setup
		off.gzip, on.gzip = true, true
		on.environ = []string{"TENDER_COMPRESSION=gzip"}
		s.rows = append(s.rows,
			row{label: load.label, kind: "tender", setup: off, act: load.act},
			row{label: load.label + ", gzip", kind: "tender", setup: on, act: load.act})
		s.checks = append(s.checks,
			check{what: "CPU a delivery", figure: cpu, a: load.label + ", gzip", b: load.label, most: 1.1, reported: load.label == "random letters"},
			check{what: "bytes a delivery", figure: volume, a: load.label + ", gzip", b: load.label, reported: true})
	}
	return s
}
