package guard

import (
	"net"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_PollConnectionLimit: poll connections count until they are closed. The listener closes connections over the
// limit.
func TestB35_PollConnectionLimit(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	g := newGuard(Limits{MaxConnections: 1})
	l := g.PollListener(inner)
	accepted, ended := make(chan net.Conn, 10), make(chan struct{})
	go func() { // ends with the listener
		defer close(ended)
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			accepted <- conn
		}
	}()
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		check.OK(t, err)
		t.Cleanup(func() { _ = conn.Close() }) // if it was not closed yet
		return conn
	}
	_ = dial()
	first := <-accepted
	if _, err := dial().Read(make([]byte, 1)); err == nil {
		t.Error("a second connection is open although the limit is 1")
	}
	check.Equal(t, "rejected connections", g.Counters.Refused()[LimitConnections], 1)
	for range 2 { // a second Close must not count
		_ = first.Close()
	}
	_ = dial()
	_ = (<-accepted).Close()
	if n, _ := g.Usage(); n != 0 {
		t.Errorf("%d connections counted after all were closed, want 0", n)
	}
}
