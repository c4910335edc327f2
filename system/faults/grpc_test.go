package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	_ "google.golang.org/grpc/xds" // for the scheme xds:///

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// grpcClientEnv is an environment variable that makes the test program run as a gRPC client of the target in its value.
const grpcClientEnv = "FAULTS_GRPC_CLIENT"

// runGRPCClient sends one RPC after the other until the reader ends, and serves CSDS. It prints to say the address of
// the backend when it changes, and the errors of RPCs.
func runGRPCClient(target string, until io.Reader, say io.Writer) error {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop, err := serveClientStatus(say)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the process
		defer cancel()
		for lines := bufio.NewScanner(until); lines.Scan(); {
		}
	}()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for last := ""; ctx.Err() == nil; <-pause.C {
		var from peer.Peer
		if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&from), grpc.WaitForReady(last == "")); err != nil {
			fmt.Fprintln(say, "ERROR: RPC:", err)
		} else if by := from.Addr.String(); by != last {
			fmt.Fprintln(say, "answered by", by)
			last = by
		}
	}
	return nil
}

// A grpcClient is a process that runs runGRPCClient, with its output and the log of gRPC. It finds its backends by xDS.
type grpcClient struct {
	*envoytest.Process
	target string
}

// newGRPCClient starts a client of target. servers are the addresses of its management servers in order of preference
// (gRFC A71).
func newGRPCClient(t *testing.T, target string, servers ...string) *grpcClient {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range servers {
		servers[i] = fmt.Sprintf(`{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}`, s)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), grpcClientEnv+"="+target, "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GRPC_GO_LOG_VERBOSITY_LEVEL=2",
		fmt.Sprintf(`GRPC_XDS_BOOTSTRAP_CONFIG={"xds_servers": [%s], "node": {"id": %q}}`, strings.Join(servers, ","), target))
	return &grpcClient{envoytest.StartProcess(t, "gRPC client of "+target, cmd), target}
}

// logged returns the log lines since mark with a severity, such as "WARNING".
func (c *grpcClient) logged(mark int, severity string) (lines []string) {
	all, _ := c.Lines(mark)
	for _, line := range all {
		if strings.Contains(line, severity+":") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestB33_GRPCClientsSeeNoErrorInADrain: gRPC's xDS client does not treat a drain of the relay as an error. Its
// bootstrap has the origin as a fallback, which it must never use (R134, gRFC A57 and A71). This holds when it
// connects to another relay, also while it waits for a resource, and when the same relay returns after a while.
func TestB33_GRPCClientsSeeNoErrorInADrain(t *testing.T) {
	t.Parallel()
	one, two := relaytest.NewBackend(t), relaytest.NewBackend(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
	o.Put(relaytest.Cluster("service", "endpoints"), relaytest.Endpoints("endpoints", one),
		relaytest.APIListener("api", "route"), relaytest.Route("route", []string{"*"}, "service"), relaytest.APIListener("late", "late-route"))
	first, second := startReplica(t, "tender/first", o), startReplica(t, "tender/second", o)
	service, origin := proxy.New(t, first.address), proxy.New(t, o.Addr())
	served := newGRPCClient(t, "xds:///api", service.Addr(), origin.Addr())
	waits := newGRPCClient(t, "xds:///late", service.Addr(), origin.Addr())
	clients := []*grpcClient{served, waits}
	served.AwaitLine(0, "answered by "+one)
	waits.AwaitLine(0, `ADS response received for type "`+relaytest.ListenerType)

	// The service routes new connections to the other relay, because the first one is not ready.
	marks := []int{served.Mark(), waits.Mark()}
	service.Forward(second.address)
	first.Drain()
	for i, c := range clients {
		c.AwaitLine(marks[i], "ADS stream closed: EOF")
		c.AwaitLine(marks[i], "ADS response received")
		for _, line := range c.logged(marks[i], "WARNING") { // gRPC warns of each stream that ends after a response
			if !strings.HasSuffix(line, ": EOF") {
				t.Errorf("%s logged %s", c.target, line)
			}
		}
	}
	o.Put(relaytest.Endpoints("endpoints", two), relaytest.Route("late-route", []string{"*"}, "service"))
	served.AwaitLine(marks[0], "answered by "+two)
	waits.AwaitLine(marks[1], "answered by "+two)

	// The second relay drains and returns.
	marks = []int{served.Mark(), waits.Mark()}
	second.Drain()
	for i, c := range clients {
		c.AwaitLine(marks[i], "ADS stream closed: EOF")
		c.AwaitLine(marks[i], "Failed to create a new ADS streaming RPC")
	}
	o.Put(relaytest.Endpoints("endpoints", one))
	second.start()
	for i, c := range clients {
		c.AwaitLine(marks[i], "answered by "+one)
		for _, line := range c.logged(0, "ERROR") {
			t.Errorf("%s logged %s", c.target, line)
		}
	}
	if s := origin.State(); s.Accepted > 0 {
		t.Errorf("clients connected to the origin %d times, want never", s.Accepted)
	}
}
