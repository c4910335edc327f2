package downstream

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
)

// connections counts the connections of clients, and bounds them in all and for each
// peer: one that sends nothing costs memory too (B.35).
type connections struct {
	most, mostOfPeer int

	mostUnread int64 // see backlog; of one peer, a part
	frameRate  int   // of a connection; see frames.go

	mu     sync.Mutex
	open   int
	unread int64               // what connections claimed
	peers  map[string]*peerUse // those with an open one, or that had too many lately, by host
	swept  time.Time           // when peers was last looked through for those that rest
}

// peerOpen is what a peer has open.
type peerUse struct {
	connections int
	unread      int64 // what they claimed
	budget      budget
	arrivals    budget // of new connections
	slowed      bool   // its polls, or new connections, wait
}

// enter counts a connection of a peer, empty if that is none, which must call leave when it ends, or
// refuses it.
func (c *connections) enter(peer string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	switch {
	case c.open >= c.most:
		return nil, Exceeds(LimitConnections, "%d connections are open, as many as allowed", c.open)
	case of != nil && of.connections >= c.mostOfPeer:
		return nil, Exceeds(LimitPeerConnections, "%d connections of %s are open, as many as allowed", of.connections, peer)
	}
	c.open++
	if peer != "" {
		c.of(peer).connections++
	}
	return sync.OnceFunc(func() { c.leave(peer) }), nil
}

// of returns what a peer has open. c.mu must be held.
func (c *connections) of(peer string) *peerUse {
	of := c.peers[peer]
	if of == nil {
		of = new(peerUse)
		c.peers[peer] = of
	}
	return of
}

func (c *connections) leave(peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if peer == "" {
		return
	}
	c.peers[peer].connections--
	c.sweep(time.Now())
}

// sweepEvery is how long a peer that is gone is remembered at least.
const sweepEvery = time.Second

// sweep forgets the peers that are gone and have rested: one that connects again and again must not
// be a new one each time. c.mu must be held.
func (c *connections) sweep(now time.Time) {
	if now.Sub(c.swept) < sweepEvery {
		return
	}
	c.swept = now
	for peer, of := range c.peers {
		if of.connections == 0 && of.rested(now) {
			delete(c.peers, peer)
		}
	}
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// claims returns what all claim of what may be unread.
func (c *connections) claimed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unread
}

// Listener returns a listener of which the connections come from l, but for those of a peer that opens too many
// (B.35): these are closed before anything else is done for them.
func (s *Server) Listener(l net.Listener) net.Listener { return countingListener{l, s} }

type countingListener struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l countingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := l.server.cfg.peerAt(conn)
		news, may := l.server.connections.admit(peer, time.Now())
		if news {
			l.server.throttled(peer)
		}
		if may {
			return conn, nil
		}
		_ = conn.Close() // there is nobody to tell
	}
}

// connected counts a connection, which must call leave when it ends, or refuses it.
func (s *Server) connected(conn net.Conn) (leave func(), err error) {
	peer := s.cfg.peerAt(conn)
	if leave, err = s.connections.enter(peer); err != nil {
		s.counters.Rejected(err)
		s.refusedConnLog.refusedConnection(s.cfg.Logger, peer, err)
	}
	return leave, err
}

// Credentials returns credentials that count the connections of a gRPC server and bound
// them, and what of their requests is not read, and note when each began, beside what c finds
// out about the peer. Without them, connections are not bounded, and streams do not know how
// old theirs is. The server needs [Server.CountOthers] and [Server.CountUnary] too.
func (s *Server) Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return countingCredentials{c, s}
}

type countingCredentials struct {
	credentials.TransportCredentials
	server *Server
}

