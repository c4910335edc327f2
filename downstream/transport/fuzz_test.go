package transport

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

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

const fuzzHeaderBytes = 4 << 10

// fuzzConfig returns a configuration with low limits.
func fuzzConfig(a *ads) Config {
	return Config{
		Guard: guard.New(guard.Config{
			Limits: guard.WithDefaults(guard.Limits{}), Own: func(any) bool { return false },
			KeepNodes: func() bool { return false }, Logger: discardLogger,
		}),
		Credentials: insecure.NewCredentials(), Streams: map[string]func(*Stream) Receiver{path: a.open},
		Other:           http.NotFoundHandler(),
		MaxMessageBytes: 1 << 20, MaxStreams: 10, MaxHeaderBytes: fuzzHeaderBytes, Window: 64 << 10, Handshake: patience,
	}
}

// FuzzFrames sends frames that are mostly valid, which each four bytes of the input select, and compares the state of
// streams with a model: the server answers every frame that the model allows, and no other stream ends.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 3, 2, 0, 0, 0})
	f.Add([]byte{5, 3, 0, 0, 1, 0, 0, 0}) // a violation before the first stream
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 200, 1, 1, 0, 2, 3, 0, 0, 0, 5, 0, 0, 9})
	f.Add([]byte{6, 0, 0, 7, 1, 0, 0, 3, 9, 0, 1, 200, 7, 0, 0, 1, 8, 0, 0, 0, 7, 0, 0, 2}) // CONTINUATION, padding, trailers
	f.Add([]byte{12, 0, 0, 20, 11, 0, 0, 0, 11, 4, 0, 1, 10, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2})
	for n := range violations {
		f.Add([]byte{0, 0, 0, 0, 13, 0, 0, byte(n)})
	}
	f.Fuzz(func(t *testing.T, actions []byte) {
		if len(actions) > 400 {
			return
		}
		a := newADS()
		client, stop := connection(t, a)
		_ = client.SetDeadline(time.Now().Add(patience))
		m := model{open: map[uint32]int{}, requested: map[uint32]bool{}, ending: map[uint32]bool{}, next: 1}
		sent := append([]byte(http2.ClientPreface), appendSettings(nil)...)
		for ; len(actions) >= 4 && m.violation == ""; actions = actions[4:] {
			sent = append(sent, m.frame(actions[0], actions[1], binary.BigEndian.Uint16(actions[2:]))...)
		}
		sent = append(sent, m.ping(0xffff)...)
		go func() { _, _ = client.Write(sent) }() // fails at the latest when the connection is closed
		m.check(t, http2.NewFramer(io.Discard, client))
		if m.violation == "" {
			m.receive(t, a)
		}
		_ = client.Close()
		stop()
	})
}

// A model has the streams that a client may use.
type model struct {
	open      map[uint32]int  // the ACKs that were sent on each stream that is open in both directions
	requested map[uint32]bool // streams with responses, which may wait for a window
	ending    map[uint32]bool // streams that the client has ended; true while the server must end them
	next      uint32
	pings     [][8]byte // those that the server must answer, in this order
	violation string
}

// receive waits until the server has received all ACKs on streams that are open.
func (m *model) receive(t *testing.T, a *ads) {
	late := time.After(patience)
	for id, acks := range m.open {
		for n := range acks {
			select {
			case <-a.acks:
			case <-late:
				t.Fatalf("stream %d or another one received %d of %d ACKs", id, n, acks)
			}
		}
	}
}

// frame returns the frames for an action on a stream, and updates the model.
func (m *model) frame(action, stream byte, n uint16) []byte {
	id := uint32(stream)%10*2 + 1
	switch action % 14 {
	case 0, 6, 12:
		return m.openStream(action%14, int(n))
	case 1, 2, 8, 9, 10:
		if _, open := m.open[id]; !open {
			return nil
		}
		return m.onStream(action%14, id, int(n))
	case 3:
		return appendWindowUpdate(nil, 0, int(n)+1)
	case 4:
		return appendSettings(nil, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n)})
	case 5:
		if id >= m.next {
			m.violation = "connection PROTOCOL_ERROR"
		}
		return appendWindowUpdate(nil, id, 1)
	case 7:
		return m.ping(n)
	case 11: // what a server must ignore
		if n%2 == 0 {
			return append(appendHeader(nil, 3, 0x16, http2.Flags(stream), id), 1, 2, 3)
		}
		return append(appendHeader(nil, 5, http2.FramePriority, 0, id), 0, 0, 0, 0, 9)
	default:
		v := violations[int(n)%len(violations)]
		m.violation = "connection " + v.code.String()
		return append(appendHeader(nil, len(v.payload), v.kind, v.flags, v.stream), v.payload...)
	}
}

