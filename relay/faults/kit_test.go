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
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
)

// TestMain runs the tests, or the gRPC client that they start as a process of its own.
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

func runTests(m *testing.M) int {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 { // by no test alone: they run at the same time
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	envoytest.Clean()
	return code
}

// A relayProcess is a tender serve.
type relayProcess struct {
	*envoytest.Process
	met
}

// met is where a relay is met: by clients, and by operators, who get pages of its admin address.
type met struct {
	tb          *testing.T
	addr, admin string
	page        func(path string) []byte
}

// serve starts a relay with these variables and no others of ours.
func serve(t *testing.T, env ...string) *relayProcess {
	t.Helper()
	p := envoytest.StartRelay(t, "", env...)
	return &relayProcess{p.Process, met{t, p.Addr, p.Admin, p.Get}}
}

// run runs a relay in the test itself, with what variables cannot say.
func run(t *testing.T, opts relay.Options, env ...string) met {
	t.Helper()
	r := envoytest.NewRelayWith(t, opts, "", env...)
	return met{t, r.Addr, r.Admin, r.Get}
}

// client returns a client of the relay on a connection of its own.
func (r met) client(v relaytest.Variant, id string) *relaytest.Client {
	r.tb.Helper()
	return relaytest.NewClient(r.tb, r.conn(), relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
}

func (r met) conn() *grpc.ClientConn {
	r.tb.Helper()
	return connect(r.tb, r.addr)
}

func connect(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// counts fails the test unless metrics have these values.
func (r met) counts(want ...string) {
	r.tb.Helper()
	page := r.page("/metrics")
	for _, line := range want {
		if !counted(page, line) {
			r.tb.Errorf("the metrics have no %s:\n%s", line, page)
		}
	}
}

// counted reports whether metrics have a line that a regular expression matches.
func counted(page []byte, line string) bool {
	return regexp.MustCompile(`(?m)^` + line + `$`).Match(page)
}

// A controlPlane is a go-control-plane.
type controlPlane struct {
	*controlplane.Server
	addr string
}

// newControlPlane starts one with the same world each time.
func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	o := controlplane.New(t, controlplane.Linear, nil, world()...)
	return &controlPlane{o, o.Target()}
}

// change has the endpoints of cluster a be of a port.
func (p *controlPlane) change(port int) {
	p.Put(relaytest.Endpoints("a", fmt.Sprint("127.0.0.1:", port)))
}

// clusters are how many the control plane has, with endpoints each.
const clusters = 30

// edsNames are the endpoints that clients ask for.
var edsNames = []string{"a", "c1", "c2"}

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

// within bounds a wait that may take a while.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("too late"))
	t.Cleanup(cancel)
	return ctx
}

// subscribe asks for all that the control plane has, as an Envoy does.
func subscribe(c *relaytest.Client) {
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, edsNames...)
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "route")
}

// served waits until clients have all that there is, and the endpoints of cluster a are
// of a port.
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
