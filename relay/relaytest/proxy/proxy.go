// Package proxy has a TCP proxy that injects faults between peers, and servers that answer in place of an origin.
//
// The package is not a stable API: programs that embed Tender use package relay.
package proxy

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A Proxy is a TCP proxy to one address that injects faults: no listener, bytes that are held, delayed or throttled in
// either direction, broken connections, connections closed at one side only, and answers by another server. It does not
// interpret the bytes. Methods may be called from any goroutine unless documented otherwise.
//
// It exists because toxiproxy cannot hide the end of a connection from one side, return on the same port, or impersonate
// an origin.
//
// It cannot lose packets: its kernel acknowledges all bytes of a peer. So TCP keepalive never detects a peer that the
// proxy has cut off; HTTP/2 pings do.
type Proxy struct {
	// Set by New, read-only afterwards.
	tb   wait.TB
	addr string

	// running has the accept loop and all that belongs to connections.
	running sync.WaitGroup

	mon wait.Monitor

	// Guarded by mon.
	target   string
	link     Link
	listener net.Listener // nil while it does not listen
	conns    map[*proxied]struct{}
	state    State
	closed   bool
}

// A Link is what a proxy does with connections. The zero Link passes everything on.
type Link struct {
	// Refuse closes the listener, so that the kernel refuses connections. Open connections stay.
	Refuse bool

	// Answer, if there is one, has new connections instead of the target. It runs in a
	// goroutine of its own, and the connection ends when it returns; if it waits, it must
	// be for the connection.
	Answer func(net.Conn)

	// Up is the way from the client to the target, Down the way back. They hold for the
	// connections that are there too.
	Up, Down Way
}

// A Way is how bytes travel in one direction. The zero Way is fast.
type Way struct {
	// Hold stops all bytes. They wait, as during a network outage, until the buffers of the sender are full.
	Hold bool

	// Delay is how long each byte takes.
	Delay time.Duration

	// Rate bounds the bytes a second, of each connection. Zero means no bound.
	Rate int

	// ResetAfter resets a connection after that many bytes, counted from its beginning: in
	// the middle of a frame, if one is there. Zero means never.
	ResetAfter int
}

// State is what has happened at a proxy since New.
type State struct {
	Accepted  int   // connections
	Open      int   // connections that are open at one side at least
	BytesUp   int64 // that the target was sent
	BytesDown int64 // that clients were sent
}

// New starts a proxy before target (host:port), which need not be there yet. It
// ends, with all its connections, when tb ends.
func New(tb wait.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{tb: tb, addr: FreeAddress(tb), target: target, conns: make(map[*proxied]struct{})}
	listener, err := ListenAgain(p.addr)
	if err != nil {
		tb.Fatalf("start proxy: %v", err)
	}
	p.mon.Lock()
	p.serve(listener)
	p.mon.Unlock()
	wait.Cleanup(tb, p.close)
	return p
}

// ListenAgain listens on an address on which this process listened before. For as long as a process that another goroutine starts has
// not begun its program, it has a copy of the former listener, so the address may be in use for a moment more. Errors: it still is after
// wait.Patience, or cannot be listened on.
func ListenAgain(address string) (net.Listener, error) {
	for deadline := time.Now().Add(wait.Patience); ; runtime.Gosched() {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return l, err
		}
	}
}

// FreeAddress returns a loopback host:port that is reserved until tb ends: a program that is given it can listen there
// repeatedly, and the kernel assigns the port to no other socket, also while nobody listens. Only on Linux is it reserved
// from other processes too.
func FreeAddress(tb wait.TB) string {
	tb.Helper()
	address, release, err := Reserve()
	if err != nil {
		tb.Fatalf("reserve a port: %v", err)
	}
	wait.Cleanup(tb, release)
	return address
}

// Addr returns the host:port at which the proxy is met. It stays the same for ever.
func (p *Proxy) Addr() string { return p.addr }

