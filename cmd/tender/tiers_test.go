package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache/wire"
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

// TestB49_ThreeTiers: the commands at the uppermost of three tiers speak of the proxies of all tiers, and name the relays on the way.
// A lowest relay that reports nothing, such as one of an earlier release, is unknown, and so is all above it.
func TestB49_ThreeTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaited(t)
		below := func(above *instance.Relay, id string) *instance.Relay {
			return instance.Start(t, instance.Options{Above: above, Env: []string{"TENDER_NODE_ID=" + id}})
		}
		proxy := func(r *instance.Relay, node string, reject func(*relaytest.Response) error) {
			r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(node), Reject: reject}).Subscribe(relaytest.ClusterType, "*")
		}
		const inSync = "in sync: 2 clients of 1 relay accepted what the origin stated last, and 3 clients below them"
		const named = "edge-2 (via zone-a) cds: REJECTED: unknown http filter"
		region := below(w.Relay, "region-a")
		zone := below(region, "zone-a")
		proxy(w.Relay, "top-1", nil)
		proxy(region, "regional-1", nil)
		proxy(zone, "edge-1", nil)
		proxy(zone, "edge-2", func(r *relaytest.Response) error {
			if slices.ContainsFunc(r.Resources, func(x relaytest.Resource) bool { return x.Name == "bad" }) {
				return errors.New("unknown http filter")
			}
			return nil
		})
		must(t, exitOK, []string{inSync}, "wait", "--clients", "4")
		w.origin.Put(relaytest.Cluster("bad"))
		time.Sleep(time.Minute)
		const rejecting = "3 clients: 1 rejecting, 0 behind, 0 unknown, 2 in sync"
		must(t, exitOK, []string{"below 1 relay: " + rejecting, "region-a user_agent_name=envoy relay-7 rejecting", named}, "clients")
		must(t, exitOK, []string{"below 1 relay: " + rejecting, "region-a user_agent_name=envoy 3 1 0 0 0", named}, "status")
		must(t, exitFailure, []string{"1 of 2 clients are not in sync, below 1 relay: " + rejecting, named}, "wait", "--timeout", "5s")
		w.origin.Remove(relaytest.ClusterType, "bad")
		must(t, exitOK, []string{inSync}, "wait", "--settle", "10s")

		silent := zone.Conn(grpc.WithStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return open(metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, "0123456789abcdef"), desc, cc, method, opts...)
		}))
		cell := relaytest.NewClient(t, silent, relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("cell-old")})
		cell.Subscribe(relaytest.ClusterType, "*")
		time.Sleep(time.Minute)
		const unknown = "4 clients: 0 rejecting, 0 behind, 1 unknown, 3 in sync"
		must(t, exitOK, []string{"below 1 relay: " + unknown, "region-a user_agent_name=envoy relay-7 unknown", "cell-old (via zone-a): unknown"}, "clients")
		must(t, exitOK, []string{"below 1 relay: " + unknown, "region-a user_agent_name=envoy 4 0 0 1 0", "cell-old (via zone-a): unknown"}, "status")
		must(t, exitFailure, []string{"1 of 2 clients are not in sync, below 1 relay: " + unknown, "cell-old (via zone-a): unknown"}, "wait", "--timeout", "5s")
		cell.Close()
		must(t, exitOK, []string{inSync}, "wait", "--settle", "10s")
	})
}
