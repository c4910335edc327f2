package memnet

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// connect returns the two ends of a connection that holds so many bytes each way.
func connect(t testing.TB, most int) (dialed, accepted net.Conn) {
	t.Helper()
	l := Listen(most)
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	dialed, err := l.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return dialed, <-got
}

func TestPipe_IsAConnection(t *testing.T) {
	for _, most := range []int{64, 1 << 20} {
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			a, b := connect(t, most)
			return a, b, func() { _, _ = a.Close(), b.Close() }, nil
		})
	}
}

func TestPipe_HoldsSoMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t, 5)
		if err := a.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if n, err := a.Write([]byte("overfull")); n != 5 || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("wrote %d bytes, %v, want 5 and that time is up", n, err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(b); err != nil || string(got) != "overf" {
			t.Errorf("read %q, %v", got, err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("writing to an end that closed: %v", err)
		}
	})
}

// A deadline that is moved holds nobody to the old one.
func TestPipe_DeadlinesMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t, 5)
		if err := errors.Join(b.SetDeadline(time.Now().Add(time.Second)), b.SetDeadline(time.Time{})); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Hour)
			_, _ = a.Write([]byte("late")) // what is read says whether it was written
		}()
		got := make([]byte, 9)
		if n, err := b.Read(got); err != nil || string(got[:n]) != "late" {
			t.Errorf("read %q, %v", got[:n], err)
		}
	})
}

func TestPipe_RefusesOnceClosed(t *testing.T) {
	l := Listen(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Dial(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("dialing with a context that has ended: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Dial(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing a closed listener: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accepting from a closed listener: %v", err)
	}
}