// openStream returns the frames of a request: one, several, or one with padding and a priority.
func (m *model) openStream(action byte, n int) []byte {
	id, block := m.next, encodeFields(nil, call()...)
	m.next += 2
	m.open[id] = 0
	switch action {
	case 6:
		return appendParts(nil, block, n%60+1, id)
	case 12:
		padding := n % 256
		payload := append([]byte{byte(padding), 0, 0, 0, 0, 200}, block...)
		payload = append(payload, make([]byte, padding)...)
		flags := http2.FlagHeadersEndHeaders | http2.FlagHeadersPadded | http2.FlagHeadersPriority
		return append(appendHeader(nil, len(payload), http2.FrameHeaders, flags, id), payload...)
	default:
		return appendBlock(nil, block, 0, id)
	}
}

// appendParts appends a header block in frames of so many bytes.
func appendParts(b, block []byte, part int, stream uint32) []byte {
	kind := http2.FrameHeaders
	for ; len(block) > part; block, kind = block[part:], http2.FrameContinuation {
		b = append(appendHeader(b, part, kind, 0, stream), block[:part]...)
	}
	return append(appendHeader(b, len(block), kind, http2.FlagHeadersEndHeaders, stream), block...)
}

// onStream returns the frames for an action on an open stream: messages with and without padding, its end by DATA and by
// trailers, and its reset.
func (m *model) onStream(action byte, id uint32, n int) []byte {
	ack := framed([]byte{0x32, 1, 'n'})
	switch action {
	case 1:
		b := bytes.Repeat(framed([]byte{0x1a, 1, 'n'}), n%5) // requests
		m.requested[id] = m.requested[id] || len(b) > 0
		if n%2 == 0 {
			b = append(b, bytes.Repeat(ack, n%20)...)
			m.open[id] += n % 20
		}
		return append(appendHeader(nil, len(b), http2.FrameData, 0, id), b...)
	case 9:
		m.open[id]++
		padding := n % 256
		b := append([]byte{byte(padding)}, ack...)
		b = append(b, make([]byte, padding)...)
		return append(appendHeader(nil, len(b), http2.FrameData, http2.FlagDataPadded, id), b...)
	}
	delete(m.open, id)
	if action == 2 {
		return appendReset(nil, id, http2.ErrCodeCancel)
	}
	m.ending[id] = !m.requested[id]
	if action == 8 {
		return appendBlock(nil, encodeFields(nil, "x", "y"), http2.FlagHeadersEndStream, id)
	}
	return appendHeader(nil, 0, http2.FrameData, http2.FlagDataEndStream, id)
}

// ping returns a PING with a number.
func (m *model) ping(n uint16) []byte {
	data := [8]byte{byte(n >> 8), byte(n)}
	m.pings = append(m.pings, data)
	return appendPing(nil, 0, data)
}

