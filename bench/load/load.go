// Package load is the load generator: thousands of xDS clients with very low cost each,
// in a separate process.
//
// A client subscribes like an Envoy, reads the stamps of the resources in each response,
// and sends an ACK. It uses one stream of a connection, which several clients may share.
// One goroutine serves all connections. It waits for their sockets with epoll and reads
// frames in place. All ACKs for the frames of one read are written with one call.
package load

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xdstender/tender/bench/certs"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/h2"
	"github.com/xdstender/tender/bench/process"
)

// A Load is a set of clients. It is safe for concurrent use. The methods with two
// arguments are called by the driver with [net/rpc].
type Load struct {
	poll *h2.Poll

	// Guarded by mu.
	mu       sync.Mutex
	clients  []*client
	conns    []*conn
	sockets  map[int32]*conn
	buffer   []byte // scratch space for reading from any socket
	ack      []byte // scratch space for encoding ACKs
	versions map[string][]known
	failed   error // the first error
	progress Progress
	delays   []time.Duration // from the change to its receipt by a client, since Mark
}

// known is the version that a server sent for a change of a resource.
type known struct {
	change  uint32 // plus one; 0 if no version was received
	version string
}

// New returns a load without clients, and starts its goroutine, which runs until
// the process ends.
func New() (*Load, error) {
	poll, err := h2.NewPoll()
	if err != nil {
		return nil, err
	}
	l := &Load{poll: poll, sockets: map[int32]*conn{}, buffer: make([]byte, 256<<10), versions: map[string][]known{}}
	go l.run() // until the process ends
	return l, nil
}

// Open are the arguments of [Load.Open]: it starts the clients with the numbers First to
// First+Clients-1. All is the total number of clients, over which names are distributed.
type Open struct {
	Addresses []string // of servers; clients use them in turn, by their numbers
	SotW      bool
	Interests []Interest
	First     int
	Clients   int
	All       int

	// Streams is the number of clients per connection; 0 means 1.
	Streams int

	// Feature is the client feature of every second client; empty means none.
	Feature string

	// Gzip is set if the clients accept responses that are compressed with gzip.
	Gzip bool

	// TLS holds the certificates for mutual TLS; nil means plaintext.
	TLS *certs.Set

	// ReceiveBuffer is the size in bytes of the socket receive buffer for clients with numbers
	// below Buffered. If it is 0, and for all other clients, the system's default applies.
	ReceiveBuffer int
	Buffered      int
}

// Open starts clients, and does not wait until they are connected.
func (l *Load) Open(o Open, _ *struct{}) error {
	var addresses []netip.AddrPort
	for _, a := range o.Addresses {
		address, err := netip.ParseAddrPort(a)
		if err != nil {
			return fmt.Errorf("server's address: %w", err)
		}
		addresses = append(addresses, address)
	}
	var config *tls.Config
	if o.TLS != nil {
		var err error
		if config, err = o.TLS.Client(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for number, last := o.First, o.First+o.Clients; number < last; {
		c := &conn{address: addresses[number%len(addresses)], config: config}
		if o.Gzip {
			c.accepts = []string{"grpc-accept-encoding", "gzip"}
		}
		if number < o.Buffered {
			c.buffer = o.ReceiveBuffer
		}
		for ; number < last && len(c.clients) < max(o.Streams, 1); number++ {
			if err := c.add(number, o); err != nil {
				return err
			}
		}
		if err := l.connect(c, false); err != nil {
			return err
		}
		l.conns, l.clients = append(l.conns, c), append(l.clients, c.clients...)
	}
	return nil
}

// featureOf returns the client feature of a client, or an empty string.
func (o Open) featureOf(number int) string {
	if number%2 == 0 {
		return ""
	}
	return o.Feature
}

// add adds a client to a connection. The connection must not be open yet.
func (c *conn) add(number int, o Open) error {
	client := &client{number: number, feature: o.featureOf(number), conn: c, stream: h2.StreamOf(len(c.clients)), sotw: o.SotW}
	for _, interest := range o.Interests {
		h, err := interest.newHolding(number, o.All)
		if err != nil {
			return err
		}
		client.holdings = append(client.holdings, h)
	}
	c.clients = append(c.clients, client)
	return nil
}

// connect opens a connection. If returning is set, the clients send the versions of their resources.
func (l *Load) connect(c *conn, returning bool) error {
	if c.config != nil {
		go l.connectTLS(c, returning)
		return nil
	}
	socket, err := h2.Dial(c.address, c.buffer)
	if err != nil {
		return err
	}
	return l.begin(c, socket, returning)
}

// begin registers a socket with the poll, and queues the subscriptions of the connection's clients.
func (l *Load) begin(c *conn, socket int, returning bool) error {
	path := deltaPath
	if c.clients[0].sotw {
		path = sotwPath
	}
	c.reset(socket, path)
	l.sockets[int32(socket)] = c
	for _, client := range c.clients {
		l.subscribe(client, returning)
	}
	return l.poll.Add(socket, true)
}

// subscribe queues the subscriptions of a client.
func (l *Load) subscribe(c *client, returning bool) {
	n := node(c.number, c.feature)
	for _, h := range c.holdings {
		var versions map[string]string
		if returning {
			versions = l.versionsOf(h)
		}
		c.queue(subscription(h, n, versions, c.sotw))
		n = nil
	}
}

// versionsOf returns the initial resource versions of a reconnecting client, by name.
func (l *Load) versionsOf(h *holding) map[string]string {
	versions := map[string]string{}
	for p, change := range h.known {
		index := h.index(p)
		if v := l.versions[h.TypeURL][index]; change != 0 && v.change == change {
			versions[content.Name(h.TypeURL, index)] = v.version
		}
	}
	return versions
}

// Drop closes all connections. The clients keep the versions of their resources.
func (l *Load) Drop(struct{}, *struct{}) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		delete(l.sockets, int32(c.socket))
		if err := unix.Close(c.socket); err != nil {
			return fmt.Errorf("close connection of client %d: %w", c.clients[0].number, err)
		}
		c.socket = -1
	}
	return nil
}

