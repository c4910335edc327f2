package main

import (
	"fmt"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// bulk is BULK: one response of the control plane changes all resources that the clients subscribe to.
func (o options) bulk() scenario {
	const names = 1000
	of := func(clients int) setup {
		return setup{
			kinds:     []content.Kind{{TypeURL: content.Endpoint, Count: names, Bytes: 128}},
			interests: []load.Interest{{TypeURL: content.Endpoint, Count: names, Of: names}},
			clients:   o.scaled(clients), streams: 50,
		}
	}
	one := changing(serve.Changes{TypeURL: content.Endpoint, Count: o.scaled(20), Every: 500 * time.Millisecond})
	all := changing(serve.Changes{TypeURL: content.Endpoint, Count: 3 * names, At: names, Every: 5 * time.Second})
	const a, b, c = "one name, 5,000 streams", "1,000 names at once, 500 streams", "1,000 names at once, 5,000 streams"
	return scenario{
		id: "BULK", rounds: 2,
		title: fmt.Sprintf("5,000 streams × %d EDS names of 128 bytes, 50 streams a connection: one name changes, or all in one response", names),
		rows: []row{
			{label: a, kind: "tender", setup: of(5000), act: one},
			{label: b, kind: "tender", setup: of(500), act: all},
			{label: c, kind: "tender", setup: of(5000), act: all},
		},
		checks: []check{
			{what: "turns of a stream for each response of the control plane", figure: looked, a: c, most: 1.05},
			{what: "CPU a delivery", figure: cpu, a: c, b: b, most: 1.15},
			{what: "CPU a delivery", figure: cpu, a: c, b: a, most: 1},
			{what: "RSS after the changes above that before, MiB", figure: grown, a: c, reported: true},
		},
	}
}