// ServerHandshake implements credentials.TransportCredentials. One connection too many is
// closed before a byte is exchanged.
func (c countingCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	leave, err := c.server.connected(raw)
	if err != nil {
		return nil, nil, err
	}
	peer := c.server.cfg.peerAt(raw)
	c.server.await(context.Background(), c.server.connections.delay(peer, time.Now()))
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		leave()
		return nil, nil, err
	}
	b := newAccount(&c.server.connections, peer)
	end := func() { b.close(); leave() }
	return &grpcConn{conn, newWaitingReader(conn), b, c.server, end}, connInfo{info, time.Now(), b, new(nodeCache)}, nil
}

// Clone implements credentials.TransportCredentials.
func (c countingCredentials) Clone() credentials.TransportCredentials {
	return countingCredentials{c.TransportCredentials.Clone(), c.server}
}

// ConnState counts the connections of a server of polls, as [http.Server] tells of them,
// and closes one that is too many before a byte is exchanged.
func (s *Server) ConnState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		leave, err := s.connected(conn)
		if err != nil {
			_ = conn.Close() // there is nobody to tell
			return
		}
		s.pollers.Store(conn, leave)
	case http.StateClosed, http.StateHijacked:
		if leave, counted := s.pollers.LoadAndDelete(conn); counted {
			leave.(func())()
		}
	}
}

// A counted connection is one that gRPC reads and writes.
type grpcConn struct {
	net.Conn
	waiting *waitingReader // nil: a buffer is held while nothing comes
	account *Account
	server  *Server
	end     func()
}

// Read implements net.Conn.
func (c *grpcConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.account.awaitRead(len(b))])
	if tooMuch := c.received(b[:n]); tooMuch != nil {
		return 0, tooMuch
	}
	return n, err
}

// came takes what was read, and returns an error if it is too much, which ends the
// connection.
func (c *grpcConn) received(b []byte) error {
	err := c.account.received(b)
	if err != nil {
		c.server.counters.Rejected(err)
		c.server.refusedConnLog.refusedConnection(c.server.cfg.Logger, c.account.peer, err)
	}
	if c.account.throttle() {
		c.server.throttled(c.account.peer)
	}
	return err
}

// Write implements net.Conn. A connection that cannot be written to ends; if that happens
// before gRPC has taken it over, it closes not this one, but what is below.
func (c *grpcConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.end()
	}
	return n, err
}

// ReadOnReady reads into a buffer from pool, which gRPC then has. Idle connections in
// plaintext have none, which is most of what they would cost.
func (c *grpcConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	size = c.account.awaitRead(size)
	var b *[]byte
	var n int
	var err error
	if c.waiting != nil {
		b, n, err = c.waiting.read(size, pool)
	} else {
		b = pool.Get(size)
		n, err = c.Conn.Read(*b)
	}
	if b == nil {
		return nil, n, err
	}
	if tooMuch := c.received((*b)[:n]); tooMuch != nil {
		n, err = 0, tooMuch
	}
	if n == 0 {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err // both: the last bytes over TLS come with the end
}

// Close implements net.Conn.
func (c *grpcConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// A connection is what is known of the connection of a stream.
type connInfo struct {
	credentials.AuthInfo
	begun   time.Time
	account *Account
	nodes   *nodeCache // of its streams
}

// hostOf returns the IP address in an address, empty if there is none.
func hostIP(address string) string {
	from, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	return from.Addr().Unmap().WithZone("").String()
}

// Grace returns for how long streams may outlive the age at which a connection takes no
// more of them.
func Grace(age time.Duration) time.Duration { return age / 2 }

// outlives returns when a stream ends itself, since its connection is old then: at a
// moment of its own, after the connection was told to take no more streams, which gRPC
// does at the age give or take a tenth, and long before the grace is over (B.33). A zero
// time is never.
func Expiry(ctx context.Context, age time.Duration) time.Time {
	p, _ := peer.FromContext(ctx)
	if age == 0 || p == nil {
		return time.Time{}
	}
	c, ok := p.AuthInfo.(connInfo)
	if !ok {
		return time.Time{}
	}
	return c.begun.Add(age + age/10 + rand.N(age/6+1))
}
