// Package prometheus contains alert rules for Prometheus (tender.rules.yaml), and tests of them and
// of each query of the dashboard for Grafana. They check that queries use exported metrics only, and
// that each alert has a runbook.
package prometheus