// Return reopens the connections that Drop closed. The clients send the versions of
// their resources.
func (l *Load) Return(struct{}, *struct{}) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if err := l.connect(c, true); err != nil {
			return err
		}
	}
	return nil
}

// GiveWay calls [process.GiveWay], for clients that are not measured.
func (l *Load) GiveWay(struct{}, *struct{}) error { return process.GiveWay() }

// Stall makes the first n clients stop reading. Errors: one of them shares its connection.
func (l *Load) Stall(n int, _ *struct{}) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.clients[:n] {
		if len(c.conn.clients) > 1 {
			return fmt.Errorf("stall client %d: it shares its connection", c.number)
		}
		c.conn.stalled = true
		if err := l.poll.Remove(c.conn.socket); err != nil {
			return err
		}
	}
	return nil
}

// Progress counts the events of all clients. All fields but Clients and Synced count
// since Mark.
type Progress struct {
	Clients int
	Synced  int // clients that have received each resource they subscribe to at least once

	Deliveries int   // changes received, counted per client
	First      int   // resources received for the first time, counted per client
	Again      int   // resources received that a client already had at this change or a later one
	Responses  int   // responses received
	Bytes      int   // length of the responses with their gRPC prefixes
	Last       int64 // last receipt of a new resource or change, in Unix nanoseconds
	Connected  int   // connections on which the server's SETTINGS were received
	Resumed    int   // connections whose TLS session was resumed
}

// Progress returns the counters, or the first error of any connection.
func (l *Load) Progress(_ struct{}, p *Progress) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.Clients = len(l.clients)
	*p = l.progress
	return l.failed
}

// Mark starts a measurement: it resets the counters and the delays.
func (l *Load) Mark(struct{}, *struct{}) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = Progress{Synced: l.progress.Synced}
	l.delays = l.delays[:0]
	return nil
}

// Delays returns the delays since Mark, sorted.
func (l *Load) Delays(_ struct{}, delays *[]time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	*delays = slices.Sorted(slices.Values(l.delays))
	return nil
}

// Audience returns, by index, the number of clients that subscribe to each resource of a type and have not stalled.
func (l *Load) Audience(typeURL string, counts *[]int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.clients {
		for _, h := range c.holdings {
			if h.TypeURL != typeURL || c.conn.stalled {
				continue
			}
			if len(*counts) == 0 {
				*counts = make([]int, h.Of)
			}
			for p := range h.known {
				(*counts)[h.index(p)]++
			}
		}
	}
	return nil
}

