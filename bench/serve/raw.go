package serve

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/h2"
)

// raw measures the minimal cost of the sockets. Each change is encoded once as HTTP/2
// frames and written to each client with one system call; ACKs are read. It has one
// goroutine and no flow control: more bytes to a client than its window are an error.
type raw struct {
	set      *content.Set
	sotw     bool
	poll     *h2.Poll
	listener int

	// Guarded by mu.
	mu      sync.Mutex
	clients map[int32]*rawClient
	buffer  []byte
	serial  int
	first   map[string][]byte // by type: the frames for a new client; absent after a change
	failed  error
}

// A rawClient is one connection of a client.
type rawClient struct {
	socket   int
	begun    bool   // the client's preface was read
	in       []byte // the start of an incomplete frame
	messages h2.Messages
	wants    string // type URL of the subscription; empty before it
	out      []byte // bytes that wait for the socket
	sent     int    // bytes of messages sent so far
}

func newRaw(o Options, set *content.Set) (*raw, error) {
	poll, err := h2.NewPoll()
	if err != nil {
		return nil, err
	}
	return &raw{set: set, sotw: o.SotW, poll: poll, clients: map[int32]*rawClient{}, first: map[string][]byte{}, buffer: make([]byte, 64<<10)}, nil
}

// start implements backend.
func (s *raw) start() (string, error) {
	listener, address, err := h2.Listen()
	if err != nil {
		return "", err
	}
	s.listener = listener
	if err := s.poll.Add(listener, false); err != nil {
		return "", err
	}
	go s.run() // until the process ends
	return address.String(), nil
}

// publish implements backend.
func (s *raw) publish(k content.Kind, b batch) error {
	return b.each(func(stamp content.Stamp) error { return s.publishOne(k, stamp) })
}

// publishOne publishes one change.
func (s *raw) publishOne(k content.Kind, stamp content.Stamp) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	delete(s.first, k.TypeURL)
	frames := h2.AppendMessage(nil, update(s.set, k, stamp, s.sotw, s.serial))
	for _, c := range s.clients {
		if c.wants != k.TypeURL {
			continue
		}
		if err := s.send(c, frames); err != nil {
			return err
		}
	}
	return s.failed
}

// run serves the sockets.
func (s *raw) run() {
	for {
		events, err := s.poll.Wait(-1)
		s.mu.Lock()
		if err != nil {
			s.failed = err
		}
		for _, e := range events {
			if err := s.serve(e); err != nil {
				s.failed = err
			}
		}
		s.mu.Unlock()
	}
}

// serve handles the epoll events of a socket.
func (s *raw) serve(e unix.EpollEvent) error {
	if int(e.Fd) == s.listener {
		return s.accept()
	}
	c := s.clients[e.Fd]
	if e.Events&unix.EPOLLOUT != 0 {
		n, err := h2.Write(c.socket, c.out)
		if err != nil {
			return err
		}
		if c.out = c.out[n:]; len(c.out) == 0 {
			return s.poll.Change(c.socket, false)
		}
	}
	if e.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		return nil
	}
	err := s.read(c)
	if errors.Is(err, h2.ErrClosed) {
		delete(s.clients, e.Fd)
		return unix.Close(c.socket)
	}
	return err
}

// accept accepts a new connection.
func (s *raw) accept() error {
	socket, err := h2.Accept(s.listener)
	if err != nil || socket < 0 {
		return err
	}
	s.clients[int32(socket)] = &rawClient{socket: socket}
	return s.poll.Add(socket, false)
}

// read reads once, and handles all complete frames.
func (s *raw) read(c *rawClient) error {
	kept := copy(s.buffer, c.in)
	n, err := h2.Read(c.socket, s.buffer[kept:])
	if err != nil {
		return err
	}
	rest := s.buffer[:kept+n]
	if !c.begun {
		if len(rest) < len(http2.ClientPreface) {
			c.in = append(c.in[:0], rest...)
			return nil
		}
		rest, c.begun = rest[len(http2.ClientPreface):], true
		if err := s.write(c, h2.ServerPreface()); err != nil {
			return err
		}
	}
	for {
		f, n, err := h2.NextFrame(rest)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if f.Type == http2.FrameData {
			if err := c.messages.Read(f.Data(), func(m []byte) error { return s.request(c, m) }); err != nil {
				return err
			}
		}
		rest = rest[n:]
	}
	c.in = append(c.in[:0], rest...)
	return nil
}

// request handles a message of a client: the first one subscribes it to a type, all others are ACKs.
func (s *raw) request(c *rawClient, m []byte) error {
	if c.wants != "" {
		return nil // an ACK
	}
	r := readRequest(m, s.sotw)
	k, ok := s.set.Kind(r.typeURL)
	if !ok {
		return fmt.Errorf("client asks for %q", r.typeURL)
	}
	c.wants = r.typeURL
	if s.first[k.TypeURL] == nil {
		for _, response := range everything(s.set, k, s.sotw, s.serial) {
			s.first[k.TypeURL] = h2.AppendMessage(s.first[k.TypeURL], response)
		}
	}
	return s.send(c, s.first[k.TypeURL])
}

// send writes DATA frames, and counts them against the client's window.
func (s *raw) send(c *rawClient, frames []byte) error {
	if c.sent += len(frames); c.sent > h2.StreamWindow {
		return errors.New("a client was sent more than its window: the server is for less")
	}
	return s.write(c, frames)
}

// write writes frames with one system call, and keeps what the socket does not accept.
func (s *raw) write(c *rawClient, frames []byte) error {
	if len(c.out) > 0 {
		c.out = append(c.out, frames...)
		return nil
	}
	n, err := h2.Write(c.socket, frames)
	if err != nil || n == len(frames) {
		return err
	}
	c.out = append(c.out, frames[n:]...)
	return s.poll.Change(c.socket, true)
}