// FuzzHPACK opens streams whose header blocks refer to the dynamic table of the connection. Each four bytes of the input
// select a field, a size of the table, or the end of a block. Blocks may be too large, or have names that HTTP/2 does
// not allow. After all of them, the fields of two streams must arrive as they were sent.
func FuzzHPACK(f *testing.F) {
	f.Add([]byte{2, 'a', 'b', 5, 0, 0, 0, 0, 2, 'a', 'b', 5}, 10)
	f.Add([]byte{2, 'a', 'b', 255, 2, 'c', 'd', 255, 2, 'e', 'f', 255, 0, 0, 0, 0, 1, 0, 0, 0, 3, 'x', 'b', 5}, 3) // too large
	f.Add([]byte{4, 'a', 'b', 5, 0, 1, 0, 0, 1, 10, 0, 0, 5, 'x', 'y', 5}, 500)                                    // no valid name
	f.Fuzz(func(t *testing.T, actions []byte, part int) {
		if len(actions) > 600 {
			return
		}
		b := &blocks{sent: append([]byte(http2.ClientPreface), appendSettings(nil)...), next: 1, part: part}
		b.encoder = hpack.NewEncoder(&b.block)
		for ; len(actions) >= 4; actions = actions[4:] {
			b.act(actions[0], actions[1], actions[2], actions[3])
		}
		b.end()
		numbers := []string{"one", "two"}
		for _, number := range numbers { // the second block refers to a field of the first one
			b.field("x-last", "last", false)
			b.field("x-number", number, false)
			b.end()
		}
		a := newADS()
		client, stop := connection(t, a)
		_ = client.SetDeadline(time.Now().Add(patience))
		m := model{}
		sent := append(b.sent, m.ping(0)...)
		go func() { _, _ = client.Write(sent) }() // fails at the latest when the connection is closed
		m.check(t, http2.NewFramer(io.Discard, client))
		_ = client.Close()
		stop()
		all := a.all()
		if len(all) < len(numbers) {
			t.Fatalf("%d streams were opened, want at least the last %d", len(all), len(numbers))
		}
		for i, s := range all[len(all)-len(numbers):] {
			md, _ := metadata.FromIncomingContext(s.Context())
			if got := slices.Concat(md["x-last"], md["x-number"]); !slices.Equal(got, []string{"last", numbers[i]}) {
				t.Errorf("the fields of stream %d are %q, want last and %s", s.id, got, numbers[i])
			}
		}
	})
}

// blocks are header blocks of one connection.
type blocks struct {
	encoder *hpack.Encoder
	block   bytes.Buffer // the fields of the next one
	list    int          // the size of its list of fields (RFC 9113, 6.5.2)
	invalid bool         // it has a name that HTTP/2 does not allow
	resized bool         // it starts with another size of the dynamic table
	sent    []byte       // all frames
	next    uint32       // stream
	part    int          // bytes of a frame
}

// act ends a block, changes the size of the dynamic table, or adds a field.
func (b *blocks) act(action, first, second, length byte) {
	switch action % 6 {
	case 0:
		b.end()
	case 1:
		if !b.resized && b.block.Len() == 0 { // RFC 7541, 4.2; package hpack reads one of the two updates that it allows
			b.encoder.SetMaxDynamicTableSize(uint32(first) << 5)
			b.resized = true
		}
	default:
		name := "x-" + hex.EncodeToString([]byte{first})
		if action%6 == 4 {
			name, b.invalid = strings.ToUpper(name), true
		}
		b.field(name, strings.Repeat(string(rune('0'+second%70)), int(length)*8), action%6 == 3)
	}
}

// field adds a field to the block. A list whose end a framer need not decode would end the connection.
func (b *blocks) field(name, value string, sensitive bool) {
	size := len(name) + len(value) + 32
	if limit := 2*fuzzHeaderBytes - 300; b.list+size > limit {
		return
	}
	b.begin()
	b.list += size
	_ = b.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: sensitive}) // to memory
}

// begin starts a block if there is none.
func (b *blocks) begin() {
	if b.block.Len() > 0 {
		return
	}
	for pairs := range slices.Chunk(call(), 2) {
		_ = b.encoder.WriteField(hpack.HeaderField{Name: pairs[0], Value: pairs[1]}) // to memory
	}
}

// end sends the block in parts; in one if it is refused, because the framer ends a connection that continues such a block.
func (b *blocks) end() {
	b.begin()
	part := max(1, b.part%200)
	if b.invalid || b.list > fuzzHeaderBytes-300 {
		part = maxFrame
	}
	b.sent = appendParts(b.sent, b.block.Bytes(), part, b.next)
	b.block.Reset()
	b.list, b.invalid, b.resized, b.next = 0, false, false, b.next+2
}

