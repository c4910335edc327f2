package conformance_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// reported is more than the time in which what has happened at the lowest of three relays is seen at the uppermost.
const reported = 10 * time.Second

// relayBelow runs a relay whose origin is above, with a node ID, until the test ends.
func relayBelow(above *running, nodeID string, env ...string) *running {
	above.t.Helper()
	return startRelay(above.t, instance.Options{Above: above.Relay}, append([]string{operated, "TENDER_NODE_ID=" + nodeID}, env...)...)
}

// tierClient runs an Envoy with clusters, endpoints and listeners that rejects what reject returns an error for.
func tierClient(r *running, id string, v relaytest.Variant, reject func(*relaytest.Response) error) *relaytest.Client {
	r.t.Helper()
	c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id), Reject: reject})
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.EndpointType, "a")
	return c
}

// tierLines returns the relays among the clients of a relay, each with what is below it.
func tierLines(t testing.TB, r *running, query string) (lines []string) {
	t.Helper()
	for _, c := range getJSON[admin.Clients](t, r, "/api/v1/clients?relays=true&sort=number"+query).Clients {
		b := c.Below
		text := fmt.Sprintf("%s %s: %d clients, %d rejecting, %d behind, %d unknown, %d in sync, %d pending",
			c.NodeID, c.Sync, b.Clients, b.Rejecting, b.Behind, b.Unknown, b.InSync, b.Pending)
		if !b.Known {
			text += ", silent"
		}
		for _, w := range b.Worst {
			text += fmt.Sprintf("; %s %s %s", strings.Join(append(w.Via, w.NodeID), " > "), w.Name, w.Sync)
			if w.Detail != "" {
				text += " (" + w.Detail + ")"
			}
		}
		lines = append(lines, text)
	}
	return lines
}

// wantTiers fails the test unless the relays among the clients of a relay are these, as tierLines returns them.
func wantTiers(t testing.TB, when string, r *running, want ...string) {
	t.Helper()
	check.Equal(t, when, strings.Join(tierLines(t, r, ""), "\n"), strings.Join(want, "\n"))
}

// eachProtocol runs f with the settings of relays for each variant in which they may speak with the relay above.
func eachProtocol(t *testing.T, f func(t *testing.T, env string)) {
	for _, protocol := range []string{"delta", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, "TENDER_ORIGIN_PROTOCOL="+protocol) })
		})
	}
}

// startTop starts an origin that has resources of three types, and a relay that operators command.
func startTop(t *testing.T) (*relaytest.Origin, *running) {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
	o.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"), relaytest.Listener("l", "r"))
	return o, start(t, o, operated)
}

// TestB49_TheTopSeesTheLowestTier: through three tiers, a relay sees how many proxies are in sync, and one that rejects a
// change by its name. A change is never in sync before the lowest proxy has it.
func TestB49_TheTopSeesTheLowestTier(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, env string) {
		o, top := startTop(t)
		middle := relayBelow(top, "zone", env)
		low := relayBelow(middle, "cell", env)
		tierClient(low, "envoy-1", relaytest.Delta, rejecting("bad", "no such thing"))
		tierClient(low, "envoy-2", relaytest.SotW, nil)
		tierClient(middle, "envoy-3", relaytest.Delta, nil)
		sleep(time.Minute)
		wantTiers(t, "top at first", top, "zone in-sync: 3 clients, 0 rejecting, 0 behind, 0 unknown, 3 in sync, 0 pending")
		wantTiers(t, "middle at first", middle, "cell in-sync: 2 clients, 0 rejecting, 0 behind, 0 unknown, 2 in sync, 0 pending")

		o.Put(relaytest.Cluster("bad"))
		synctest.Wait()
		for began := time.Now(); time.Since(began) < reported; sleep(100 * time.Millisecond) {
			for _, line := range tierLines(t, top, "&type=cds") {
				if strings.Contains(line, " in-sync: ") {
					t.Fatalf("%v after a bad change: %s", time.Since(began), line)
				}
			}
		}
		wantTiers(t, "top with a rejecting proxy", top, "zone rejecting: 3 clients, 1 rejecting, 0 behind, 0 unknown, 2 in sync, 0 pending"+
			"; cell > envoy-1 cds rejecting (no such thing)")
		wantTiers(t, "middle with a rejecting proxy", middle, "cell rejecting: 2 clients, 1 rejecting, 0 behind, 0 unknown, 1 in sync, 0 pending"+
			"; envoy-1 cds rejecting (no such thing)")
		check.Equal(t, "listeners", strings.Join(tierLines(t, top, "&type=lds"), "\n"),
			"zone in-sync: 3 clients, 0 rejecting, 0 behind, 0 unknown, 3 in sync, 0 pending")
		all := getJSON[admin.Clients](t, top, "/api/v1/clients?type=cds&limit=0")
		check.Equal(t, "totals", *all.Totals.Below, admin.TierTotals{Relays: 1, TierCounts: admin.TierCounts{Clients: 3, InSync: 2, Rejecting: 1}})
		check.Equal(t, "summary for peers", *getJSON[admin.TierSummary](t, top, "/api/v1/tier/self").Below, *all.Totals.Below)
		check.Equal(t, "totals of clusters", *all.Types[0].Below, admin.TierCounts{Clients: 3, InSync: 2, Rejecting: 1})
		check.Equal(t, "relays in sync", all.Totals.InSync, 0)

		o.Remove(relaytest.ClusterType, "bad")
		sleep(time.Minute)
		wantTiers(t, "top without the bad cluster", top, "zone in-sync: 3 clients, 0 rejecting, 0 behind, 0 unknown, 3 in sync, 0 pending")
		low.Stop()
		sleep(reported)
		wantTiers(t, "top without the lowest relay", top, "zone in-sync: 1 clients, 0 rejecting, 0 behind, 0 unknown, 1 in sync, 0 pending")
		middle.Stop()
		sleep(reported)
		wantTiers(t, "top alone", top)
	})
}

