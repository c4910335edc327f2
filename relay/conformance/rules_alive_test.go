package conformance_test

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A lossyConn drops the data of both sides after it was cut, without closing the connection, as a broken link
// does.
type lossyConn struct {
	net.Conn
	cut    *atomic.Bool
	closed context.Context
	close  context.CancelFunc
}

func (c lossyConn) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		<-c.closed.Done()
		return 0, net.ErrClosed
	}
	return n, err
}

func (c lossyConn) Close() error {
	c.close()
	return c.Conn.Close()
}

// C22: a half-open connection is detected within 40 s, whether there are changes to send or not. An idle client
// keeps its connection.
func TestC22_HalfOpenConnectionsAreDetected(t *testing.T) {
	for _, changing := range []bool{false, true} {
		originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
			o.Put(relaytest.Cluster("a"))
			r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{o}, Pings: true})
			connected := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			connected.Subscribe(typeCDS)
			var cut atomic.Bool
			plain := r.DialOptions
			r.DialOptions = append(r.DialOptions, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := r.Listener.Dial(ctx)
				closed, end := context.WithCancel(context.Background())
				return lossyConn{conn, &cut, closed, end}, err
			}))
			broken := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			r.DialOptions = plain
			broken.Subscribe(typeCDS)
			broken.Recv(t.Context())
			time.Sleep(10 * time.Minute)
			if n := r.Streams(); n != 2 {
				t.Fatalf("%d streams are open after 10 idle minutes, want 2", n)
			}
			cut.Store(true)
			if changing {
				o.Put(relaytest.Cluster("a", "changed"))
			}
			sleep(40*time.Second + time.Millisecond)
			if n := r.Streams(); n != 1 || connected.Ended() {
				t.Errorf("%d streams are open 40s after one of two connections broke, want 1", n)
			}
			if got := r.Stats().Ended[guard.EndedByClient]; got != 1 {
				t.Errorf("counted %d streams ended by their clients, want 1", got)
			}
		})
	}
}

// B.34: a client may send pings every 10 s, with or without streams.
func TestB34_ClientsMayPing(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		r.DialOptions = append(r.DialOptions,
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second,
				PermitWithoutStream: true}))
		conn := r.Conn()
		conn.Connect()
		time.Sleep(10 * time.Minute)
		c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(typeCDS)
		c.Recv(t.Context())
		expectQuiet(t, c, 10*time.Minute)
	})
}

// A keptListener passes on its accepted connections.
type keptListener struct {
	net.Listener
	accepted chan net.Conn
}

func (l keptListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted <- conn
	}
	return conn, err
}

// B.34: the kernel closes a connection whose data is unacknowledged for 10 s.
func TestB34_TheKernelGivesUpClients(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kept := keptListener{l, make(chan net.Conn, 1)}
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{o},
		Options: relay.Options{Listeners: []net.Listener{kept}}})
	o.Put(relaytest.Cluster("a"))
	c := r.Client(relaytest.ClientOptions{})
	c.Subscribe(typeCDS)
	c.Recv(t.Context()) // until gRPC has configured the connection
	raw, err := (<-kept.accepted).(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var timeout int
	if controlErr := raw.Control(func(fd uintptr) {
		timeout, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); controlErr != nil || err != nil {
		t.Fatal(controlErr, err)
	}
	if timeout != 10_000 {
		t.Errorf("accepted connections have a TCP_USER_TIMEOUT of %d ms, want 10000", timeout)
	}
}
