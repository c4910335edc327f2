package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// TestTiers verifies that the commands speak of the proxies below a relay that is a client.
func TestTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaited(t)
		zone := instance.Start(t, instance.Options{Above: w.Relay, Env: []string{"TENDER_NODE_ID=zone-a"}})
		for _, node := range []string{"edge-1", "edge-4"} {
			options := relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(node)}
			if node == "edge-4" {
				options.Reject = func(r *relaytest.Response) error {
					for _, resource := range r.Resources {
						if resource.Name == "bad" {
							return errors.New("unknown http filter")
						}
					}
					return nil
				}
			}
			zone.Client(options).Subscribe(relaytest.ClusterType, "*")
		}
		must(t, exitOK, []string{"in sync: 1 client of 1 relay accepted what the origin stated last, and 2 clients below them"}, "wait", "--clients", "3")
		must(t, exitFailure, []string{"3 clients, want at least 4 (--clients)"}, "wait", "--clients", "4", "--timeout", "5s")

		w.origin.Put(relaytest.Cluster("bad"))
		time.Sleep(time.Minute)
		const below = "below 1 relay: 2 clients: 1 rejecting, 0 behind, 0 unknown, 1 in sync"
		must(t, exitOK, []string{below, "is a relay with 2 clients: 1 rejecting", "edge-4 cds: REJECTED: unknown http filter"}, "clients")
		must(t, exitOK, []string{"rejecting", "is a relay with 2 clients", "edge-4 cds: REJECTED"}, "clients", "zone-a")
		must(t, exitOK, []string{below, "BELOW RELAY GROUP CLIENTS REJECTING", "edge-4 cds: REJECTED: unknown http filter"}, "status")
		for _, args := range [][]string{nil, {"cds"}, {"cds", "bad"}, {"cds", "web"}} {
			must(t, exitFailure, []string{"1 of 1 client is not in sync", below, "edge-4 cds: REJECTED: unknown http filter"},
				append([]string{"wait", "--timeout", "5s"}, args...)...)
		}
		must(t, exitFailure, []string{`"below": {`, `"worst": [`, `"node_id": "edge-4"`}, "wait", "--timeout", "5s", "-o", "json")
		must(t, exitOK, []string{"in sync"}, "wait", "lds", "--clients", "0")

		w.origin.Remove(relaytest.ClusterType, "bad")
		must(t, exitOK, []string{"in sync"}, "wait", "--settle", "10s")
		zone.Stop()
		must(t, exitFailure, []string{"0 clients, want at least 1"}, "wait", "--timeout", "5s")
	})
}
