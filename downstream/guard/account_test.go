package guard

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// accountCredentials are credentials that pass the accounts of connections to the test.
type accountCredentials struct {
	credentials.TransportCredentials
	accounts chan *Account
}

func (s accountCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		s.accounts <- info.(connInfo).account
	}
	return conn, info, err
}

// A handled request is released, regardless of its size.
func TestB35_HandledRequestsAreReleased(t *testing.T) {
	guard := newGuard(Limits{})
	creds := accountCredentials{guard.Credentials(insecure.NewCredentials()), make(chan *Account, 1)}
	g := grpc.NewServer(grpc.Creds(creds), grpc.UnaryInterceptor(guard.UnaryInterceptor))
	healthpb.RegisterHealthServer(g, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }() // awaited below
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check.OK(t, err)
	check := func(bytes int) {
		_, _ = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: strings.Repeat("a", bytes)}) // there is no such service
	}
	check(100)
	b := <-creds.accounts
	for _, size := range []int{100, 20_000, 3 << 20} {
		check(size)
	}
	// A small message, and the small last frame of a large one, are charged as minFrameBytes.
	if held := b.held.Load(); held < 0 || held > 16*minFrameBytes {
		t.Errorf("%d bytes are held in the end, want almost 0", held)
	}
	check(0) // the response shows that the request was handled
	if n := b.replyFrames.Load(); n < replyPrice {
		t.Errorf("credit for %d reply frames, want %d for each response", n, replyPrice)
	}
	_ = conn.Close()
	g.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, unread := guard.Usage(); unread != 0 {
		t.Errorf("%d bytes are claimed in the end, want 0", unread)
	}
}

// frames returns frames of data, after the preface.
func frames(t testing.TB, number, size int) []byte {
	var out bytes.Buffer
	f := http2.NewFramer(&out, nil)
	out.WriteString(http2.ClientPreface)
	for range number {
		check.OK(t, f.WriteData(1, false, make([]byte, size)))
		check.OK(t, f.WritePing(false, [8]byte{}))
	}
	return out.Bytes()
}

// DATA frames are charged no matter where reads divide them. Small ones are charged as minFrameBytes.
func TestB35_DataFramesAreCharged(t *testing.T) {
	for _, tt := range []struct{ number, size, want int }{
		{1000, 0, 0}, {1000, 1, 1000 * minFrameBytes}, {10, 1000, 10_000}, {4, 16 << 10, 64 << 10},
	} {
		for _, cut := range []int{1, 7, 10, 4096} {
			all := newConnections(WithDefaults(Limits{}))
			b := newAccount(&all, "")
			for rest := frames(t, tt.number, tt.size); len(rest) > 0; {
				n := min(cut, len(rest))
				check.OK(t, b.received(rest[:n]))
				rest = rest[n:]
			}
			if got := b.held.Load(); got != int64(tt.want) {
				t.Errorf("%d frames of %d bytes, read by %d: %d are held, want %d", tt.number, tt.size, cut, got, tt.want)
			}
		}
	}
}

// A peer may claim a fourth of the total. A claim ends once the requests were handled, or with the connection.
func TestB35_BufferedRequestsAreBounded(t *testing.T) {
	const mib = 1 << 20
	all := newConnections(WithDefaults(Limits{MaxUnreadBytes: 4 * mib}))
	now := time.Now()
	open := func(peer string, held int64) (*Account, error) {
		if _, err := all.enter(peer); err != nil {
			t.Fatal(err)
		}
		b := newAccount(&all, peer)
		b.held.Store(held)
		b.decayedAt = now
		return b, all.claim(b, now)
	}
	greedy, err := open("a", mib)
	if err != nil {
		t.Errorf("a fourth: %v", err)
	}
	if _, err := open("a", freeUnread); err != nil {
		t.Errorf("a small request of the same peer: %v", err)
	}
	if _, err := open("a", freeUnread+1); err == nil || !strings.Contains(err.Error(), "TENDER_MAX_BUFFERED_REQUEST_BYTES") {
		t.Errorf("more than a fourth: %v, want an error that names the variable", err)
	}
	for _, peer := range []string{"b", "c", "d"} {
		if _, err := open(peer, mib); err != nil {
			t.Errorf("%s: %v", peer, err)
		}
	}
	if _, err := open("e", freeUnread+1); err == nil {
		t.Error("more than MaxUnreadBytes in total: no error")
	}
	greedy.Release(mib - freeUnread)
	again, err := open("a", mib)
	if err != nil {
		t.Errorf("a fourth that is free again: %v", err)
	}
	again.close()
	again.close()
	if got := all.peers["a"].claimed; got != 0 || all.claimed != 3*mib {
		t.Errorf("%d bytes are claimed by the peer, %d by all; want 0 and %d", got, all.claimed, 3*mib)
	}
	// Bytes of ended streams, which nobody reads, decay over time.
	old := newAccount(&all, "a")
	old.held.Store(freeUnread + 1000)
	old.decayedAt = now
	if err := all.claim(old, now.Add(time.Minute)); err != nil || old.claimed.Load() != 0 || old.held.Load() != freeUnread+1000-60*unreadDecay {
		t.Errorf("after a minute: %v, %d claimed, %d held", err, old.claimed.Load(), old.held.Load())
	}
}

// BenchmarkBacklog measures the cost of counting held bytes for each answer of a client.
func BenchmarkBacklog(b *testing.B) {
	all := newConnections(WithDefaults(Limits{}))
	log := newAccount(&all, "")
	log.skip = 0
	answer := frames(b, 1, 110)[len(http2.ClientPreface):]
	b.ReportAllocs()
	for b.Loop() {
		check.OK(b, log.received(answer))
		log.Release(110)
	}
}
