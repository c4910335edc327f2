package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// The tests in this file have real peers: processes, an Envoy, the xDS client of gRPC-Go and a browser. They cover the
// way from a control plane to each kind of client once; package system has more scenarios.

// A restartable is a server of go-control-plane on a Unix socket, which can be stopped and restarted. Its cache outlives
// the server.
type restartable struct {
	controlPlane
	t      *testing.T
	target string // gRPC target
	server *grpc.Server
	served chan error
}

// startRestartable starts a control plane without resources. It stops when the test ends.
func startRestartable(t *testing.T) *restartable {
	t.Helper()
	path := filepath.Join(t.TempDir(), "xds")
	cp := &restartable{controlPlane: controlPlane{path, cachev3.NewSnapshotCache(false, everyNode{}, nil)}, t: t, target: "unix://" + path}
	cp.start()
	t.Cleanup(cp.stop)
	return cp
}

// start listens on the socket, and serves the resources of the cache.
func (cp *restartable) start() {
	cp.t.Helper()
	l, err := net.Listen("unix", cp.address)
	if err != nil {
		cp.t.Fatal(err)
	}
	server, served := grpc.NewServer(), make(chan error, 1)
	discoverypb.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), cp.cache, nil))
	go func() { served <- server.Serve(l) }() // awaited by stop
	cp.server, cp.served = server, served
}

// stop closes all streams and the socket. It does nothing if the server has stopped.
func (cp *restartable) stop() {
	if cp.server == nil {
		return
	}
	cp.server.Stop()
	if err := <-cp.served; err != nil {
		cp.t.Errorf("control plane ended: %v", err)
	}
	cp.server = nil
}

// TestReal_Directory runs the binary as a relay of a directory and as its clients: tender get receives each change,
// tender status describes the relay, SIGHUP reads files again, SIGUSR1, SIGUSR2 and SIGPIPE do nothing, and SIGTERM ends the streams and then the relay without an error.
func TestReal_Directory(t *testing.T) {
	t.Parallel()
	tender, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(clusters ...string) {
		t.Helper()
		next := filepath.Join(t.TempDir(), "next.yaml")
		text := fmt.Sprintf("[{'@type': %[1]s, name: %[2]s}]\n", relaytest.ClusterType, strings.Join(clusters, "}, {'@type': "+relaytest.ClusterType+", name: "))
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, filepath.Join(dir, "clusters.yaml"))); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	served := envoytest.StartRelayOf(t, tender, "file://"+dir, "TENDER_DRAIN=1s", "TENDER_MAX_CONNECTIONS=100")
	watched := envoytest.StartProcess(t, "tender get", exec.CommandContext(t.Context(), tender, "get", "-w", "-a", served.Addr, "-o", "name", "cds"))
	watched.AwaitLine(0, "added first")
	status, err := exec.CommandContext(t.Context(), tender, "status", "--admin", served.Admin).CombinedOutput()
	for _, want := range []string{" 1 stream, ready", "file://", "directory", "user_agent_name=tender-get"} {
		if err != nil || !strings.Contains(string(status), want) {
			t.Errorf("tender status: %v, want %q in\n%s", err, want, status)
		}
	}
	write("first", "second")
	watched.AwaitLine(0, "added second")
	write("second")
	watched.AwaitLine(0, "removed first")

	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGHUP} {
		served.Signal(sig)
	}
	served.AwaitLine(0, "credential files read again on request")
	served.Signal(syscall.SIGTERM)
	watched.AwaitLine(0, "the server ended the stream")
	if code := served.Wait(); code != exitOK {
		t.Errorf("after SIGTERM, tender serve ended with %d, want 0", code)
	}
	if log := served.Log(); !strings.Contains(log, `"draining"`) || !strings.Contains(log, `"drain ended"`) || !strings.Contains(log, `"relay ready"`) || strings.Contains(log, `"level":"ERROR"`) || strings.Contains(log, `"level":"WARN"`) {
		t.Errorf("the log of tender serve has a warning, or lacks the drain:\n%s", log)
	}
}

