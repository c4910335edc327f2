package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// asTender is the variable that makes the test binary run as tender.
const asTender = "RUN_AS_TENDER"

// TestMain runs tender in a process that a test started. In the process of the tests, it starts the goroutine of package
// signal, because one that starts in a bubble never ends.
func TestMain(m *testing.M) {
	if os.Getenv(asTender) != "" {
		main()
	}
	_ = os.Setenv(asTender, "yes")                                    // fails only for an invalid name
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // otherwise, each process sleeps before its end
	received := make(chan os.Signal, 1)
	signal.Notify(received, os.Interrupt)
	signal.Stop(received)
	os.Exit(m.Run())
}

// inMemory is the prefix of the addresses of servers in memory. It is on loopback, where no process uses it.
const inMemory = "127.77."

// A network has the servers in memory. Commands reach all of them, also those of other tests.
type network struct {
	mu    sync.Mutex
	dials map[string]func(context.Context) (net.Conn, error) // guarded by mu; by address
}

var memory = network{dials: make(map[string]func(context.Context) (net.Conn, error))}

// add returns the address of a server, host:port.
func (n *network) add(dial func(context.Context) (net.Conn, error)) (address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	address = fmt.Sprintf("%s%d.%d:1", inMemory, len(n.dials)/256, len(n.dials)%256)
	n.dials[address] = dial
	return address
}

// dial connects to a server in memory, or by a socket to any other address.
func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	dial := n.dials[address]
	n.mu.Unlock()
	if dial == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return dial(ctx)
}

// listen returns a listener in memory with its gRPC target.
func (n *network) listen() (l net.Listener, target string) {
	listener := memnet.Listen(64 << 10)
	return listener, "passthrough:///" + n.add(listener.Dial)
}

// hostFor returns the host on which a command line runs.
func hostFor(args []string) host {
	h := thisHost()
	h.dial = memory.dial
	if slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, inMemory) }) {
		h.dialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return memory.dial(ctx, "tcp", address)
		})}
	}
	return h
}

// execute runs a command line, and returns its exit code and output.
func execute(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(hostFor(args), args, &out, &errs)
	return code, out.String(), errs.String()
}

// must runs a command line, and verifies its exit code and that its output contains each text in want. It reads any
// whitespace in the output as one space. With an empty want it verifies nothing.
func must(t *testing.T, code int, want []string, args ...string) {
	t.Helper()
	got, stdout, stderr := execute(args...)
	for _, text := range want {
		if printed := strings.Join(strings.Fields(stdout+stderr), " "); got != code || !strings.Contains(printed, text) {
			t.Errorf("tender %s: code %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, code, text, stdout, stderr)
		}
	}
}

// prints verifies that a command line succeeds with exactly this output.
func prints(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, stdout, stderr := execute(args...); code != exitOK || stdout != want {
		t.Errorf("tender %s: code %d, %q%s, want %q", strings.Join(args, " "), code, stdout, stderr, want)
	}
}

// A remote is a relay in memory, as commands see it.
type remote struct {
	*instance.Relay
	target string   // for xDS clients
	get    []string // the command line that prints the names of its clusters
}

// startRemote starts a relay in memory, and sets adminVariable to its admin address.
func startRemote(t testing.TB, opts instance.Options) *remote {
	t.Helper()
	opts.Memory, opts.Env = true, append(opts.Env, "TENDER_ADMIN_LISTEN=127.0.0.1:0")
	r := instance.Start(t, opts)
	t.Setenv(adminVariable, memory.add(r.DialAdmin))
	target := "passthrough:///" + memory.add(r.Listener.Dial)
	return &remote{r, target, []string{"get", "-a", target, "cds", "-o", "name"}}
}
