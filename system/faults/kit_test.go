package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
)

// TestMain runs the tests or, with grpcClientEnv, the gRPC client that tests start as a separate process.
func TestMain(m *testing.M) {
	client := os.Getenv(grpcClientEnv)
	if client == "" {
		os.Exit(runTests(m))
	}
	if err := runGRPCClient(client, os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// hosts are names with several addresses, for relays in the test process.
var hosts = relaytest.NewNames()

// runTests runs the tests and checks for leaked goroutines. It returns the exit code.
func runTests(m *testing.M) int {
	resolver.Register(hosts)
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 { // only here, because the tests run in parallel
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	envoytest.Clean()
	return code
}

// A relayProcess is a relay in a process of its own.
type relayProcess struct {
	*envoytest.Process
	met
}

// met is a running relay with its addresses.
type met struct {
	tb          *testing.T
	addr, admin string                   // addresses for clients and for operators
	page        func(path string) []byte // returns a page of the admin address
}

// serve starts a relay process with further variables.
func serve(t *testing.T, env ...string) *relayProcess {
	t.Helper()
	p := envoytest.StartRelay(t, "", env...)
	return &relayProcess{p.Process, met{t, p.Addr, p.Admin, p.Get}}
}

// run starts a relay in the test process, with options that have no variable.
func run(t *testing.T, opts relay.Options, env ...string) met {
	t.Helper()
	r := envoytest.NewRelayWith(t, opts, "", env...)
	return met{t, r.Addr, r.Admin, r.Get}
}

// client returns a client of the relay with a separate connection. id is its node ID.
func (r met) client(v relaytest.Variant, id string) *relaytest.Client {
	r.tb.Helper()
	return relaytest.NewClient(r.tb, r.conn(), relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
}

func (r met) conn() *grpc.ClientConn {
	r.tb.Helper()
	return connect(r.tb, r.addr)
}

// connect returns a connection to an address, which is closed when the test ends.
func connect(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// counts fails the test unless the metrics have a line for each regular expression.
func (r met) counts(want ...string) {
	r.tb.Helper()
	page := r.page("/metrics")
	for _, line := range want {
		if !counted(page, line) {
			r.tb.Errorf("no line of the metrics matches %s:\n%s", line, page)
		}
	}
}

// counted reports whether a whole line of a metrics page matches a regular expression.
func counted(page []byte, line string) bool {
	return regexp.MustCompile(`(?m)^` + line + `$`).Match(page)
}

// A controlPlane is a server of go-control-plane.
type controlPlane struct {
	*controlplane.Server
	addr string
}

// newControlPlane starts a control plane with the resources of world.
func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	o := controlplane.New(t, controlplane.Linear, nil, world()...)
	return &controlPlane{o, o.Target()}
}

// change sets the port of the endpoint of cluster a.
func (p *controlPlane) change(port int) {
	p.Put(relaytest.Endpoints("a", fmt.Sprint("127.0.0.1:", port)))
}

// clusters is the number of clusters of the control plane, each with endpoints.
const clusters = 30

// edsNames are the endpoints to which clients subscribe.
var edsNames = []string{"a", "c1", "c2"}

// world returns the initial resources. The endpoint of cluster a has port 1000.
func world() (msgs []proto.Message) {
	for i := range clusters {
		name := "a"
		if i > 0 {
			name = fmt.Sprint("c", i)
		}
		msgs = append(msgs, relaytest.Cluster(name), relaytest.Endpoints(name, fmt.Sprint("127.0.0.1:", 1000+i)))
	}
	return append(msgs, relaytest.Listener("web", "route"), relaytest.Route("route", []string{"*"}, "a"))
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("too late"))
	t.Cleanup(cancel)
	return ctx
}

// subscribe subscribes as an Envoy does: to clusters and listeners by wildcard, and by name to endpoints and routes.
func subscribe(c *relaytest.Client) {
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, edsNames...)
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "route")
}

// served waits until clients have all resources, and the endpoint of cluster a has a port.
func served(t *testing.T, port int, clients ...*relaytest.Client) {
	t.Helper()
	want := relaytest.DigestOf(relaytest.Endpoints("a", fmt.Sprint("127.0.0.1:", port)))
	for _, c := range clients {
		c.WaitState(t.Context(), func(s relaytest.State) bool {
			return len(s[relaytest.ClusterType]) == clusters && len(s[relaytest.EndpointType]) == len(edsNames) &&
				len(s[relaytest.ListenerType]) == 1 && len(s[relaytest.RouteType]) == 1 &&
				s.Digest(relaytest.EndpointType, "a") == want
		})
	}
}
