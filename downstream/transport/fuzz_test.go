package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

var discardLogger = slog.New(slog.DiscardHandler)

// stacks returns the stacks of all goroutines.
func stacks() string {
	b := make([]byte, 4<<20)
	return string(b[:runtime.Stack(b, true)])
}

// connection serves a connection in memory, and returns the side of the client.
func connection(t testing.TB, a *ads) (client net.Conn, stop func()) {
	cfg := fuzzConfig(a)
	cfg.MaxStreams = 1000 // streams that were reset count until their receivers have ended
	s := New(cfg)
	l := memnet.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // awaited by stop
	client, err := l.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return client, func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// A recording is a connection whose client has sent everything. It records what the server sends.
type recording struct {
	net.Conn // nil
	in       []byte
	part     int // bytes of a read

	// Guarded by mu.
	mu     sync.Mutex
	out    []byte
	closed bool
}

// Read implements net.Conn.
func (r *recording) Read(b []byte) (int, error) {
	if len(r.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.in[:max(1, min(r.part, len(r.in)))])
	r.in = r.in[n:]
	return n, nil
}

// Write implements net.Conn.
func (r *recording) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, net.ErrClosed
	}
	r.out = append(r.out, b...)
	return len(b), nil
}

// Close implements net.Conn.
func (r *recording) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *recording) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (r *recording) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (r *recording) SetDeadline(time.Time) error      { return nil }
func (r *recording) SetReadDeadline(time.Time) error  { return nil }
func (r *recording) SetWriteDeadline(time.Time) error { return nil }

// FuzzReader sends bytes after the preface, in parts. The server must answer with valid frames, end all streams with
// the connection, and release all charges.
func FuzzReader(f *testing.F) {
	open := appendBlock(nil, encodeFields(nil, call()...), 0, 1)
	settings := appendSettings(nil, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	f.Add(append(settings, open...), 7)
	f.Add(append(bytes.Clone(settings), appendPing(nil, 0, [8]byte{})...), 1)
	request := framed([]byte{0x12, 1, 't'})
	data := append(appendHeader(nil, len(request), http2.FrameData, 0, 1), request...)
	f.Add(append(append(bytes.Clone(settings), open...), append(data, appendReset(nil, 1, http2.ErrCodeCancel)...)...), 100)
	f.Add(append(append(bytes.Clone(settings), open...), appendWindowUpdate(nil, 1, maxWindow)...), 20)
	f.Fuzz(func(t *testing.T, b []byte, part int) {
		a := newADS()
		s := New(fuzzConfig(a))
		r := &recording{in: append([]byte(http2.ClientPreface), b...), part: part}
		s.serve(r)
		s.running.Wait()
		for _, st := range a.all() {
			<-st.ended
		}
		if _, unread := s.cfg.Guard.Usage(); unread != 0 {
			t.Errorf("%d bytes are charged after the end", unread)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		frames := http2.NewFramer(io.Discard, bytes.NewReader(r.out))
		for {
			if _, err := frames.ReadFrame(); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			} else if err != nil {
				t.Fatalf("the server has sent an invalid frame: %v", err)
			}
		}
	})
}

// fuzzConfig returns a configuration with low limits.
func fuzzConfig(a *ads) Config {
	return Config{
		Guard: guard.New(guard.Config{
			Limits: guard.WithDefaults(guard.Limits{}), Own: func(any) bool { return false },
			KeepNodes: func() bool { return false }, Logger: discardLogger,
		}),
		Credentials: insecure.NewCredentials(), Streams: map[string]func(*Stream) Receiver{path: a.open},
		Other:           http.NotFoundHandler(),
		MaxMessageBytes: 1 << 20, MaxStreams: 10, MaxHeaderBytes: 4 << 10, Window: 64 << 10, Handshake: patience,
	}
}

// FuzzFrames sends frames that are mostly valid, which each four bytes of the input select, and compares the state of
// streams with a model: the server answers every frame that the model allows, and no other stream ends.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 3, 2, 0, 0, 0})
	f.Add([]byte{5, 3, 0, 0, 1, 0, 0, 0}) // a violation before the first stream
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 200, 1, 1, 0, 2, 3, 0, 0, 0, 5, 0, 0, 9})
	f.Fuzz(func(t *testing.T, actions []byte) {
		if len(actions) > 400 {
			return
		}
		a := newADS()
		client, stop := connection(t, a)
		_ = client.SetDeadline(time.Now().Add(patience))
		m := model{open: map[uint32]bool{}, next: 1}
		sent := append([]byte(http2.ClientPreface), appendSettings(nil)...)
		for ; len(actions) >= 4 && m.violation == ""; actions = actions[4:] {
			sent = append(sent, m.frame(actions[0], actions[1], binary.BigEndian.Uint16(actions[2:]))...)
		}
		sent = append(sent, appendPing(nil, 0, [8]byte{0xff})...)
		go func() { _, _ = client.Write(sent) }() // fails at the latest when the connection is closed
		m.check(t, http2.NewFramer(io.Discard, client))
		_ = client.Close()
		stop()
	})
}

// A model has the streams that a client may use.
type model struct {
	open      map[uint32]bool
	next      uint32
	violation string
}

// frame returns the frame for an action on a stream, and updates the model.
func (m *model) frame(action, stream byte, n uint16) []byte {
	id := uint32(stream)%10*2 + 1
	switch action % 6 {
	case 0:
		id = m.next
		m.next += 2
		m.open[id] = true
		return appendBlock(nil, encodeFields(nil, call()...), 0, id)
	case 1:
		if !m.open[id] {
			return nil
		}
		nonce := []byte{0x1a, 1, 'n'} // an ACK
		b := bytes.Repeat(framed(nonce), int(n)%20)
		return append(appendHeader(nil, len(b), http2.FrameData, 0, id), b...)
	case 2:
		if !m.open[id] {
			return nil
		}
		delete(m.open, id)
		return appendReset(nil, id, http2.ErrCodeCancel)
	case 3:
		return appendWindowUpdate(nil, 0, int(n)+1)
	case 4:
		return appendSettings(nil, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n)})
	default:
		if id >= m.next {
			m.violation = "connection PROTOCOL_ERROR"
			return appendWindowUpdate(nil, id, 1)
		}
		return appendWindowUpdate(nil, id, 1)
	}
}

// check reads frames until the answer to the last PING, or the GOAWAY of the violation. The server waits lingerTimeout for a
// client to read that.
func (m *model) check(t *testing.T, frames *http2.Framer) {
	began := time.Now()
	for {
		f, err := frames.ReadFrame()
		if m.violation != "" && errors.Is(err, io.EOF) && time.Since(began) >= lingerTimeout {
			return
		}
		if err != nil {
			t.Fatalf("the connection ended: %v", err)
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			if got := "connection " + f.ErrCode.String(); got != m.violation {
				t.Fatalf("the server sent GOAWAY with %s, want %q", f.ErrCode, m.violation)
			}
			return
		case *http2.RSTStreamFrame:
			if m.open[f.StreamID] {
				t.Fatalf("stream %d was reset with %s", f.StreamID, f.ErrCode)
			}
		case *http2.PingFrame:
			if !f.IsAck() || f.Data != [8]byte{0xff} {
				continue
			}
			if m.violation != "" {
				t.Fatalf("the server accepted a violation, want %q", m.violation)
			}
			return
		}
	}
}