// Differences counts the resources whose latest change a client has not received, for
// each client that has not stalled. Types that latest lacks are ignored.
func (l *Load) Differences(latest map[string][]content.Stamp, n *int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.clients {
		for _, h := range c.holdings {
			stamps, ok := latest[h.TypeURL]
			if ok && !c.conn.stalled {
				*n += h.differences(stamps)
			}
		}
	}
	return nil
}

// run serves the sockets, forever.
func (l *Load) run() {
	for {
		events, err := l.poll.Wait(-1)
		l.mu.Lock()
		if err != nil {
			l.fail(err)
		}
		for _, e := range events {
			c := l.sockets[e.Fd]
			if c == nil || c.stalled {
				continue
			}
			if err := l.serve(c, e.Events); err != nil {
				l.abandon(c, err)
			}
		}
		l.mu.Unlock()
	}
}

// fail keeps the first error, which Progress returns.
func (l *Load) fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
}

// abandon records the error of a connection, and stops serving it.
func (l *Load) abandon(c *conn, err error) {
	l.fail(fmt.Errorf("connection of client %d: %w", c.clients[0].number, err))
	delete(l.sockets, int32(c.socket))
	_ = l.poll.Remove(c.socket) // Progress already returns an error
}

// serve handles the epoll events of a connection.
func (l *Load) serve(c *conn, events uint32) error {
	if events&unix.EPOLLOUT != 0 {
		if err := c.writable(l.poll); err != nil {
			return err
		}
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		return nil
	}
	for {
		more, err := l.read(c)
		if err != nil {
			return err
		}
		if !more {
			return c.flush(l.poll)
		}
	}
}

// read reads once, and reports whether it must be called again: with TLS, decrypted records may be buffered, for which
// the poll reports no event.
func (l *Load) read(c *conn) (more bool, err error) {
	kept := copy(l.buffer, c.in)
	n, err := c.read(l.buffer[kept:])
	if err != nil || n == 0 {
		return false, err
	}
	now, settled := time.Now().UnixNano(), c.settled
	to := func(c *client) sink {
		return sink{
			resource: func(r resource) error { return l.note(c, r, now) },
			end:      func(r response) error { return l.answer(c, r) },
		}
	}
	rest := l.buffer[:kept+n]
	for {
		f, n, err := h2.NextFrame(rest)
		if err != nil {
			return false, err
		}
		if n == 0 {
			break
		}
		if err := c.frame(f, to); err != nil {
			return false, err
		}
		rest = rest[n:]
	}
	if c.settled && !settled {
		l.progress.Connected++
	}
	c.in = append(c.in[:0], rest...)
	return c.tls != nil, nil
}

// answer counts a response and queues the ACK.
func (l *Load) answer(c *client, r response) error {
	h, err := c.holding(r.typeURL)
	if err != nil {
		return err
	}
	if r.removed > 0 && !h.extras {
		return fmt.Errorf("response removes %d resources, though nothing was removed", r.removed)
	}
	l.progress.Responses++
	l.progress.Bytes += h2.MessageHeaderBytes + r.bytes
	if c.sotw {
		l.ack = appendSotWAck(l.ack[:0], r, h.sotwNames())
	} else {
		l.ack = appendDeltaAck(l.ack[:0], r)
	}
	c.queue(l.ack)
	return nil
}

// note records a resource that was received at time now, in Unix nanoseconds.
func (l *Load) note(c *client, r resource, now int64) error {
	h, err := c.holding(r.typeURL)
	if err != nil {
		return err
	}
	s := r.stamp
	switch h.receive(s) {
	case unwanted:
		if h.extra(s.Index) {
			h.extras = true
			return nil
		}
		return fmt.Errorf("%s, which was not asked for", content.Name(h.TypeURL, s.Index))
	case again:
		l.progress.Again++
		return nil
	case first:
		l.progress.First++
		if have, want := c.have(); have == want {
			l.progress.Synced++
		}
	case newer:
		l.progress.Deliveries++
		l.delays = append(l.delays, time.Duration(now-s.Made))
	}
	l.progress.Last = now
	l.learn(h, s, r.version)
	return nil
}

// learn records the version of a change, for initial resource versions after a reconnect.
func (l *Load) learn(h *holding, s content.Stamp, version []byte) {
	all := l.versions[h.TypeURL]
	if all == nil {
		all = make([]known, h.Of)
		l.versions[h.TypeURL] = all
	}
	if v := &all[s.Index]; v.change < s.Change+1 {
		*v = known{change: s.Change + 1, version: string(version)}
	}
}
