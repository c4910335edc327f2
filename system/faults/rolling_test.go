package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/ledger"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A replica is a relay that can be drained and started again on its address.
type replica struct {
	*instance.Relay
	t       *testing.T
	opts    instance.Options
	address string
}

// startReplica starts a relay with a node ID on a free address.
func startReplica(t *testing.T, id string, origin *relaytest.Origin) *replica {
	t.Helper()
	r := &replica{t: t, address: proxy.FreeAddress(t)}
	r.opts = instance.Options{
		Env:     []string{"TENDER_NODE_ID=" + id, "TENDER_ORIGIN=" + origin.Addr(), "TENDER_DRAIN=2s"},
		Options: relay.Options{Logger: slog.New(slog.DiscardHandler)},
	}
	r.start()
	return r
}

// start starts the relay, also after a drain. It must not change the address, which clients read concurrently.
func (r *replica) start() {
	r.t.Helper()
	l, err := proxy.ListenAgain(r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.opts.Options.Listeners = []net.Listener{l}
	r.Relay = instance.Start(r.t, r.opts)
}

func (r *replica) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// TestB33_RollingRestart: three relays with 180 clients are restarted one after the other while the origin changes 20
// resources per second. Clients connect to another relay when theirs drains. They receive every change, and lose only
// resources that the origin removed.
func TestB33_RollingRestart(t *testing.T) {
	t.Parallel()
	const (
		clients, clusters = 180, 60
		between           = 50 * time.Millisecond // between two changes
		perPhase          = 10                    // changes before, between and after each drain and start
	)
	origin, ledger := relaytest.NewOrigin(t, relaytest.OriginOptions{}), ledger.New()
	all := []*relaytest.Content{origin.Content}
	for i := range clusters {
		ledger.Put(all, relaytest.Endpoints(fmt.Sprint("service-", i), fmt.Sprintf("127.0.0.1:%d", i+1)))
		ledger.Put(all, relaytest.Cluster(fmt.Sprint("service-", i)))
	}
	replicas := []*replica{startReplica(t, "tender/1", origin), startReplica(t, "tender/2", origin), startReplica(t, "tender/3", origin)}
	var dial []func() (*grpc.ClientConn, error)
	for _, r := range replicas {
		dial = append(dial, r.dial)
	}

	var wrong atomic.Int64
	fleet, wants := make([]*relaytest.Roaming, clients), make([][]relaytest.Subscription, clients)
	for i := range fleet {
		opts := relaytest.LightOptions{Variant: relaytest.Variant(i % 2), Node: &corepb.Node{Id: fmt.Sprint("client-", i), UserAgentName: "envoy"}}
		opts = ledger.Reader(opts.Variant).Options(opts, func(what string) {
			if wrong.Add(1) <= 10 {
				t.Errorf("client %d received wrong content: %s", i, what)
			}
		})
		wants[i] = []relaytest.Subscription{{TypeURL: relaytest.EndpointType, Names: []string{fmt.Sprint("service-", i%clusters), fmt.Sprint("service-", i*7%clusters)}}}
		if i%20 == 0 {
			wants[i] = append(wants[i], relaytest.Subscription{TypeURL: relaytest.ClusterType})
		}
		fleet[i] = relaytest.Roam(t, opts, i, dial, wants[i]...)
	}
	agree := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
		defer cancel()
		for i, c := range fleet {
			v := relaytest.Variant(i % 2)
			if !c.Await(ctx, func(s relaytest.State) bool { return ledger.Differs(s, v, wants[i]) == "" }) {
				t.Fatalf("%v differs from the origin: %s", c, ledger.Differs(c.State(), v, wants[i]))
			}
		}
	}
	agree()

	random, ticker := rand.New(rand.NewPCG(1, 2)), time.NewTicker(between)
	defer ticker.Stop()
	change := func() {
		for n := range perPhase {
			<-ticker.C
			service := fmt.Sprint("service-", random.IntN(clusters))
			switch n {
			case 9:
				ledger.Put(all, relaytest.Cluster(service, fmt.Sprint("moved-", ledger.Changes())))
			case 4:
				ledger.Remove(all, relaytest.ClusterType, fmt.Sprint("service-", random.IntN(clusters/10)))
			default:
				ledger.Put(all, relaytest.Endpoints(service, fmt.Sprintf("127.0.0.2:%d", ledger.Changes())))
			}
		}
	}
	change()
	for _, r := range replicas {
		r.Drain()
		change()
		r.start()
		change()
	}
	agree()
	for _, c := range fleet {
		c.Stop()
	}
}
