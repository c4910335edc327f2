package transport

import (
	"errors"
	"net"
	"sync"
	"time"
)

// A Server accepts connections. Its methods may be called from any goroutine.
type Server struct {
	cfg     Config
	running sync.WaitGroup // of connections
	stopped chan struct{}  // closed when no connection is accepted any more

	// Guarded by mu.
	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*Conn]struct{}
	stopping  bool
}

// New returns a server.
func New(cfg Config) *Server {
	return &Server{
		cfg: cfg, stopped: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, conns: map[*Conn]struct{}{},
	}
}

const (
	minAcceptDelay = 5 * time.Millisecond
	maxAcceptDelay = time.Second
)

// Serve accepts connections until the server stops, and returns nil, or until the listener fails. It closes the
// listener. While the process has no free file descriptor, it tries again.
func (s *Server) Serve(l net.Listener) error {
	if !s.listen(l) {
		return l.Close()
	}
	defer s.unlisten(l)
	delay := minAcceptDelay
	for {
		socket, err := l.Accept()
		if err == nil {
			delay = minAcceptDelay
			s.serve(socket)
			continue
		}
		if temporary, is := errors.AsType[interface {
			error
			Temporary() bool
		}](err); is && temporary.Temporary() && s.pause(delay) {
			delay = min(2*delay, maxAcceptDelay)
			continue
		}
		select {
		case <-s.stopped:
			return nil
		default:
			return err
		}
	}
}

// pause waits, and reports whether the server accepts connections after that.
func (s *Server) pause(delay time.Duration) bool {
	select {
	case <-time.After(delay):
		return true
	case <-s.stopped:
		return false
	}
}

func (s *Server) listen(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) unlisten(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
	_ = l.Close() // it may be closed already
}

// serve serves a connection. The handshake has a goroutine of its own, because TLS grows the stack, and the goroutine
// that reads would keep the large one.
func (s *Server) serve(socket net.Conn) {
	c := newConn(s, socket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		_ = socket.Close() // the error concerns nobody
		return
	}
	s.conns[c] = struct{}{}
	s.running.Go(func() { // ends at the latest after the timeout of the handshake
		if !c.start() {
			s.forget(c)
			return
		}
		s.running.Go(func() { // ends when the connection does
			c.serve()
			s.forget(c)
		})
	})
}

func (s *Server) forget(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// GracefulStop accepts no further connections and streams, and waits until all streams and connections have ended.
// After Stop, it returns at once.
func (s *Server) GracefulStop() {
	for _, c := range s.close() {
		c.drain()
	}
	s.running.Wait()
}

// Stop closes all connections, and waits for their end.
func (s *Server) Stop() {
	for _, c := range s.close() {
		c.stop()
	}
	s.running.Wait()
}

// close closes the listeners, and returns the connections.
func (s *Server) close() (conns []*Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.stopping = true
		close(s.stopped)
	}
	for l := range s.listeners {
		_ = l.Close() // Serve returns
	}
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// secure reports whether connections use TLS.
func (s *Server) secure() bool {
	return s.cfg.Credentials.Info().SecurityProtocol == "tls"
}
