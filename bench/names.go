package main

import (
	"fmt"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// byName is NAMES: the cost of one changed resource for clients that subscribe to many names. SotW clients repeat all
// names in each ACK.
func (o options) byName() scenario {
	act := changing(serve.Changes{TypeURL: content.Endpoint, Count: o.scaled(20), Every: 250 * time.Millisecond})
	of := func(variant string, names, clients int, sotw bool) row {
		return row{label: fmt.Sprintf("%s, %d names", variant, names), kind: "tender", act: act, setup: setup{
			kinds:     []content.Kind{{TypeURL: content.Endpoint, Count: names, Bytes: 256}},
			interests: []load.Interest{{TypeURL: content.Endpoint, Count: names, Of: names}},
			clients:   clients, workers: 2, sotw: sotw, byName: true,
		}}
	}
	ads := func(r row) row {
		r.label, r.setup = "ads, "+r.label, r.setup.ads()
		return r
	}
	many, fewer := o.scaled(1000), o.scaled(200)
	return scenario{
		id: "NAMES", title: "1,000 clients × 1,000 EDS names of 256 bytes, and 200 × 10,000, one changed every 250 ms", rounds: 3,
		rows: []row{
			of("delta", 1000, many, false), of("sotw", 1000, many, true),
			of("delta", 10_000, fewer, false), of("sotw", 10_000, fewer, true),
			ads(of("delta", 1000, many, false)), ads(of("sotw", 1000, many, true)),
		},
		checks: []check{
			{what: "CPU a delivery", figure: cpu, a: "sotw, 1000 names", b: "delta, 1000 names", most: 2},
			{what: "CPU a delivery", figure: cpu, a: "ads, sotw, 1000 names", b: "ads, delta, 1000 names", most: 2},
			{what: "CPU a delivery", figure: cpu, a: "sotw, 10000 names", b: "sotw, 1000 names", most: 1.5},
			{what: "CPU a delivery", figure: cpu, a: "delta, 10000 names", b: "delta, 1000 names", reported: true},
			{what: "p99 delay", figure: p99, a: "sotw, 1000 names", b: "delta, 1000 names", reported: true},
		},
	}
}