// TestB49_WhatWaitsBelowIsBehind: the clients of a relay that is frozen are in sync with it, and behind for the relay above.
func TestB49_WhatWaitsBelowIsBehind(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, env string) {
		o, top := startTop(t)
		low := relayBelow(top, "cell", env)
		tierClient(low, "envoy-1", relaytest.Delta, nil)
		sleep(time.Minute)
		low.freeze(admin.FreezeScope{Why: admin.Why{User: "alice", Reason: "audit"}})
		o.Put(relaytest.Cluster("a", "changed"))
		sleep(reported)
		wantTiers(t, "frozen", top, "cell behind: 1 clients, 0 rejecting, 0 behind, 0 unknown, 1 in sync, 1 pending")
		check.Equal(t, "listeners", strings.Join(tierLines(t, top, "&type=lds"), "\n"),
			"cell in-sync: 1 clients, 0 rejecting, 0 behind, 0 unknown, 1 in sync, 0 pending")
		low.thaw()
		sleep(reported)
		wantTiers(t, "thawed", top, "cell in-sync: 1 clients, 0 rejecting, 0 behind, 0 unknown, 1 in sync, 0 pending")
	})
}

// asRelay connects to a relay as another relay does, which may report anything.
func asRelay(r *running) *grpc.ClientConn {
	return r.Conn(grpc.WithStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return open(metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, "0123456789abcdef"), desc, cc, method, opts...)
	}))
}

// report sends an encoded report on the stream of a client.
func report(c *relaytest.Client, v relaytest.Variant, encoded []byte) {
	request := proto.Message(new(discoverypb.DeltaDiscoveryRequest))
	if v == relaytest.SotW {
		request = new(discoverypb.DiscoveryRequest)
	}
	request.ProtoReflect().SetUnknown(wire.ReportRequest(encoded))
	c.Send(request)
	synctest.Wait()
}

