// Package telemetry exports the counters of the relay as OpenTelemetry metrics, its spans, and the commands of operators as log events.
//
// The package counts nothing. Other packages have counters and return them as structs ([downstream.Stats],
// [upstream.Stats], …). The relay combines these with its status into a [Reading], and the table of instruments
// (table.go) has a row for each metric. A reading is taken for each scrape of [Telemetry.Handler] by Prometheus, and at
// the interval of an exporter that the OTEL_… variables configure.
//
// # To add a metric
//
// Add a field to the struct of the package that counts it, and a row to the table (or to histograms); then run
//
//	go test ./relay/telemetry -run TestPage -update
//
// to update the page in deploy/docs. The values of a label are known in advance or bounded by a variable. The id of a
// node and the name of a resource are never labels.
//
// # Concurrency properties
//
// Several readers may read at the same time; each takes its own reading.
//
// The package is not a stable API: programs that embed Tender use package relay.
package telemetry
