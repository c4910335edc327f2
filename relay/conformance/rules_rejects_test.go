package conformance_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

const reportRejects = "TENDER_REPORT_REJECTS=on"

// settling is less than the time that clients have to answer a change before what they reject is told.
const settling = 500 * time.Millisecond

// rejectCluster returns clients with the wildcard of clusters, the first of which reject a cluster. Their error names it.
func rejectCluster(r *running, name, id string, rejecting, all int) {
	for i := range all {
		opts := relaytest.ClientOptions{
			Variant: []relaytest.Variant{relaytest.Delta, relaytest.SotW}[i%2], AutoAck: true,
			Node: relaytest.EnvoyNode(fmt.Sprint(id, i)),
		}
		if i < rejecting {
			opts.Reject = func(resp *relaytest.Response) error {
				for _, res := range resp.Resources {
					if res.Name == name && res.Digest == relaytest.DigestOf(relaytest.Cluster(name)) {
						return fmt.Errorf("Error adding cluster(s) %s: no such thing", name)
					}
				}
				return nil
			}
		}
		r.Client(opts).Subscribe(relaytest.ClusterType)
	}
	synctest.Wait()
}

// answersOf returns the errors of the answers to responses of a type in requests; "ACK" for an ACK.
func answersOf(o *controlplane.Server, typeURL string) (all []string) {
	for _, r := range o.Requests() {
		switch {
		case r.GetTypeUrl() != typeURL || r.GetResponseNonce() == "":
		case r.GetErrorDetail() == nil:
			all = append(all, "ACK")
		default:
			all = append(all, r.GetErrorDetail().GetMessage())
		}
	}
	return all
}

// TestB10_RejectsReachGoControlPlane: the callbacks of a go-control-plane see what clients reject, once, and that they
// accept a new content. It sends nothing because of that.
func TestB10_RejectsReachGoControlPlane(t *testing.T) {
	for _, kind := range []string{
		controlplane.Linear, controlplane.Snapshots, controlplane.ADSSnapshots, controlplane.LinearSotW, controlplane.SnapshotsSotW,
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := controlplane.New(t, kind, new(memnet.Network), planeWorld()...)
				r := startRelay(t, instance.Of(o), reportRejects)
				rejectCluster(r, "bad", "envoy", 3, 8)
				sleep(time.Minute)
				answersOf(o, typeCDS)

				o.Put(relaytest.Cluster("bad"))
				sleep(settling)
				check.Equal(t, "answers at first", strings.Join(answersOf(o, typeCDS), ", "), "ACK")
				before := o.Responses()
				sleep(time.Hour)
				want := `resource "bad" rejected by 3 of 8 clients: "Error adding cluster(s) bad: no such thing"`
				check.Equal(t, "answers then", strings.Join(answersOf(o, typeCDS), ", "), want)
				check.Equal(t, "responses because of it", o.Responses()-before, 0)

				o.Put(relaytest.Cluster("bad", "better"))
				sleep(time.Hour)
				check.Equal(t, "answers to another content", strings.Join(answersOf(o, typeCDS), ", "), "ACK")
			})
		})
	}
}

// TestB10_RejectsAreNotToldByDefault: by default an origin hears of no client.
func TestB10_RejectsAreNotToldByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := controlplane.New(t, controlplane.Linear, new(memnet.Network), relaytest.Cluster("bad"))
		r := startRelay(t, instance.Of(o))
		rejectCluster(r, "bad", "envoy", 1, 1)
		sleep(time.Hour)
		if all := answersOf(o, typeCDS); slices.ContainsFunc(all, func(a string) bool { return a != "ACK" }) {
			t.Errorf("answers %q, want ACKs", all)
		}
	})
}

