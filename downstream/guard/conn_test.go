package guard

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// A trackingPool is a buffer pool that counts the buffers in use, and signals when one is returned.
type trackingPool struct {
	mem.BufferPool
	out  atomic.Int64
	back chan struct{}
}

// Get implements mem.BufferPool.
func (l *trackingPool) Get(n int) *[]byte {
	l.out.Add(1)
	return l.BufferPool.Get(n)
}

// Put implements mem.BufferPool.
func (l *trackingPool) Put(b *[]byte) {
	l.out.Add(-1)
	l.BufferPool.Put(b)
	select {
	case l.back <- struct{}{}:
	default:
	}
}

// finalReadConn is a connection whose last read returns bytes together with an error, as TLS may do.
type finalReadConn struct{ net.Conn }

// Read implements net.Conn.
func (finalReadConn) Read(b []byte) (int, error) { return copy(b, "bye"), io.EOF }

// A recordConn is a connection that returns the bytes of a record in as many reads as these take, as TLS does. Before each
// read it calls wait.
type recordConn struct {
	net.Conn
	wait   func()
	record []byte
}

// Read implements net.Conn.
func (c *recordConn) Read(b []byte) (int, error) {
	c.wait()
	n := copy(b, c.record)
	c.record = c.record[n:]
	return n, nil
}

// TestIdleTLSConnectionsHoldNoBuffer: a connection that cannot wait without a buffer holds none of gRPC's while it waits. It
// reads what follows the first bytes directly into one.
func TestIdleTLSConnectionsHoldNoBuffer(t *testing.T) {
	guard, pool := newGuard(Limits{}), &trackingPool{BufferPool: mem.DefaultBufferPool(), back: make(chan struct{}, 1)}
	var held []int64
	tls := &recordConn{wait: func() { held = append(held, pool.out.Load()) }}
	conn := &grpcConn{Conn: tls, account: newAccount(&guard.connections, ""), guard: guard, end: func() {}}
	for _, size := range []int{firstBytes - 1, firstBytes + 1, 1} {
		for tls.record = make([]byte, size); len(tls.record) > 0; {
			b, n, err := conn.ReadOnReady(32<<10, pool)
			check.OK(t, err)
			check.Equal(t, "size of the buffer", len(*b), 32<<10)
			size -= n
			pool.Put(b)
		}
		check.Equal(t, "bytes that were not read", size, 0)
	}
	if want := []int64{0, 0, 1, 0}; !slices.Equal(held, want) {
		t.Errorf("buffers during each read: %v, want %v", held, want)
	}
}

// TestB35_RefusedConnectionsReportTheLimit: the account of a connection reports that the connection has exceeded a
// limit, so that its streams do not count as ended by the client.
func TestB35_RefusedConnectionsReportTheLimit(t *testing.T) {
	for bytes, want := range map[int]bool{1000: false, 1 << 20: true} {
		guard := newGuard(Limits{MaxUnreadBytes: 1})
		near, far := net.Pipe()
		conn := &grpcConn{near, nil, nil, false, newAccount(&guard.connections, ""), guard, func() {}}
		go func() { // ends with the connection
			_, _ = far.Write(append([]byte(http2Preface), byte(bytes>>16), byte(bytes>>8), byte(bytes), dataFrame, 0, 0, 0, 0, 1))
			_ = far.Close()
		}()
		if _, err := io.ReadAll(conn); (err != nil) != want || conn.account.Refused() != want {
			t.Errorf("frame of %d bytes: read error %v, refused %v; want an error and a refusal: %v", bytes, err, conn.account.Refused(), want)
		}
		_ = near.Close()
	}
}

// TestIdleConnectionsHoldNoBuffer: an idle plaintext connection holds no buffer, even though the server wraps it. The
// buffer would be most of its memory.
func TestIdleConnectionsHoldNoBuffer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	defer func() { _ = l.Close() }()
	far, err := net.Dial("tcp", l.Addr().String())
	check.OK(t, err)
	near, err := l.Accept()
	check.OK(t, err)
	left := 0
	guard := newGuard(Limits{})
	conn := &grpcConn{near, newWaitingReader(near), nil, false, newAccount(&guard.connections, ""), guard, func() { left++ }}
	pool := &trackingPool{BufferPool: mem.DefaultBufferPool(), back: make(chan struct{}, 1)}
	type result struct {
		b   *[]byte
		n   int
		err error
	}
	read := make(chan result)
	next := func() {
		b, n, err := conn.ReadOnReady(1024, pool)
		read <- result{b, n, err}
	}
	go next() // awaited below
	<-pool.back
	check.Equal(t, "buffers of an idle connection", pool.out.Load(), 0)
	if _, err := far.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got.err != nil || string((*got.b)[:got.n]) != "hello" || pool.out.Load() != 1 {
		t.Errorf("read %q, error %v, %d buffers; want hello, none and 1", (*got.b)[:got.n], got.err, pool.out.Load())
	}
	go next()
	_ = far.Close()
	if got := <-read; got.err == nil || got.b != nil || pool.out.Load() != 1 {
		t.Errorf("at the end: read %d bytes, error %v, %d buffers; want an error and only the buffer of the first read", got.n, got.err, pool.out.Load())
	}
	last := &grpcConn{finalReadConn{near}, nil, nil, false, newAccount(&guard.connections, ""), guard, func() {}}
	if b, n, err := last.ReadOnReady(1024, pool); !errors.Is(err, io.EOF) || n != 3 || string((*b)[:n]) != "bye" {
		t.Errorf("read %d bytes, error %v; want the 3 last bytes and io.EOF", n, err)
	}
	if _ = conn.Close(); left != 1 {
		t.Errorf("the connection called leave %d times, want 1", left)
	}
}
