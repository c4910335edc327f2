package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// An output buffers the output of a demo. It calls a function on each write that contains a word.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer // guarded by mu
	word string
	call func() // may be nil; called with mu held
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.call != nil && bytes.Contains(b, []byte(o.word)) {
		o.call()
	}
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// run runs a demo and returns its output. The test fails if Run returns an error, logs a warning, or leaks a goroutine of
// a demo on sockets.
func run(t *testing.T, ctx context.Context, o Options, out *output) string {
	t.Helper()
	if o.network.origin == nil { // otherwise, the bubble of the demo waits for all goroutines
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	}
	var log output
	o.Out, o.Logger = out, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if err := Run(ctx, o); err != nil {
		t.Errorf("Run: %v\n%s", err, out)
	}
	if log.String() != "" {
		t.Errorf("the log of a normal run is not empty:\n%s", &log)
	}
	return out.String()
}

// expect fails the test unless text has a line that matches each pattern, in that order.
func expect(t *testing.T, text string, patterns ...string) {
	t.Helper()
	rest := text
	for _, p := range patterns {
		at := regexp.MustCompile(`(?m)^` + p + `$`).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no line matches %q after the lines before it in:\n%s", p, text)
		}
		rest = rest[at[1]:]
	}
}

// A listener is a listener in memory that has a loopback address, as the sockets of a demo.
type listener struct {
	*memnet.Listener
	port int
}

func (l listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.port} }

// inMemory returns a network in memory.
func inMemory() network {
	listen := func(port int) listener { return listener{memnet.Listen(64 << 10), port} }
	return network{
		origin: listen(1), clients: listen(2), operators: listen(3),
		dial: func(ctx context.Context, to net.Listener) (net.Conn, error) { return to.(listener).Dial(ctx) },
	}
}

// simulate is run in memory and in virtual time. Output that contains until ends the context of the demo; if until is
// empty, the demo ends by itself.
func simulate(t *testing.T, o Options, until string) (text string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := new(output)
		if until != "" {
			out.word, out.call = until, cancel
		}
		o.network = inMemory()
		text = run(t, ctx, o, out)
	})
	return text
}

func TestRun(t *testing.T) {
	text := simulate(t, Options{Clients: 20, Rate: 20, For: 2 * time.Second, Command: "bin/tender"}, "")
	const ms = `\d+\.\d\dms`
	expect(t, text,
		`Status page: http://127\.0\.0\.1:\d+/`,
		`It shows two clients with problems: gateway-old rejects a listener \(red\), and edge-far-away lags by 15s \(violet\)\.`,
		`A shop of 13 services \(17 clusters, 14 listeners\), .*:`,
		`  origin   127\.0\.0\.1:\d+ +a control plane that changes the shop 20 times a second`,
		`  relay    127\.0\.0\.1:\d+ +one connection up, 22 streams down`,
		`  clients  20 +10 SotW and 10 Delta, on 2 connections, and the two with problems`,
		`  bin/tender get -a 127\.0\.0\.1:\d+ cds`,
		`Point an Envoy at 127\.0\.0\.1:\d+: deploy/envoy has bootstraps\.`,
		`All 20 clients are in sync with the origin after \d+\.\ds\. Now the origin changes\.`,
		`  time  streams  changes/s  deliveries/s  delay: median +99%   latest change`,
		`    1s +22 +\d+ +\d+ +`+ms+` +`+ms+`   \S.*`,
		`    2s +22 +\d+ +\d+ +`+ms+` +`+ms+`   \S.*`,
		`In 2\.\ds: \d+ changes at the origin, \d+ deliveries of changed resources to clients\.`,
		`Delay from a change to a client that has it: median `+ms+`, 90% `+ms+`, 99% `+ms+`, longest `+ms+`\.`,
		`All 20 clients agree with the origin: yes`,
	)
	if strings.Contains(text, "Ctrl-C") || strings.Contains(text, "taken") {
		t.Errorf("output of a demo with a duration and a free port mentions Ctrl-C or a port in use:\n%s", text)
	}
}

// TestRunShowsARejection checks that the API of the status page returns the client that rejects a listener, with the detail
// of its NACK.
func TestRunShowsARejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o, ended := Options{Clients: 2, network: inMemory()}, make(chan struct{})
		go func() { // awaited below
			defer close(ended)
			run(t, ctx, o, new(output))
		}()
		time.Sleep(time.Second)
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: o.network.dialHTTP()}}
		resp, err := client.Get("http://127.0.0.1/api/v1/clients?rejected=true")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(text), `"node_id": "gateway-old"`) || !strings.Contains(string(text), "Error adding/updating listener(s) ingress: ") {
			t.Errorf("the API shows no NACK of gateway-old: %s, %v", text, err)
		}
		cancel()
		<-ended
	})
}

func TestRunTakesAFreePortWhereItsOwnIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	text := run(t, t.Context(), Options{Clients: 1, For: time.Millisecond, Listen: address}, new(output))
	expect(t, text, regexp.QuoteMeta(address)+` is taken, so the relay listens on 127\.0\.0\.1:\d+\.`, `All 1 clients agree with the origin: yes`)
	if strings.Contains(text, "Point an Envoy at "+address) {
		t.Errorf("output points an Envoy at the port in use:\n%s", text)
	}
}

// TestRunEndsWithItsContext cancels the context at each stage of a demo.
func TestRunEndsWithItsContext(t *testing.T) {
	tests := []struct {
		word string // output that cancels the context
		want string // pattern of a line of output
	}{
		{"A shop of", `Ended before all clients were in sync with the origin\.`},
		{"Now ", `All 4 clients agree with the origin: yes`},
		{"latest change", `All 4 clients agree with the origin: yes`},
	}
	for _, tt := range tests {
		t.Run(tt.word, func(t *testing.T) {
			expect(t, simulate(t, Options{Clients: 4, Rate: 20}, tt.word), tt.want)
		})
	}
}

