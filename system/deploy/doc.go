// Package deploy contains only tests. They run what the directory deploy contains: commands on the pages, bootstraps in
// real clients, the services of compose.yaml as processes, alert rules in promtool, and the systemd unit in
// systemd-analyze.
//
// Some tests need programs or files of other targets of make, which pass them in flags: make charts runs the tests
// TestChart_…, make cluster TestCluster_…, make imagetest TestImage_…, and make packagetest TestPackage_…. Without -run and
// these flags they are left out.
package deploy