// TestReal_Envoy runs an Envoy below a relay of go-control-plane: no request fails while an endpoint changes and while
// the control plane is down, and a removal arrives when the control plane is back.
func TestReal_Envoy(t *testing.T) {
	t.Parallel()
	one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
	resources := func(backend *envoytest.Backend, listeners ...string) map[resource.Type][]types.Resource {
		all := map[resource.Type][]types.Resource{
			resource.ClusterType:  {relaytest.Cluster("service")},
			resource.EndpointType: {relaytest.Endpoints("service", backend.Addr)},
			resource.RouteType:    {relaytest.Route("route", []string{"*"}, "service")},
		}
		for _, name := range listeners {
			all[resource.ListenerType] = append(all[resource.ListenerType], relaytest.Listener(name, "route"))
		}
		return all
	}
	cp := startRestartable(t)
	cp.set(t, "1", resources(one, "web", "extra"))
	r := instance.Start(t, instance.Options{Target: cp.target})
	envoy := envoytest.Start(t, envoytest.Options{Server: r.Target, Node: relaytest.EnvoyNode("edge")})
	load := envoytest.StartLoad(t, envoy.Listener("web"), 10*time.Millisecond)
	answers := func(backend *envoytest.Backend) {
		t.Helper()
		before := load.Report().Answers[backend.Name]
		load.Await("answers of "+backend.Name, func(r envoytest.Report) bool { return r.Answers[backend.Name] >= before+10 })
	}
	answers(one)
	cp.set(t, "2", resources(two, "web", "extra"))
	answers(two)

	mark := r.Log.Len()
	cp.stop()
	r.Log.Await(t, mark, "upstream stream closed")
	answers(two)
	mark = r.Log.Len()
	cp.start()
	r.Log.Await(t, mark, "type_url="+relaytest.ListenerType+" nonce=") // the relay has the resources again
	cp.set(t, "3", resources(two, "web"))
	envoy.Await("removal of the listener extra", func() error {
		if names := envoy.Config().Names("dynamic_listeners"); !slices.Equal(names, []string{"web"}) {
			return fmt.Errorf("listeners %q", names)
		}
		return nil
	})
	answers(two)
	if report := load.Stop(); len(report.Failures) > 0 {
		t.Errorf("requests through the Envoy: %v, want no failure", report)
	}
}

// TestReal_GRPC runs the xDS client of gRPC-Go below a relay of go-control-plane: RPCs reach the backend, and follow a
// change of it.
func TestReal_GRPC(t *testing.T) {
	t.Parallel()
	cp := startRestartable(t)
	route := func(version, backend string) {
		t.Helper()
		cp.set(t, version, map[resource.Type][]types.Resource{
			resource.ListenerType: {relaytest.APIListener("api", "route")},
			resource.RouteType:    {relaytest.Route("route", []string{"*"}, "service")},
			resource.ClusterType:  {relaytest.Cluster("service")},
			resource.EndpointType: {relaytest.Endpoints("service", backend)},
		})
	}
	one, two := relaytest.NewBackend(t), relaytest.NewBackend(t)
	route("1", one)
	r := instance.Start(t, instance.Options{Target: cp.target})
	resolver, err := xds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}], "node": {"id": "grpc"}}`, r.Target))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///api", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	reaches := func(backend string) {
		t.Helper()
		for from := (peer.Peer{}); from.Addr == nil || from.Addr.String() != backend; {
			if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&from), grpc.WaitForReady(true)); err != nil {
				t.Fatalf("RPC to %s: %v; the last one reached %v", backend, err, from.Addr)
			}
		}
	}
	reaches(one)
	route("2", two)
	reaches(two)
}

// TestReal_Browser opens the status page of a relay in Chromium. Without a reload, the page shows a client that rejects a
// resource, with a link to its error.
func TestReal_Browser(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("good"))
	r := instance.Start(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{"TENDER_ADMIN_LISTEN=127.0.0.1:0"}})
	client := r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("sidecar"), Reject: func(response *relaytest.Response) error {
		if strings.Contains(response.String(), "bad") {
			return errors.New("Error adding/updating cluster(s) bad: no such filter")
		}
		return nil
	}})
	client.Subscribe(relaytest.ClusterType)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU) // root has no sandbox
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	defer stop()
	browser, closed := chromedp.NewContext(allocated)
	defer closed() // waits for the process
	ctx, cancel := context.WithTimeout(browser, 4*relaytest.Patience)
	defer cancel()
	shows := func(text string) chromedp.Action {
		return chromedp.Poll(fmt.Sprintf("document.body.innerText.includes(%q)", text), nil, chromedp.WithPollingMutation(), chromedp.WithPollingTimeout(relaytest.Patience))
	}
	site := "http://" + r.AdminAddrs()[0].String()
	if err := chromedp.Run(ctx, chromedp.Navigate(site+"/"), shows("1 client")); err != nil {
		t.Fatalf("the status page of a relay with one client: %v", err)
	}
	o.Put(relaytest.Cluster("bad"))
	if err := chromedp.Run(ctx, shows("1 of 1 client rejects cds"), chromedp.WaitReady(`a[href="/clients/1"]`, chromedp.ByQuery),
		chromedp.Navigate(site+"/clients/1"), shows("no such filter")); err != nil {
		var html string
		_ = chromedp.Run(browser, chromedp.OuterHTML("body", &html)) // then it is empty
		t.Errorf("the pages do not show the client that rejects a cluster: %v\n%s", err, html)
	}
}