// TestB49_SilentRelaysAreUnknown: a relay that reports nothing, not any more, or something invalid is unknown, and so is the
// relay above it. It is never in sync. All are served.
func TestB49_SilentRelaysAreUnknown(t *testing.T) {
	t.Parallel()
	tooMany := tier.Report{Nonce: "9"}
	tooMany.All.Rejecting = 1
	huge := (&tier.Report{Nonce: "9"}).Encode()
	huge = append(huge, protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, tier.MaxBytes))...)
	largest := (&tier.Report{Nonce: "9"}).Encode()
	largest = append(largest, protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, 1<<20))...)
	for name, encoded := range map[string][]byte{
		"silent":         nil,
		"garbled":        bytes.Repeat([]byte{0xff}, 100),
		"truncated":      tooMany.Encode()[:4],
		"huge":           huge,
		"a megabyte":     largest,
		"a huge number":  protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), protowire.AppendVarint([]byte{2 << 3}, 1<<40)),
		"too many names": protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), bytes.Repeat([]byte{7<<3 | 2, 0}, 6)),
	} {
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			t.Run(fmt.Sprint(name, "/", v), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
					o.Put(relaytest.Cluster("a"))
					top := start(t, o, operated)
					middle := relayBelow(top, "zone")
					silent := relaytest.NewClient(t, asRelay(middle), relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode("silent")})
					silent.Subscribe(relaytest.ClusterType)
					beside := middle.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("beside")})
					beside.Subscribe(relaytest.ClusterType)
					sleep(30 * time.Second)
					if encoded != nil {
						valid := tier.Report{Nonce: "9"}
						valid.Type(relaytest.ClusterType).Add(tier.Client{Sync: tier.InSync})
						valid.All.Add(tier.Client{Sync: tier.InSync})
						report(silent, v, valid.Encode())
						wantTiers(t, "with a valid report", middle, "silent in-sync: 1 clients, 0 rejecting, 0 behind, 0 unknown, 1 in sync, 0 pending")
						report(silent, v, encoded)
					}
					wantTiers(t, name, middle, "silent unknown: 1 clients, 0 rejecting, 0 behind, 1 unknown, 0 in sync, 0 pending, silent; silent  unknown")
					sleep(reported)
					wantTiers(t, "top", top, "zone unknown: 2 clients, 0 rejecting, 0 behind, 1 unknown, 1 in sync, 0 pending; silent  unknown")
					o.Put(relaytest.Cluster("a", "changed"))
					synctest.Wait()
					for _, c := range []*relaytest.Client{silent, beside} {
						if got := c.State()[relaytest.ClusterType]["a"]; got.Digest != relaytest.DigestOf(relaytest.Cluster("a", "changed")) {
							t.Errorf("a client was not served the change: %v", got)
						}
					}
				})
			})
		}
	}
}

// TestB49_OldReportsAreUnknown: a relay whose reports end while its stream goes on is unknown after a minute.
func TestB49_OldReportsAreUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		top := start(t, o, operated)
		c := relaytest.NewClient(t, asRelay(top), relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("hung")})
		c.Subscribe(relaytest.ClusterType)
		sleep(time.Second)
		report(c, relaytest.Delta, (&tier.Report{Nonce: "9"}).Encode())
		sleep(59 * time.Second)
		wantTiers(t, "after 59s", top, "hung in-sync: 0 clients, 0 rejecting, 0 behind, 0 unknown, 0 in sync, 0 pending")
		sleep(2 * time.Second)
		wantTiers(t, "after 61s", top, "hung unknown: 1 clients, 0 rejecting, 0 behind, 1 unknown, 0 in sync, 0 pending, silent; hung  unknown")
	})
}

// TestB49_OnlyRelaysReport: a report of a client that is no relay is ignored, as any other unknown field is.
func TestB49_OnlyRelaysReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, operated)
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType)
		request := &discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType}
		request.ProtoReflect().SetUnknown(wire.ReportRequest((&tier.Report{}).Encode()))
		c.Send(request)
		sleep(time.Second)
		wantTiers(t, "a client", r)
		if all := getJSON[admin.Clients](t, r, "/api/v1/clients"); all.Totals.InSync != 1 || all.Totals.Below != nil {
			t.Errorf("totals %+v, want one client in sync, and nothing below", all.Totals)
		}
	})
}

// requestsTo returns the number of requests that an origin has received.
func requestsTo(o *relaytest.Origin) (n int) {
	for _, s := range o.State().Streams {
		n += len(s.Requests)
	}
	return n
}

// TestB49_OriginsThatAreNoRelaysGetNoReports: the requests to a control plane have no unknown field.
func TestB49_OriginsThatAreNoRelaysGetNoReports(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, env string) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, operated, env)
		tierClient(r, "envoy", relaytest.Delta, nil)
		sleep(time.Minute)
		before := requestsTo(o)
		sleep(time.Hour)
		check.Equal(t, "requests after an hour", requestsTo(o), before)
	})
}

