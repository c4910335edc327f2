package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A proxyRig is a proxy before a listener whose connections the test holds.
type proxyRig struct {
	*Proxy
	t        *testing.T
	listener net.Listener
}

func newProxyRig(t *testing.T) *proxyRig {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &proxyRig{Proxy: New(t, l.Addr().String()), t: t, listener: l}
}

// dial returns a connection to the proxy, which may never have a target.
func (r *proxyRig) dial() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	return c
}

// pair returns both ends of a new connection.
func (r *proxyRig) pair() (client, target net.Conn) {
	r.t.Helper()
	client = r.dial()
	target, err := r.listener.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = target.Close() })
	_ = target.SetDeadline(time.Now().Add(wait.Patience))
	say(r.t, client, "hello")
	hear(r.t, target, "hello")
	return client, target
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("heard %q, %v; want %q", b[:n], err, want)
	}
}

// hearEnd waits until a connection has ended, and returns what came before and how
// it ended.
func hearEnd(t *testing.T, c net.Conn) (string, error) {
	t.Helper()
	b, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("not ended; heard %q", b)
	}
	return string(b), err
}

// silent fails the test if something comes. What would come must have been sent
// before something that has come already, on another connection or another way.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	defer func() { _ = c.SetReadDeadline(time.Now().Add(wait.Patience)) }()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %d bytes, %v; want silence", n, err)
	}
}

func TestProxyPassesOn(t *testing.T) {
	r := newProxyRig(t)
	client, target := r.pair()
	say(t, target, "welcome")
	hear(t, client, "welcome")
	big := string(bytes.Repeat([]byte("x"), 5<<20))
	go func() { _, _ = io.WriteString(client, big); _ = client.Close() }() // ends with what hearEnd reads
	if got, err := hearEnd(t, target); got != big || err != nil {
		t.Errorf("%d bytes came, %v; want %d", len(got), err, len(big))
	}
	r.WaitFor(t.Context(), "the end", func(s State) bool { return s.Open == 0 })
	if s, want := r.State(), (State{Accepted: 1, BytesUp: 5 + 5<<20, BytesDown: 7}); s != want {
		t.Errorf("state %+v, want %+v", s, want)
	}
}

func TestProxyBreaks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*Proxy)
		reset bool
	}{
		{"cut", (*Proxy).Cut, false},
		{"reset", (*Proxy).Reset, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newProxyRig(t)
			client, target := r.pair()
			tt.how(r.Proxy)
			for _, end := range []net.Conn{client, target} {
				if got, err := hearEnd(t, end); got != "" || errors.Is(err, syscall.ECONNRESET) != tt.reset {
					t.Errorf("heard %q, %v; want a reset: %v", got, err, tt.reset)
				}
			}
			r.pair() // the next one is not affected
		})
	}
}

func TestProxyPassesResetsOn(t *testing.T) {
	r := newProxyRig(t)
	client, target := r.pair()
	_ = target.(*net.TCPConn).SetLinger(0)
	_ = target.Close()
	if _, err := hearEnd(t, client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("ended with %v, want a reset", err)
	}
}

func TestProxyRefuses(t *testing.T) {
	r := newProxyRig(t)
	client, target := r.pair()
	r.Set(Link{Refuse: true})
	if c, err := net.Dial("tcp", r.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial = %v, %v; want it refused", c, err)
	}
	say(t, client, "still here")
	hear(t, target, "still here")
	r.Set(Link{})
	r.pair()
}

func TestProxyTargetGone(t *testing.T) {
	r := newProxyRig(t)
	_ = r.listener.Close()
	c, err := net.Dial("tcp", r.Addr())
	if err == nil { // else it was reset at once
		_, err = hearEnd(t, c)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("ended with %v, want a reset", err)
	}
}

func TestProxyForward(t *testing.T) {
	r, other := newProxyRig(t), newProxyRig(t)
	r.Forward(other.listener.Addr().String())
	c := r.dial()
	say(t, c, "hello")
	target, err := other.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Close() }()
	hear(t, target, "hello")
}

