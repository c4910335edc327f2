package guard

import (
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_ConnectionLimits: connections of streams and of polls count against the same limits, in total and for each
// host, until they are closed. Connections over a limit are refused.
func TestB35_ConnectionLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(Limits{MaxConnections: 3, MaxPeerConnections: 2})
		inner := hostListener{conns: make(chan net.Conn)}
		accepted := make(chan net.Conn, 1)
		go func() { // ends with the listener
			l := g.PollListener(inner)
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				accepted <- conn
			}
		}()
		defer close(inner.conns)
		stream := func(host string) net.Conn {
			near, _ := net.Pipe()
			conn, _, _ := g.Credentials(insecure.NewCredentials()).ServerHandshake(hostConn{near, host})
			return conn
		}
		poll := func(host string) net.Conn {
			far := inner.dial(host)
			synctest.Wait()
			if len(accepted) > 0 {
				return <-accepted
			}
			if _, err := far.Read(make([]byte, 1)); err == nil {
				t.Errorf("a connection of %s over a limit is open", host)
			}
			return nil
		}
		var open []net.Conn
		expect := func(what string, conn net.Conn, want bool) {
			t.Helper()
			if (conn != nil) != want {
				t.Fatalf("%s is open: %v, want %v", what, conn != nil, want)
			}
			open = append(open, conn)
		}
		expect("a stream", stream("10.0.0.1"), true)
		expect("a poll of the same host", poll("10.0.0.1"), true)
		expect("a third stream of the host", stream("10.0.0.1"), false)
		expect("a third poll of the host", poll("10.0.0.1"), false)
		expect("a poll of another host", poll("10.0.0.2"), true)
		expect("a fourth stream", stream("10.0.0.3"), false)
		expect("a fourth poll", poll("10.0.0.3"), false)
		if got := g.Counters.Causes(); got[LimitPeerConnections] != 2 || got[LimitConnections] != 2 {
			t.Errorf("counted refusals %v, want 2 for each limit", got)
		}
		for range 2 { // a second Close must not count
			_ = open[1].Close()
		}
		expect("a stream after the poll was closed", stream("10.0.0.1"), true)
		expect("a fourth stream again", stream("10.0.0.3"), false)
		_ = open[0].(*grpcConn).Conn.Close()
		if _, err := open[0].Write([]byte("x")); err == nil {
			t.Error("a write on a connection that has failed returned no error")
		}
		expect("a stream after the first has failed", stream("10.0.0.3"), true)
		for _, conn := range open {
			if conn != nil {
				_ = conn.Close()
			}
		}
		n, _ := g.Usage()
		check.Equal(t, "connections counted after all were closed", n, 0)
	})
}
