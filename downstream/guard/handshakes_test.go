package guard

import (
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// newHandshakeConns returns n connections that use the turns of h, and their remote ends.
func newHandshakeConns(t *testing.T, h *handshakes, n int) (near []*handshakeConn, far []net.Conn) {
	t.Helper()
	for range n {
		a, b := net.Pipe()
		near, far = append(near, &handshakeConn{Conn: a, turns: h}), append(far, b)
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	}
	return near, far
}

// slowTLS are credentials whose handshake reads a byte and then takes at least 1ms. It fails if the byte is odd.
type slowTLS struct {
	credentials.TransportCredentials
	running, highest atomic.Int64 // concurrent handshakes now, and at most
}

// Info implements credentials.TransportCredentials.
func (*slowTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// ServerHandshake implements credentials.TransportCredentials.
func (s *slowTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	number := make([]byte, 1)
	_, err := conn.Read(number)
	for now := s.running.Add(1); ; {
		before := s.highest.Load()
		if now <= before || s.highest.CompareAndSwap(before, now) {
			break
		}
	}
	time.Sleep(time.Millisecond + time.Duration(number[0])*time.Microsecond) // no two timers may fire at the same time
	s.running.Add(-1)
	if err == nil && number[0]%2 > 0 {
		err = errors.New("handshake failed")
	}
	return conn, nil, err
}

// TestB35_HandshakesTakeTurns: at most half of the cores compute handshakes at a time, regardless of the number of
// waiting ones. A handshake that succeeds or fails releases its turn, and the connection takes no further turns.
func TestB35_HandshakesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const herd, most = 20, 3
		guard := newGuard(Limits{})
		check.Equal(t, "free turns of a new guard", guard.handshakes.freeTurns, max(1, runtime.GOMAXPROCS(0)/2))
		guard.handshakes.freeTurns = most
		slow := &slowTLS{}
		creds := guard.Credentials(slow)
		var done sync.WaitGroup
		for i := range herd {
			near, far := net.Pipe()
			done.Go(func() { _, _ = far.Write([]byte{byte(i), 0}) })
			done.Go(func() {
				defer func() { _ = near.Close() }()
				conn, _, err := creds.ServerHandshake(near)
				if fails := i%2 > 0; (err != nil) != fails {
					t.Errorf("handshake %d: error %v, want one: %v", i, err, fails)
				} else if !fails {
					_, err = conn.Read(make([]byte, 1))
					check.OK(t, errors.Join(err, conn.Close()))
				}
			})
		}
		done.Wait()
		check.Equal(t, "highest number of concurrent handshakes", slow.highest.Load(), most)
		check.Equal(t, "free turns after all handshakes", guard.handshakes.freeTurns, most)
		if n, _ := guard.Usage(); n != 0 {
			t.Errorf("%d connections counted after all have ended, want 0", n)
		}
	})
}

// TestB35_WaitingHandshakesReleaseTheirTurn: a handshake that waits for its client has no turn. Handshakes that the
// server has answered take precedence over new ones.
func TestB35_WaitingHandshakesReleaseTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handshakes{freeTurns: 1}
		near, far := newHandshakeConns(t, h, 4)
		silent, busy, begun, fresh := near[0], near[1], near[2], near[3]
		begun.answered = true                               // set by a write
		go func() { _, _ = silent.Read(make([]byte, 1)) }() // ends with the connection
		synctest.Wait()

		var mu sync.Mutex
		var order []string // guarded by mu
		step := func(name string, c *handshakeConn, other net.Conn) {
			go func() { _, _ = other.Write([]byte("x")) }() // ends with the read
			go func() {
				_, _ = c.Read(make([]byte, 1))
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			}()
			synctest.Wait()
		}
		step("busy", busy, far[1])
		step("fresh", fresh, far[3])
		step("begun", begun, far[2])
		go func() { _, _ = far[1].Read(make([]byte, 1)) }() // ends with the write
		if _, err := busy.Write([]byte("y")); err != nil {  // the write releases the turn
			t.Fatal(err)
		}
		synctest.Wait()
		begun.end()
		synctest.Wait()
		fresh.end()
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"busy", "begun", "fresh"}; !slices.Equal(order, want) {
			t.Errorf("order of the turns: %v, want %v", order, want)
		}
		check.Equal(t, "free turns after all handshakes", h.freeTurns, 1)
	})
}
