package main

import (
	"fmt"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// demand is DEMAND: the upstream requests of a relay for names that no client has requested before. Each SotW request
// repeats all names.
func (o options) demand() scenario {
	const each = 100
	clients := o.scaled(100)
	wanted := clients * each
	s := setup{
		kinds:     []content.Kind{{TypeURL: content.Endpoint, Count: wanted, Bytes: 256}},
		interests: []load.Interest{{TypeURL: content.Endpoint, Count: each, Of: wanted}},
		clients:   clients,
	}
	act := func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
		var t serve.Traffic
		if err := st.changer.Call("Traffic", struct{}{}, &t); err != nil {
			return err
		}
		f.origin = &originFigures{streams: float64(t.Streams), requests: float64(t.Requests), names: float64(t.Names) / float64(wanted)}
		return nil
	}
	of := func(protocol string) row {
		r := row{label: protocol, kind: "tender", setup: s, act: act}
		r.setup.environ = []string{"TENDER_ORIGIN_PROTOCOL=" + protocol}
		return r
	}
	return scenario{
		id: "DEMAND", title: fmt.Sprintf("100 clients × %d EDS names of their own, from a Delta and from a SotW control plane", each), rounds: 3,
		rows: []row{of("delta"), of("sotw")},
		checks: []check{
			{what: "names in requests for each name", figure: named, a: "delta", most: 1},
			{what: "names in requests for each name", figure: named, a: "sotw", most: 6},
			{what: "time until in sync", figure: synced, a: "sotw", b: "delta", reported: true},
		},
	}
}