func TestRunRefusesOptions(t *testing.T) {
	tests := []struct {
		o    Options
		want string
	}{
		{Options{Clients: -1}, "demo: Clients = -1, must be from 1 to 5000"},
		{Options{Clients: 5001}, "demo: Clients = 5001, must be from 1 to 5000"},
		{Options{Rate: 0.01}, "demo: Rate = 0.01, must be from 0.1 to 100"},
		{Options{Rate: 101}, "demo: Rate = 101, must be from 0.1 to 100"},
		{Options{Rate: math.NaN()}, "demo: Rate = NaN, must be from 0.1 to 100"},
		{Options{Stage: time.Millisecond}, "demo: Stage = 1ms, must be from 1s to 1m0s"},
		{Options{Rollout: true, For: 43 * time.Second}, "demo: For = 43s, must be at least 44s with Rollout"},
		{Options{Rollout: true, Envoy: "envoy"}, "demo: Rollout and Envoy exclude each other"},
		{Options{For: -time.Second}, "demo: For = -1s, must not be negative"},
		{Options{Listen: "127.0.0.1:http:"}, `TENDER_LISTEN="127.0.0.1:http:"`},
	}
	for _, tt := range tests {
		var out output
		tt.o.Out = &out
		err := Run(t.Context(), tt.o)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || out.String() != "" {
			t.Errorf("Run(%+v): %v, printed %q, want %q and nothing", tt.o, err, &out, tt.want)
		}
	}
}

// TestAFailedPartEndsTheDemo checks that an error of a part cancels the context, and that failed returns it.
func TestAFailedPartEndsTheDemo(t *testing.T) {
	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	broken := errors.New("broken")
	p := begin(ctx, func(context.Context) error { return broken }, fail)
	<-ctx.Done()
	p.end()
	if err := failed(ctx); !errors.Is(err, broken) {
		t.Errorf("the demo failed with %v, want %v", err, broken)
	}
	wanted, cancel := context.WithCancel(t.Context())
	cancel()
	if err := failed(wanted); err != nil {
		t.Errorf("failed returns %v for a context that the user cancelled, want nil", err)
	}
}

// told returns a client that holds clusters a and b, and the endpoints of a. Cluster b does not use EDS.
func told() *client {
	c := newClient(1, true, newMeter())
	c.take(update{typeURL: wire.ClusterType, resources: map[string][]byte{"a": edsCluster, "b": nil}}, time.Now())
	c.wanted[wire.EndpointType] = c.neededBy(wire.ClusterType, wire.EndpointType)
	c.take(update{typeURL: wire.EndpointType, resources: map[string][]byte{"a": []byte("1"), "z": []byte("2")}}, time.Now())
	return c
}

var edsCluster = []byte{2 << 3, 3} // type: EDS

// held returns the contents that the client of told holds.
func held() map[string]map[string]content {
	return map[string]map[string]content{
		wire.ClusterType:  {"a": contentOf(wire.ClusterType, "a", edsCluster), "b": contentOf(wire.ClusterType, "b", nil)},
		wire.EndpointType: {"a": contentOf(wire.EndpointType, "a", []byte("1"))},
	}
}

func TestDifference(t *testing.T) {
	tests := []struct {
		name   string
		happen func(c *client, want map[string]map[string]content)
		want   string // empty if there must be no difference
	}{
		{"none", func(*client, map[string]map[string]content) {}, ""},
		{"lacks", func(_ *client, want map[string]map[string]content) { want[wire.ClusterType]["c"] = 1 }, `client 1 (Delta) lacks cds "c"`},
		{"other", func(_ *client, want map[string]map[string]content) { want[wire.EndpointType]["a"] = 1 }, `client 1 (Delta) has another eds "a" than the origin`},
		{"keeps", func(_ *client, want map[string]map[string]content) { delete(want[wire.ClusterType], "b") }, `client 1 (Delta) still has cds "b"`},
		{"ended", func(c *client, _ map[string]map[string]content) { c.ended = errors.New("no") }, "client 1 (Delta): the stream ended: no"},
		{"a removal", func(c *client, want map[string]map[string]content) {
			c.take(update{typeURL: wire.ClusterType, removed: []string{"b", "never"}}, time.Now())
			delete(want[wire.ClusterType], "b")
		}, ""},
		{"a complete set", func(c *client, want map[string]map[string]content) {
			c.take(update{typeURL: wire.ClusterType, resources: map[string][]byte{"b": nil}, complete: true}, time.Now())
			c.neededBy(wire.ClusterType, wire.EndpointType)
			delete(want[wire.ClusterType], "a")
			delete(want, wire.EndpointType)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, want := told(), held()
			tt.happen(c, want)
			got := ""
			if err := c.difference(want); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("difference: %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDisagreementNamesSomeAndCountsTheRest(t *testing.T) {
	want := held()
	clients := []*client{told()}
	if err := disagreement(clients, want); err != nil {
		t.Errorf("disagreement: %v, want none", err)
	}
	for n := range 7 {
		clients = append(clients, newClient(n+2, false, newMeter()))
	}
	err := disagreement(clients, want)
	if err == nil {
		t.Fatal("disagreement: nil for clients without resources")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 7 || !slices.Contains(lines, "and 2 more clients") || strings.Contains(err.Error(), "client 1 ") ||
		!strings.HasPrefix(lines[1], "client 2 (SotW) lacks ") {
		t.Errorf("disagreement: %v, want a heading, five clients and the number of the others", err)
	}
}
