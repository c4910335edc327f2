package transport

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// An acceptedConns is a listener that keeps the connections that it accepts.
type acceptedConns struct {
	net.Listener
	conns chan *net.TCPConn
}

func (l acceptedConns) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.conns <- conn.(*net.TCPConn)
	}
	return conn, err
}

// TestTCPKeepAlive: as below gRPC's transport, the kernel probes connections of clients that send nothing, and closes one whose
// data is not acknowledged for Keepalive.Timeout.
func TestTCPKeepAlive(t *testing.T) {
	accepted := make(chan *net.TCPConn, 1)
	f := start(t, options{
		change: func(cfg *Config) { cfg.Keepalive.Timeout = 7 * time.Second },
		wrap:   func(l net.Listener) net.Listener { return acceptedConns{l, accepted} },
	})
	want(t, subscribe(t, dial(t, f, nil)), "first", 10)
	raw := check.Must((<-accepted).SyscallConn())
	for _, option := range []struct {
		name        string
		level, code int
		want        int
	}{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 7000},
	} {
		var got int
		var err error
		if failed := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), option.level, option.code) }); failed != nil {
			t.Fatal(failed)
		}
		if err != nil || got != option.want {
			t.Errorf("%s is %d, error %v, want %d", option.name, got, err, option.want)
		}
	}
}
