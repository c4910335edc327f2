package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/serve"
)

// raisedShares are the limits for SCALE, raised because all clients connect from one IP address. The load generator
// may need more than ten seconds until it has written the first request on the last connection.
var raisedShares = []string{
	"TENDER_MAX_STREAMS=100000", "TENDER_MAX_CONNECTIONS_PER_ADDRESS=20000", "TENDER_FIRST_REQUEST_TIMEOUT=1m",
}

// atScale is SCALE: the load of S1 with more streams than one relay usually serves, which share connections or do not.
func (o options) atScale() scenario {
	const shared, own = ", 100 streams a connection", ", one stream a connection"
	few := clusters(100, o.scaled(1000))
	few.environ = raisedShares
	streams, connections := few, few
	streams.clients, streams.streams = o.scaled(40_000), 100
	connections.clients = o.scaled(15_000)
	s := scenario{
		id: "SCALE", rounds: 3,
		title: fmt.Sprintf("as S1, with 40,000 streams on 400 connections and 15,000 on 15,000, one changed every 2 s; with `%s`", strings.Join(raisedShares, "`, `")),
	}
	slow := changing(serve.Changes{TypeURL: content.Cluster, Count: o.scaled(10), Every: 2 * time.Second})
	for _, kind := range []string{"tender", "ads", "grpc"} {
		rows := []row{
			{label: kind + ", S1", kind: kind, setup: few, act: changing(o.s1Changes())},
			{label: kind + shared, kind: kind, setup: streams, act: slow},
			{label: kind + own, kind: kind, setup: connections, act: slow},
		}
		for i := range rows {
			if kind == "ads" {
				rows[i].kind, rows[i].setup = "tender", rows[i].setup.ads()
			}
		}
		s.rows = append(s.rows, rows...)
		for _, of := range []string{kind + shared, kind + own} {
			s.checks = append(s.checks,
				check{what: "CPU a delivery", figure: cpu, a: of, b: kind + ", S1", most: 1.15, reported: kind == "grpc"},
				check{what: "RSS a client, KiB", figure: resident, a: of, b: kind + ", S1", most: 1.15, reported: kind == "grpc"},
			)
		}
	}
	s.checks = append(s.checks,
		check{what: "CPU a delivery", figure: cpu, a: "ads" + shared, most: 4},
		check{what: "RSS a client, KiB", figure: resident, a: "ads" + shared, most: 9})
	return s
}
