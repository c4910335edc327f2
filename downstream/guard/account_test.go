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
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// accountCredentials are credentials that send the account of each connection to the test.
type accountCredentials struct {
	credentials.TransportCredentials
	accounts chan *Account
}

// ServerHandshake implements credentials.TransportCredentials.
func (s accountCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		s.accounts <- info.(connInfo).account
	}
	return conn, info, err
}

// TestB35_HandledRequestsAreReleased: once the server has handled a request of any size, its bytes are no longer
// charged.
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
		_, _ = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: strings.Repeat("a", bytes)}) // returns NOT_FOUND
	}
	check(100)
	b := <-creds.accounts
	for _, size := range []int{100, 20_000, 3 << 20} {
		check(size)
	}
	// A small message, and the small last frame of a large one, are charged as minFrameBytes.
	if held := b.held.Load(); held < 0 || held > 16*minFrameBytes {
		t.Errorf("%d bytes charged after all requests were handled, want at most %d", held, 16*minFrameBytes)
	}
	check(0) // the response shows that the request was handled
	if n := b.replyFrames.Load(); n < replyPrice {
		t.Errorf("credit for %d reply frames after a response, want at least %d", n, replyPrice)
	}
	_ = conn.Close()
	g.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, unread := guard.Usage(); unread != 0 {
		t.Errorf("%d bytes claimed after the connection has ended, want 0", unread)
	}
}

// frames returns the HTTP/2 preface and then a number of DATA frames of a size. A PING follows each of them.
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

// TestB35_DataFramesAreCharged: DATA frames are charged even if reads divide them. Small ones are charged as
// minFrameBytes.
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
				t.Errorf("%d frames of %d bytes, in reads of %d: %d bytes charged, want %d", tt.number, tt.size, cut, got, tt.want)
			}
		}
	}
}

// TestB35_BufferedRequestsAreBounded: a peer may claim a fourth of the total. A claim ends once the requests were
// handled, or with the connection.
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
		t.Errorf("claim of a fourth: %v", err)
	}
	if _, err := open("a", freeUnread); err != nil {
		t.Errorf("claim of a small request of the same peer: %v", err)
	}
	if _, err := open("a", freeUnread+1); err == nil || !strings.Contains(err.Error(), "buffered_bytes") {
		t.Errorf("claim of more than a fourth: %v, want an error that names the variable", err)
	}
	for _, peer := range []string{"b", "c", "d"} {
		if _, err := open(peer, mib); err != nil {
			t.Errorf("claim of a fourth by peer %s: %v", peer, err)
		}
	}
	if _, err := open("e", freeUnread+1); err == nil {
		t.Error("claim of more than MaxUnreadBytes in total: no error")
	}
	greedy.Release(mib - freeUnread)
	again, err := open("a", mib)
	if err != nil {
		t.Errorf("claim of a fourth after a release: %v", err)
	}
	again.Close()
	again.Close()
	if got := all.peers["a"].claimed; got != 0 || all.claimed != 3*mib {
		t.Errorf("claims of %d bytes by the peer and %d in total, want 0 and %d", got, all.claimed, 3*mib)
	}
	// Bytes of ended streams are never read, so their charge decays over time.
	old := newAccount(&all, "a")
	old.held.Store(freeUnread + 1000)
	old.decayedAt = now
	if err := all.claim(old, now.Add(time.Minute)); err != nil || old.claimed.Load() != 0 || old.held.Load() != freeUnread+1000-60*unreadDecay {
		t.Errorf("after a minute: error %v, %d claimed, %d charged; want none, 0 and %d", err, old.claimed.Load(), old.held.Load(), freeUnread+1000-60*unreadDecay)
	}
}

// BenchmarkBacklog measures the cost of charging and releasing one ACK of a client.
func BenchmarkBacklog(b *testing.B) {
	all := newConnections(WithDefaults(Limits{}))
	log := newAccount(&all, "")
	log.skip = 0 // the preface is not part of the benchmark
	answer := frames(b, 1, 110)[len(http2.ClientPreface):]
	b.ReportAllocs()
	for b.Loop() {
		check.OK(b, log.received(answer))
		log.Release(110)
	}
}
