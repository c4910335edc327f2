// Package telemetry makes OpenTelemetry metrics of what the relay counts.
//
// Nothing is counted here. The packages below have counters of their own and tell them as
// plain structs ([downstream.Stats], [upstream.Stats], …); the relay puts these together
// into a [Reading], and the table of instruments (table.go) says what becomes of each. That
// happens when somebody reads: at a GET of the page that [Telemetry.Handler] serves for
// Prometheus, and at the intervals of an exporter that the OTEL_… variables ask for.
//
// # To add a metric
//
// Add a field to the struct of the package that counts it, and a row to the table (or to
// histograms); then
// run
//
//	go test ./relay/telemetry -run TestPage -update
//
// for the page in deploy/docs. Labels take few values each, all of them known beforehand or
// bounded by a variable: never the id of a node, nor the name of a resource.
//
// # Concurrency properties
//
// Readers may come at the same time, and each has a reading taken for itself.
//
// It is no stable API: programs that embed Tender use package relay.
package telemetry