// Forward sends the connections that are made from now on to another address.
func (p *Proxy) Forward(target string) {
	p.mon.Lock()
	defer p.mon.Unlock()
	p.target = target
}

// Set makes the link behave in another way. It fails the test if the address cannot be
// listened on again.
func (p *Proxy) Set(l Link) {
	p.tb.Helper()
	p.mon.Lock()
	defer p.mon.Unlock()
	p.link = l
	for c := range p.conns {
		c.up.set(l.Up)
		c.down.set(l.Down)
	}
	switch {
	case p.closed:
	case l.Refuse && p.listener != nil:
		_ = p.listener.Close() // the accept loop ends by it
		p.listener = nil
	case !l.Refuse && p.listener == nil:
		listener, err := ListenAgain(p.addr)
		if err != nil {
			p.tb.Errorf("proxy: listen again: %v", err)
			return
		}
		p.serve(listener)
	}
}

// Cut ends all connections, for both ends, as peers do that close.
func (p *Proxy) Cut() { p.each((*proxied).close) }

// Reset ends all connections, for both ends, as a kernel does for a process that was
// killed.
func (p *Proxy) Reset() { p.each((*proxied).reset) }

// Orphan closes all connections at the side of the target only. Clients can still send, and receive nothing.
func (p *Proxy) Orphan() { p.each((*proxied).orphan) }

// Strand closes all connections at the side of the clients only, as if their machines had failed. The target can still
// send, and receives nothing.
func (p *Proxy) Strand() { p.each((*proxied).strand) }

// Say sends bytes to the clients of all connections, between the bytes of the target.
func (p *Proxy) Say(b []byte) { p.each(func(c *proxied) { c.say(b) }) }

func (p *Proxy) each(f func(*proxied)) {
	p.mon.Lock()
	defer p.mon.Unlock()
	for c := range p.conns {
		f(c)
	}
}

// State returns what has happened so far.
func (p *Proxy) State() State {
	p.mon.Lock()
	defer p.mon.Unlock()
	return p.state
}

// WaitFor waits until cond holds, which is evaluated after every change of the state and
// must not call the proxy. It fails the test, naming what was waited for, if that does
// not come to pass in time. It belongs to the goroutine of the test.
func (p *Proxy) WaitFor(ctx context.Context, what string, cond func(State) bool) {
	p.tb.Helper()
	if err := p.mon.Await(ctx, func() bool { return cond(p.state) }); err != nil {
		p.tb.Fatalf("wait for %s at the proxy: %v\n%+v", what, err, p.State())
	}
}

func (p *Proxy) close() {
	p.mon.Lock()
	p.closed = true
	if p.listener != nil {
		_ = p.listener.Close() // the accept loop ends by it
		p.listener = nil
	}
	for c := range p.conns {
		c.close()
	}
	p.mon.Unlock()
	p.running.Wait()
}

// serve accepts from a listener until it is closed. Locked.
func (p *Proxy) serve(listener net.Listener) {
	p.listener = listener
	p.running.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // closed
			}
			p.accept(c.(*net.TCPConn))
		}
	})
}

func (p *Proxy) accept(client *net.TCPConn) {
	p.mon.Lock()
	defer p.mon.Unlock()
	if p.closed {
		_ = client.Close()
		return
	}
	c := newProxied(p, client)
	p.conns[c] = struct{}{}
	p.state.Accepted++
	p.state.Open++
	p.mon.Changed()
	answer, target := p.link.Answer, p.target
	p.running.Go(func() {
		defer p.leave(c)
		if answer != nil {
			answer(client)
			return
		}
		c.carry(target)
	})
}

func (p *Proxy) leave(c *proxied) {
	p.mon.Lock()
	defer p.mon.Unlock()
	c.close()
	delete(p.conns, c)
	p.state.Open--
	p.mon.Changed()
}

// passed counts bytes that went through.
func (p *Proxy) passed(count *int64, n int) {
	p.mon.Lock()
	defer p.mon.Unlock()
	*count += int64(n)
	p.mon.Changed()
}
