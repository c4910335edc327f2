// Package prometheus has alert rules for Prometheus (tender.rules.yaml), and tests of them and
// of each query of the dashboard for Grafana: that they ask for what a relay exports, and that
// an operator is told what to do.
package prometheus