// TestB36_ReportsHaveNoWordsAboutSecrets: a relay above sees that a proxy rejects a Secret, and not why.
func TestB36_ReportsHaveNoWordsAboutSecrets(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, env string) {
		const words = "the key is hunter2"
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(&tlspb.Secret{Name: "s"})
		top := start(t, o, operated)
		low := relayBelow(top, "cell", env)
		c := low.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("envoy"), Reject: rejecting("s", words)})
		c.Subscribe(relaytest.SecretType, "s")
		sleep(time.Minute)
		wantTiers(t, "top", top, "cell rejecting: 1 clients, 1 rejecting, 0 behind, 0 unknown, 0 in sync, 0 pending; envoy sds rejecting")
	})
}

// TestB49_OneStreamReportsTheClients: each stream of a relay is a client of the relay above, and the clients of the relay
// count once.
func TestB49_OneStreamReportsTheClients(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, env string) {
		const xdstp = "xdstp://shop/envoy.config.cluster.v3.Cluster/c"
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"), relaytest.Cluster(xdstp))
		top := start(t, o, operated)
		low := relayBelow(top, "cell", env)
		for i, names := range [][]string{{"*"}, {"a"}, {xdstp}} {
			c := low.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(fmt.Sprint("envoy-", i))})
			c.Subscribe(relaytest.ClusterType, names...)
		}
		sleep(time.Minute)
		const rest = "cell in-sync: 0 clients, 0 rejecting, 0 behind, 0 unknown, 0 in sync, 0 pending"
		lines := tierLines(t, top, "")
		slices.Sort(lines)
		check.Equal(t, "top", strings.Join(lines, "\n"),
			strings.Join([]string{rest, rest, "cell in-sync: 3 clients, 0 rejecting, 0 behind, 0 unknown, 3 in sync, 0 pending"}, "\n"))
		check.Equal(t, "totals", *getJSON[admin.Clients](t, top, "/api/v1/clients?type=cds&limit=0").Totals.Below,
			admin.TierTotals{Relays: 3, TierCounts: admin.TierCounts{Clients: 3, InSync: 3}})
	})
}

// TestB49_ForgedReportsChangeNothing: a report of millions of rejecting clients is shown with the client that sent it. It
// changes neither what others are served nor what is shown of them, at this relay and above.
func TestB49_ForgedReportsChangeNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		top := start(t, o, operated)
		zone := relayBelow(top, "zone")
		low := relayBelow(zone, "cell")
		tierClient(low, "envoy-1", relaytest.Delta, rejecting("bad", "no such thing"))
		sleep(10 * time.Second) // its relay is the first client
		forger := relaytest.NewClient(t, asRelay(zone), relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("forger")})
		forger.Subscribe(relaytest.ClusterType)
		o.Put(relaytest.Cluster("bad"))
		sleep(time.Minute)
		var forged tier.Report
		for i := range tier.MaxWorst {
			forged.Type(relaytest.ClusterType).Add(tier.Client{Node: fmt.Sprint("victim-", i), Sync: tier.Rejecting, Lag: time.Hour, Detail: "forged"})
			forged.All.Add(tier.Client{Node: fmt.Sprint("victim-", i), TypeURL: relaytest.ClusterType, Sync: tier.Rejecting, Lag: time.Hour, Detail: "forged"})
		}
		forged.Nonce, forged.All.Rejecting = "99999", 1<<30
		report(forger, relaytest.Delta, forged.Encode())
		sleep(reported)
		lines := tierLines(t, zone, "")
		check.Equal(t, "the honest relay", lines[0],
			"cell rejecting: 1 clients, 1 rejecting, 0 behind, 0 unknown, 0 in sync, 0 pending; envoy-1 cds rejecting (no such thing)")
		if !strings.HasPrefix(lines[1], "forger rejecting: 1073741824 clients") {
			t.Errorf("the forger: %s", lines[1])
		}
		if above := tierLines(t, top, "")[0]; !strings.Contains(above, "; cell > envoy-1 cds rejecting (no such thing)") ||
			!strings.Contains(above, "; forger > victim-0 cds rejecting (forged)") {
			t.Errorf("the top names %s, want the honest client and the first forged one", above)
		}
		o.Put(relaytest.Cluster("a", "changed"))
		o.Remove(relaytest.ClusterType, "bad")
		sleep(time.Minute)
		check.Equal(t, "the honest relay", tierLines(t, zone, "")[0], "cell in-sync: 1 clients, 0 rejecting, 0 behind, 0 unknown, 1 in sync, 0 pending")
	})
}