// TestB10_RejectsOfClientsThatLeave: an ACK follows when the clients that reject a resource have left. Of a response whose
// NACK names none of its resources, each may be rejected.
func TestB10_RejectsOfClientsThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := controlplane.New(t, controlplane.Linear, new(memnet.Network), relaytest.Cluster("a"), relaytest.Cluster("a-b"))
		r := startRelay(t, instance.Of(o), reportRejects)
		c := r.Client(relaytest.ClientOptions{AutoAck: true, Reject: func(*relaytest.Response) error { return errors.New("not a-b-c") }})
		c.Subscribe(relaytest.ClusterType)
		sleep(10 * time.Second)
		want := `ACK, resource "a" rejected by 1 of 1 clients: "not a-b-c"; resource "a-b" rejected by 1 of 1 clients: "not a-b-c"`
		check.Equal(t, "answers", strings.Join(answersOf(o, typeCDS), ", "), want)
		c.Close()
		sleep(10 * time.Second)
		check.Equal(t, "answers after the client left", strings.Join(answersOf(o, typeCDS), ", "), "ACK")
	})
}

// TestB10_RejectsOfSharedNames: a shared name has one stream for all node groups, which tells the clients of all of them.
func TestB10_RejectsOfSharedNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "xdstp://authority/envoy.config.cluster.v3.Cluster/bad"
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Apply(func(tx *relaytest.Tx) { tx.Set(typeCDS, name, relaytest.Cluster(name), "1") })
		r := start(t, o, reportRejects, "TENDER_NODE_GROUP_BY=cluster")
		for i := range 4 {
			opts := relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("envoy")}
			opts.Node.Cluster = fmt.Sprint("cluster", i%2)
			if i != 1 {
				opts.Reject = func(*relaytest.Response) error { return errors.New("no") }
			}
			r.Client(opts).Subscribe(relaytest.ClusterType, name)
		}
		sleep(10 * time.Second)
		var told []string
		for _, req := range o.State().Requests(typeCDS) {
			if detail := req.Message.GetErrorDetail(); detail != nil {
				told = append(told, detail.GetMessage())
			}
		}
		check.Equal(t, "NACKs", strings.Join(told, ", "), fmt.Sprintf(`resource %q rejected by 3 of 4 clients: "no"`, name))
	})
}

// TestB36_RejectsQuoteNoSecrets: what a client says about a Secret reaches no origin.
func TestB36_RejectsQuoteNoSecrets(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(&tlspb.Secret{Name: "s"})
		r := start(t, o, reportRejects)
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Reject: func(*relaytest.Response) error {
			return errors.New("s: bad key hunter2")
		}})
		c.Subscribe(relaytest.SecretType, "s")
		sleep(10 * time.Second)
		nacks := 0
		for _, s := range o.State().Streams {
			for _, req := range s.Requests {
				detail := req.Message.GetErrorDetail().GetMessage() + req.SotW.GetErrorDetail().GetMessage()
				if strings.Contains(detail, "hunter2") {
					t.Errorf("the origin is told %q", detail)
				}
				if strings.Contains(detail, `resource "s" rejected by 1 of 1 clients`) {
					nacks++
				}
			}
		}
		check.Equal(t, "NACKs", nacks, 1)
	})
}

// TestB10_RejectsPassThroughTiers: what clients of a relay reject is one client's NACK for the relay above it, whose origin
// learns of it, too.
func TestB10_RejectsPassThroughTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := controlplane.New(t, controlplane.Snapshots, new(memnet.Network), planeWorld()...)
		above := startRelay(t, instance.Of(o), reportRejects)
		below := above.downstreamRelay(reportRejects)
		rejectCluster(below, "bad", "envoy", 2, 4)
		sleep(time.Minute)
		o.Put(relaytest.Cluster("bad"))
		sleep(settling)
		answersOf(o, typeCDS)
		sleep(time.Hour)
		told := answersOf(o, typeCDS)
		if len(told) != 1 || !strings.HasPrefix(told[0], `resource "bad" rejected by 1 of 1 clients: "resource \"bad\" rejected by 2 of 4`) {
			t.Errorf("the control plane is told %q", told)
		}
	})
}
