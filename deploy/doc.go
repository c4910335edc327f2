// Package deploy contains only tests. They compare the files below it with each other and with the code: pages, the
// OpenAPI document, the chart, the dashboard, alert rules, bootstraps, the systemd unit, and the image. They start no
// process and do not link the relay; the tests in system/deploy do both.
//
//	go test ./deploy -update
//
// writes the generated files: docs/openapi.yaml, and parts of the chart.
package deploy
