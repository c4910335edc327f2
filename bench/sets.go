package main

import (
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/serve"
)

// wrappedResources is the client feature of clients that accept SotW resources wrapped in the message Resource.
const wrappedResources = "xds.config.resource-in-sotw"

// sets is SETS: SotW responses that the relay cannot share between all clients. After an update that adds and removes
// resources, the relay first sends the union of both sets.
func (o options) sets() scenario {
	s := clusters(200, o.scaled(1000))
	s.sotw = true
	features := s
	features.feature = wrappedResources
	plain := serve.Changes{TypeURL: content.Cluster, Count: o.scaled(8), Every: time.Second}
	swap := plain
	swap.Swap = true
	const a, b, c = "one changes", "one changes, one is added, one is removed", "one changes, clients of two features"
	return scenario{
		id: "SETS", title: "SotW wildcard CDS, 200 clusters of 1 KiB, 1,000 clients", rounds: 3,
		rows: []row{
			{label: a, kind: "tender", setup: s, act: changing(plain)},
			{label: b, kind: "tender", setup: s, act: changing(swap)},
			{label: c, kind: "tender", setup: features, act: changing(plain)},
		},
		checks: []check{
			{what: "CPU a response", figure: cpu, a: b, b: a, most: 1.5},
			{what: "CPU a response", figure: cpu, a: c, b: a, most: 1.5},
			{what: "peak RSS above idle, MiB", figure: peak, a: b, reported: true},
		},
	}
}
