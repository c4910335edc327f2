package relay_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// An interopOrigin is an origin that can die and return on its address.
type interopOrigin interface {
	Target() string
	Put(msgs ...proto.Message)
	Stop()
	Restart()
}

// interopNode is the node id that the relays of these tests present.
const interopNode = "tender/interop"

// interopStart runs a relay of the origin at target until the test ends. An
// empty listen means a free port; memory, if set, replaces the sockets.
func interopStart(t testing.TB, target, listen string, memory *relaytest.Memory, env ...string) (*running, *interopLog) {
	t.Helper()
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	log := &interopLog{out: t.Output(), changed: make(chan struct{})}
	opts := relay.Options{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test"}
	r := &running{t: t, ended: make(chan error, 1), dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	if memory != nil {
		l := relaytest.ListenPipe(1 << 20)
		opts.Listeners = []net.Listener{l}
		opts.DialOptions = []grpc.DialOption{memory.DialOption()}
		r.target = "passthrough:///relay"
		r.dial = append(r.dial, l.DialOption())
	}
	cfg, err := relay.LoadConfig(append([]string{
		"TENDER_LISTEN=" + listen, "TENDER_ADMIN_LISTEN=off", "TENDER_NODE_ID=" + interopNode, "TENDER_DRAIN=1s",
	}, env...))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Origin = []string{target}
	if r.Relay, err = relay.New(cfg, opts); err != nil {
		t.Fatal(err)
	}
	if memory == nil {
		r.target = r.Addrs()[0].String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx) }() // awaited by stop
	t.Cleanup(r.stop)
	return r, log
}

// interopChain runs relays in a row until the test ends: the first one of the origin
// at target, the last one on the address listen. It returns the last one, and the log
// of the first.
func interopChain(t testing.TB, target, listen string, relays int, env ...string) (*running, *interopLog) {
	t.Helper()
	if relays == 1 {
		return interopStart(t, target, listen, nil, env...)
	}
	above, log := interopChain(t, target, "", relays-1, env...)
	r, _ := interopStart(t, above.target, listen, nil, env...)
	return r, log
}

// interopLeaks fails the test if it leaves goroutines behind. To be called first,
// so that it looks last.
func interopLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// An interopLog is a relay's log that a test can wait on.
type interopLog struct {
	out interface{ Write([]byte) (int, error) }

	mu      sync.Mutex
	text    bytes.Buffer  // guarded by mu
	changed chan struct{} // guarded by mu; closed at the next line
}

func (l *interopLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.text.Write(b)
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	return l.out.Write(b)
}

// mark returns a position for await.
func (l *interopLog) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Len()
}

// await waits until a line after the mark has this in it.
func (l *interopLog) await(t testing.TB, mark int, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	for {
		l.mu.Lock()
		found, changed := strings.Contains(l.text.String()[mark:], what), l.changed
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the relay did not log %q", what)
		}
	}
}

// has reports whether a line so far has this in it.
func (l *interopLog) has(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), what)
}