// violations are frames that end a connection, in each state of its streams.
var violations = []struct {
	kind    http2.FrameType
	flags   http2.Flags
	stream  uint32
	payload []byte
	code    http2.ErrCode
}{
	{http2.FrameData, 0, 0, []byte("x"), http2.ErrCodeProtocol},
	{http2.FrameData, http2.FlagDataPadded, 1, []byte{6, 'x', 0, 0, 0, 0}, http2.ErrCodeProtocol},
	{http2.FrameHeaders, http2.FlagHeadersEndHeaders, 0, nil, http2.ErrCodeProtocol},
	{http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1001, []byte{0x40}, http2.ErrCodeCompression},
	{http2.FrameHeaders, http2.FlagHeadersEndHeaders | http2.FlagHeadersPadded, 1001, []byte{9, 0x82}, http2.ErrCodeProtocol},
	{http2.FrameContinuation, http2.FlagHeadersEndHeaders, 1, nil, http2.ErrCodeProtocol},
	{http2.FramePriority, 0, 0, make([]byte, 5), http2.ErrCodeProtocol},
	{http2.FrameRSTStream, 0, 0, make([]byte, 4), http2.ErrCodeProtocol},
	{http2.FrameRSTStream, 0, 1001, make([]byte, 4), http2.ErrCodeProtocol},
	{http2.FrameSettings, 0, 0, make([]byte, 3), http2.ErrCodeFrameSize},
	{http2.FrameSettings, http2.FlagSettingsAck, 0, []byte{0}, http2.ErrCodeFrameSize},
	{http2.FramePushPromise, http2.FlagPushPromiseEndHeaders, 1, []byte{0, 0, 0, 2}, http2.ErrCodeProtocol},
	{http2.FramePing, 0, 0, make([]byte, 6), http2.ErrCodeFrameSize},
	{http2.FramePing, 0, 1, make([]byte, 8), http2.ErrCodeProtocol},
	{http2.FrameGoAway, 0, 1, make([]byte, 8), http2.ErrCodeProtocol},
	{http2.FrameWindowUpdate, 0, 0, make([]byte, 4), http2.ErrCodeProtocol},
	{http2.FrameWindowUpdate, 0, 0, []byte{0x7f, 0xff, 0xff, 0xff}, http2.ErrCodeFlowControl},
}

// check reads frames until the answer to the last PING and the end of the streams that the client has ended, or until the
// GOAWAY of the violation. The server waits lingerTimeout for a client to read that.
func (m *model) check(t *testing.T, frames *http2.Framer) {
	began := time.Now()
	for m.violation != "" || len(m.pings) > 0 || slices.Contains(slices.Collect(maps.Values(m.ending)), true) {
		f, err := frames.ReadFrame()
		if m.violation != "" && errors.Is(err, io.EOF) && time.Since(began) >= lingerTimeout {
			return
		}
		if err != nil {
			t.Fatalf("the connection ended: %v; PINGs without an answer: %v, streams without an end: %v", err, m.pings, m.ending)
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			if got := "connection " + f.ErrCode.String(); got != m.violation {
				t.Fatalf("the server sent GOAWAY with %s, want %q", f.ErrCode, m.violation)
			}
			return
		case *http2.RSTStreamFrame:
			_, open := m.open[f.StreamID]
			if _, ending := m.ending[f.StreamID]; open || ending {
				t.Fatalf("stream %d was reset with %s", f.StreamID, f.ErrCode)
			}
		case *http2.HeadersFrame:
			if _, open := m.open[f.StreamID]; open && f.StreamEnded() {
				t.Fatalf("the server ended stream %d", f.StreamID)
			}
			if f.StreamEnded() {
				m.ending[f.StreamID] = false
			}
		case *http2.PingFrame:
			if f.IsAck() {
				m.answered(t, f.Data)
			}
		}
	}
}

// answered removes the PING that the server has answered.
func (m *model) answered(t *testing.T, data [8]byte) {
	if len(m.pings) == 0 || m.pings[0] != data {
		t.Fatalf("the server answered PING %v, want the first of %v", data, m.pings)
	}
	if m.pings = m.pings[1:]; len(m.pings) == 0 && m.violation != "" {
		t.Fatalf("the server accepted a violation, want %q", m.violation)
	}
}