func TestProxyHolds(t *testing.T) {
	r := newProxyRig(t)
	client, target := r.pair()
	r.Set(Link{Up: Way{Hold: true}})
	say(t, client, "held")
	say(t, target, "free")
	hear(t, client, "free")
	silent(t, target)
	r.Set(Link{Down: Way{Hold: true}})
	hear(t, target, "held")
	say(t, target, "held too")
	say(t, client, "free")
	hear(t, target, "free")
	silent(t, client)
	r.Set(Link{})
	hear(t, client, "held too")
}

// A sender is stopped by a link that holds, as by a network that takes nothing.
func TestProxyHoldsNotWithoutBound(t *testing.T) {
	r := newProxyRig(t)
	client, _ := r.pair()
	r.Set(Link{Up: Way{Hold: true}})
	_ = client.SetWriteDeadline(time.Now().Add(time.Second))
	if n, err := client.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were taken, %v; want the sender stopped", n, err)
	}
}

func TestProxyIsSlow(t *testing.T) {
	for _, tt := range []struct {
		way   Way
		bytes int
		least time.Duration
	}{
		{Way{Delay: 50 * time.Millisecond}, 4, 50 * time.Millisecond},
		{Way{Rate: 100_000}, 10_000, 100 * time.Millisecond},
	} {
		r := newProxyRig(t)
		client, target := r.pair()
		r.Set(Link{Down: tt.way})
		began := time.Now()
		text := strings.Repeat("x", tt.bytes)
		say(t, target, text)
		hear(t, client, text)
		if took := time.Since(began); took < tt.least {
			t.Errorf("%+v: came after %v, want %v at least", tt.way, took, tt.least)
		}
	}
}

func TestProxyResetsAfter(t *testing.T) {
	r := newProxyRig(t)
	r.Set(Link{Down: Way{ResetAfter: 10}})
	client, target := r.pair()
	say(t, target, "0123456789 and no more")
	_, _ = io.ReadFull(client, make([]byte, 10)) // a reset may overtake what came before it
	if got, err := hearEnd(t, client); got != "" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("heard %q, %v; want a reset", got, err)
	}
	if s := r.State(); s.BytesDown != 10 {
		t.Errorf("%d bytes went down, want 10", s.BytesDown)
	}
}

func TestProxyLosesAnEnd(t *testing.T) {
	for _, strands := range []bool{false, true} {
		r := newProxyRig(t)
		left, lost := r.pair()
		if strands {
			left, lost = lost, left
			r.Strand()
		} else {
			r.Orphan()
		}
		if _, err := hearEnd(t, lost); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("strands: %t; the end that is lost: %v, want a reset", strands, err)
		}
		say(t, left, "anybody there?")
		silent(t, left)
		_ = left.Close()
		r.WaitFor(t.Context(), "the end", func(s State) bool { return s.Open == 0 })
	}
}

func TestProxySays(t *testing.T) {
	r := newProxyRig(t)
	client, target := r.pair()
	r.Say([]byte("rubbish"))
	hear(t, client, "rubbish")
	say(t, target, "sense")
	hear(t, client, "sense")
}

// What gRPC makes of those who answer in the place of an origin shows that they say
// what they mean to.
func TestProxyImpostors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(net.Conn)
		want   codes.Code
	}{
		{"HTTP/1", AnswerHTTP1, codes.Unavailable},
		{"TLS", AnswerTLS, codes.Unavailable},
		{"random", AnswerRandom, codes.Unavailable},
		{"truncated", AnswerTruncated, codes.Unavailable},
		{"refused stream", AnswerHTTP2(StreamReset(http2.ErrCodeEnhanceYourCalm)), codes.ResourceExhausted},
		{"trailers only", AnswerHTTP2(StreamTrailersOnly("9", "not you")), codes.FailedPrecondition},
		{"web page", AnswerHTTP2(StreamHTML), codes.Unimplemented},
		{"malformed message", AnswerHTTP2(StreamMessage([]byte("\xff\xff"))), codes.Internal},
		{"GOAWAY", AnswerHTTP2(StreamGoAway), codes.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newProxyRig(t)
			r.Set(Link{Answer: tt.answer})
			conn, err := grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
			if err == nil {
				_, err = rpc.Recv()
			}
			if status.Code(err) != tt.want {
				t.Errorf("ended with %v, want %v", err, tt.want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		r := newProxyRig(t)
		r.Set(Link{Answer: AnswerNothing})
		c := r.dial()
		say(t, c, "hello")
		silent(t, c)
	})
}
