// Package telemetry exports the metrics and spans of the relay, and the commands of operators as log events, with
// OpenTelemetry.
//
// The package has no counters. Other packages count and return their counters as structs ([downstream.Stats],
// [upstream.Stats], …). The relay combines these with its status into a [Reading]. The table of instruments (table.go)
// has a row for each metric, which reads its value. Each scrape of [Telemetry.Handler] by Prometheus takes a reading,
// and so does each export to an exporter that the OTEL_… variables configure.
//
// # To add a metric
//
// Add a field to the struct of the package that counts it, and a row to the table (or to histograms); then run
//
//	go test ./relay/telemetry -run TestPage -update
//
// to update the page in deploy/docs. The number of values of a label must be fixed, or bounded by a TENDER_ variable.
// Node IDs and names of resources are never labels.
//
// # Concurrency properties
//
// Several readers may read at the same time. Each takes a reading of its own.
//
// The package is not a stable API: programs that embed Tender use package relay.
package telemetry
