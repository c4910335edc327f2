package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"github.com/xdstender/tender/downstream/guard"
)

// streamKey is the context key of the *Stream of a request of [Config.Other].
type streamKey struct{}

// PeerOptions return the options with which a gRPC server that is [Config.Other] sees the same peers as the streams of
// a Server. They precede other interceptors. Without them, it would see no account of the guard, and no Unix socket.
func PeerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(unaryPeer), grpc.ChainStreamInterceptor(streamPeer),
	}
}

func unaryPeer(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return handle(withPeer(ctx), r)
}

func streamPeer(server any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := handle(server, peerStream{rpc, withPeer(rpc.Context())})
	if s, is := rpc.Context().Value(streamKey{}).(*Stream); is {
		s.returned()
	}
	return err
}

func withPeer(ctx context.Context) context.Context {
	if s, is := ctx.Value(streamKey{}).(*Stream); is {
		return peer.NewContext(ctx, s.conn.peer)
	}
	return ctx
}

// returned ends a wait for a client that does not read, since the handler of the stream has returned.
func (s *Stream) returned() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.over = true
	s.wakeSender()
}

type peerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s peerStream) Context() context.Context { return s.ctx }

// openOther serves a stream by Config.Other in a new goroutine.
func (c *Conn) openOther(s *Stream, f *http2.MetaHeadersFrame) {
	s.ctx, s.cancel = context.WithCancel(context.WithValue(c.ctx, streamKey{}, s))
	header := make(http.Header, len(f.RegularFields()))
	for _, field := range f.RegularFields() {
		header.Add(field.Name, field.Value)
	}
	path := f.PseudoValue("path")
	r := &http.Request{
		Method: f.PseudoValue("method"), URL: &url.URL{Path: path}, RequestURI: path, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: header, Host: f.PseudoValue("authority"), RemoteAddr: c.peer.Addr.String(), Body: body{s}, ContentLength: -1,
		TLS: tlsState(c),
	}
	go func() { // ends when the handler does, at the latest after the stream
		w := &writer{s: s, fields: http.Header{}}
		c.server.cfg.Other.ServeHTTP(w, r.WithContext(s.ctx))
		w.end()
	}()
}

// tlsState returns the TLS state of a connection, nil for plaintext.
func tlsState(c *Conn) *tls.ConnectionState {
	info, is := guard.TLSInfo(c.peer.AuthInfo)
	if !is {
		return nil
	}
	return &info.State
}

// A body is the body of a request, with the messages of gRPC.
type body struct{ s *Stream }

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	s := b.s
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	in := &s.inbox
	for len(in.bytes) == 0 {
		switch {
		case in.lost != nil:
			return 0, in.lost
		case s.half:
			return 0, io.EOF
		}
		if in.arrived == nil {
			in.arrived = make(chan struct{})
		}
		arrived := in.arrived
		c.mu.Unlock()
		<-arrived // closed at the latest when the connection ends
		c.mu.Lock()
	}
	n := copy(p, in.bytes)
	in.remove(n)
	in.ungranted = len(in.bytes)
	s.consume(n)
	c.pump()
	return n, nil
}

// Close implements io.Closer. It ends Read.
func (b body) Close() error {
	b.s.conn.mu.Lock()
	defer b.s.conn.mu.Unlock()
	b.s.closedLocked(http.ErrBodyReadAfterClose)
	return nil
}

// A writer is the response to a request. Only the goroutine of the handler uses it.
type writer struct {
	s      *Stream
	fields http.Header
	wrote  bool // the headers were written
	begun  bool // a part of a message was written since the last Flush
	failed bool // such a part was not written, so that the other parts must not be written either
}

// Header implements http.ResponseWriter.
func (w *writer) Header() http.Header { return w.fields }

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(code int) {
	if w.wrote {
		return
	}
	w.wrote = true
	pairs := []string{":status", strconv.Itoa(code)}
	trailers := w.declared()
	for _, name := range slices.Sorted(maps.Keys(w.fields)) {
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) || trailers[name] {
			continue
		}
		for _, value := range w.fields[name] {
			pairs = append(pairs, strings.ToLower(name), value)
		}
	}
	w.s.conn.mu.Lock()
	defer w.s.conn.mu.Unlock()
	if !w.s.dead {
		w.s.writeHeaders(encodeFields(nil, pairs...))
	}
}

// declared returns the names in the Trailer field.
func (w *writer) declared() map[string]bool {
	names := map[string]bool{}
	for _, name := range w.fields["Trailer"] {
		names[http.CanonicalHeaderKey(name)] = true
	}
	return names
}

// Write implements http.ResponseWriter. gRPC writes a message in several parts and then flushes. Only the first part
// waits for a client that does not read, so that messages stay whole if the handler returns meanwhile.
func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.failed:
		return 0, io.ErrClosedPipe
	case len(b) == 0:
		return 0, nil
	}
	part := message{data: mem.BufferSlice{mem.SliceBuffer(slices.Clone(b))}, size: len(b)}
	if err := w.s.send(part, !w.begun); err != nil {
		w.failed = true
		return 0, errors.Join(io.ErrClosedPipe, err)
	}
	w.begun = true
	return len(b), nil
}

// Flush implements http.Flusher.
func (w *writer) Flush() {
	w.WriteHeader(http.StatusOK)
	w.s.Flush()
	w.begun, w.failed = false, false
}

// end ends the response.
func (w *writer) end() {
	w.WriteHeader(http.StatusOK)
	var pairs []string
	trailers := w.declared()
	for _, name := range slices.Sorted(maps.Keys(w.fields)) {
		key, prefixed := strings.CutPrefix(name, http.TrailerPrefix)
		if !prefixed && !trailers[name] {
			continue
		}
		for _, value := range w.fields[name] {
			pairs = append(pairs, strings.ToLower(key), value)
		}
	}
	c := w.s.conn
	c.mu.Lock()
	w.s.endLocked(pairs)
	c.pump()
	c.mu.Unlock()
	w.s.cancel()
}
