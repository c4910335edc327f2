package hostile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A victim is a relay with an origin and a well-behaved client, the neighbour, which subscribes to a cluster.
type victim struct {
	*instance.Relay
	t         *testing.T
	origin    *relaytest.Origin
	neighbour *relaytest.Client
	changes   int // number of changes of the cluster so far
}

// changeEvery is the time between two changes during an attack. The changes should take little of the time of a test.
const changeEvery = 25 * time.Millisecond

// serve starts a relay with further variables, and the neighbour. They are stopped when the test ends.
func serve(t *testing.T, env ...string) *victim {
	t.Helper()
	v := &victim{t: t, origin: relaytest.NewOrigin(t, relaytest.OriginOptions{})}
	opts := instance.Of(v.origin)
	opts.Env, opts.Options.Logger = append(env, "TENDER_REST_LISTEN=127.0.0.2:0"), slog.New(slog.DiscardHandler)
	v.Relay = instance.Start(t, opts)
	v.neighbour = relaytest.NewClient(t, v.Conn(), relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
	v.origin.Put(relaytest.Cluster("a"))
	v.neighbour.Subscribe(relaytest.ClusterType, "a")
	v.told()
	return v
}

// limitBuffers sets a limit of memory of which the relays that start afterwards use a fourth for buffered requests. undo
// removes it, since the collector would run without end.
func limitBuffers(bytes int64) (undo func()) {
	before := debug.SetMemoryLimit(4 * bytes)
	return func() { debug.SetMemoryLimit(before) }
}

// dialer returns a dialer that connects from an IP address of this host.
func dialer(host string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
}

// from makes a gRPC client connect from an IP address of this host.
func from(host string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return dialer(host).DialContext(ctx, "tcp", address)
	})
}

// change changes the cluster and waits until the neighbour has received it.
func (v *victim) change() {
	v.t.Helper()
	v.changes++
	v.origin.Put(relaytest.Cluster("a", fmt.Sprint("endpoints-", v.changes)))
	v.told()
}

// told waits for a response to the neighbour and checks that it contains one resource.
func (v *victim) told() {
	v.t.Helper()
	if r := v.neighbour.Recv(v.t.Context()); len(r.Resources) != 1 {
		v.t.Fatalf("the neighbour received %v, want the changed cluster", r)
	}
}

// during runs an attack in its own goroutine, and changes the cluster meanwhile and three times afterwards. Each
// change must reach the neighbour.
func (v *victim) during(attack func()) {
	v.t.Helper()
	over := make(chan struct{})
	go func() { // awaited below
		defer close(over)
		attack()
	}()
	var slowest time.Duration
	change := func() {
		v.t.Helper()
		began := time.Now()
		v.change()
		slowest = max(slowest, time.Since(began))
	}
	pause := time.NewTicker(changeEvery)
	defer pause.Stop()
	for goes := true; goes; {
		change()
		select {
		case <-pause.C:
		case <-over:
			goes = false
		}
	}
	for range 3 {
		change()
	}
	v.t.Logf("%d changes, the slowest arrived after %v", v.changes, slowest)
}

// await polls is until it returns true. It fails the test after [relaytest.Patience].
func (v *victim) await(what string, is func() bool) {
	v.t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(relaytest.Patience); !is(); <-look.C {
		if time.Now().After(end) {
			v.t.Fatalf("timeout waiting for %s: %+v", what, v.Stats())
		}
	}
}

// An attacker is an HTTP/2 client that can send arbitrary frames.
type attacker struct {
	*http2.Framer
	t    *testing.T
	conn net.Conn
	enc  *hpack.Encoder // writes to buf
	buf  bytes.Buffer

	mu     sync.Mutex
	resets map[http2.ErrCode]int // guarded by mu; number of RST_STREAM frames by code
	status map[string]int        // guarded by mu; number of ended streams by gRPC status
	goAway http2.ErrCode         // guarded by mu; code of the last GOAWAY
	ended  chan struct{}         // closed when the connection has ended
}

// attack opens a connection to the relay's first address and sends the HTTP/2 preface.
func (v *victim) attack() *attacker {
	v.t.Helper()
	return v.attackAt(v.Addrs()[0])
}

// attackAt is attack with another address of the relay.
func (v *victim) attackAt(addr net.Addr) *attacker {
	v.t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		v.t.Fatal(err)
	}
	a := &attacker{
		Framer: http2.NewFramer(conn, conn), t: v.t, conn: conn,
		resets: make(map[http2.ErrCode]int), status: make(map[string]int), ended: make(chan struct{}),
	}
	a.enc = hpack.NewEncoder(&a.buf)
	a.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	a.AllowIllegalWrites = true
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		v.t.Fatal(err)
	}
	if err := a.WriteSettings(); err != nil {
		v.t.Fatal(err)
	}
	go a.read() // ends with the connection
	v.t.Cleanup(a.close)
	return a
}

// close closes the connection and waits until read has returned.
func (a *attacker) close() {
	_ = a.conn.Close() // the connection may be closed already
	<-a.ended
}

// read records the frames of the relay until the connection ends.
func (a *attacker) read() {
	defer close(a.ended)
	for {
		frame, err := a.ReadFrame()
		if err != nil {
			return
		}
		a.mu.Lock()
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			a.resets[frame.ErrCode]++
		case *http2.GoAwayFrame:
			a.goAway = frame.ErrCode
		case *http2.MetaHeadersFrame:
			for _, field := range frame.RegularFields() {
				if field.Name == "grpc-status" {
					a.status[field.Value]++
				}
			}
		}
		a.mu.Unlock()
	}
}

// reset returns how many streams the relay has reset with a code.
func (a *attacker) reset(code http2.ErrCode) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.resets[code]
}

// told returns how many streams have ended with a gRPC status.
func (a *attacker) told(status string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status[status]
}

// awaitEnd waits until the relay has closed the connection. It returns the code of the GOAWAY, or NO_ERROR if none
// arrived.
func (a *attacker) awaitEnd() http2.ErrCode {
	a.t.Helper()
	select {
	case <-a.ended:
	case <-time.After(relaytest.Patience):
		a.t.Error("timeout waiting for the end of the connection")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.goAway
}

// block encodes the headers of a Delta ADS call and further fields. The result is valid until the next call.
func (a *attacker) block(more ...hpack.HeaderField) []byte {
	a.buf.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"},
		{Name: ":authority", Value: "relay"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		if err := a.enc.WriteField(f); err != nil {
			a.t.Error(err)
		}
	}
	return a.buf.Bytes()
}

// open opens a stream, and returns an error if the connection has ended.
func (a *attacker) open(stream uint32, more ...hpack.HeaderField) error {
	return a.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: a.block(more...), EndHeaders: true})
}

// until repeats what until it returns an error. It fails the test if there is none within a number of calls.
func (a *attacker) until(times int, what func() error) {
	a.t.Helper()
	for range times {
		if err := what(); err != nil {
			if errors.Is(err, http2.ErrFrameTooLarge) {
				a.t.Error(err)
			}
			return
		}
	}
	a.t.Errorf("the connection has not ended after %d calls", times)
}
