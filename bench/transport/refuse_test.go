package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/bench/transport"
)

// A peer is a client that can violate the protocol.
type peer struct {
	*testing.T
	conn   net.Conn
	frames *http2.Framer
}

// newPeer connects and sends the preface, without SETTINGS.
func newPeer(t *testing.T, address string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	p := &peer{t, conn, http2.NewFramer(conn, conn)}
	p.frames.AllowIllegalWrites = true
	p.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.bytes([]byte(http2.ClientPreface))
	return p
}

// must ignores errors of writes. A write may fail because the server has closed the connection, which reads then show.
func (p *peer) must(error) {}

func (p *peer) bytes(b []byte) {
	_, err := p.conn.Write(b)
	p.must(err)
}

func (p *peer) settings(window uint32) {
	p.must(p.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
}

func (p *peer) window(stream, n uint32) { p.must(p.frames.WriteWindowUpdate(stream, n)) }

// open starts a valid call with additional header fields.
func (p *peer) open(stream uint32, more ...string) {
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", path, "content-type", "application/grpc", "te", "trailers"}, more...)
	p.headers(stream, fields...)
}

// headers sends a header block in as many frames as it needs. fields alternates names and values.
func (p *peer) headers(stream uint32, fields ...string) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // writes to memory do not fail
	}
	block := b.Next(16 << 10)
	p.must(p.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: b.Len() == 0}))
	for b.Len() > 0 {
		block = b.Next(16 << 10)
		p.must(p.frames.WriteContinuation(stream, b.Len() == 0, block))
	}
}

func (p *peer) data(stream uint32, b []byte) { p.must(p.frames.WriteData(stream, false, b)) }

func (p *peer) message(stream uint32, m []byte) {
	p.data(stream, append(prefix(0, len(m)), m...))
}

// prefix returns the prefix of a gRPC message of n bytes; flag 1 means compressed.
func prefix(flag byte, n int) []byte { return binary.BigEndian.AppendUint32([]byte{flag}, uint32(n)) }

// ping waits for the answer to a PING.
func (p *peer) ping() {
	p.Helper()
	p.must(p.frames.WritePing(false, [8]byte{1}))
	for {
		f, err := p.frames.ReadFrame()
		if err != nil {
			p.Fatal(err)
		}
		if ping, is := f.(*http2.PingFrame); is && ping.IsAck() {
			return
		}
	}
}

// wantReset waits until a stream ends, and checks that it ends with RST_STREAM and an error code.
func (p *peer) wantReset(stream uint32, code string) {
	p.Helper()
	if got := p.ends(stream); got != "reset "+code {
		p.Fatalf("stream ended by %q, want a reset by %s", got, code)
	}
}

// ends waits until a stream or the connection ends, and describes how: reset CODE, connection CODE, closed, or the HTTP
// and gRPC status.
func (p *peer) ends(stream uint32) string {
	for {
		f, err := p.frames.ReadFrame()
		if errors.Is(err, io.EOF) {
			return "closed"
		}
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "connection " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return "reset " + f.ErrCode.String()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream && f.StreamEnded() {
				return f.PseudoValue("status") + " " + field(f, "grpc-status")
			}
		}
	}
}

func field(f *http2.MetaHeadersFrame, name string) string {
	for _, field := range f.RegularFields() {
		if field.Name == name {
			return field.Value
		}
	}
	return ""
}

// TestRefused checks the reaction to clients that violate the protocol or a limit, each on its own connection. The
// stream of another client must not be affected.
func TestRefused(t *testing.T) {
	l := transport.DefaultLimits()
	l.MessageBytes, l.BufferedBytes, l.Streams, l.FrameBurst, l.FrameRate = 1<<20, 100_000, 4, 100, 1
	a, _, address := serve(t, l, nil)
	healthy := open(t.Context(), t, dial(t, address, nil))
	want(t, healthy, "first", 10)
	grpcStatus := func(c codes.Code) string { return fmt.Sprintf(" %d", c) }
	for _, tt := range []struct {
		name string
		send func(p *peer)
		want string // result of ends for stream 1
	}{
		{"no SETTINGS", func(p *peer) { p.open(1) }, "connection PROTOCOL_ERROR"},
		{"frame of 16 KiB and a byte", func(p *peer) {
			p.settings(1000)
			p.bytes([]byte{0, 0x40, 1, 0, 0, 0, 0, 0, 1})
		}, "connection FRAME_SIZE_ERROR"},
		{"message of 1 MiB and a byte", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.data(1, prefix(0, 1<<20+1))
		}, grpcStatus(codes.ResourceExhausted)},
		{"compressed message", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.data(1, prefix(1, 10))
		}, grpcStatus(codes.Unimplemented)},
		{"compression", func(p *peer) {
			p.settings(1000)
			p.open(1, "grpc-encoding", "gzip")
		}, "200" + grpcStatus(codes.Unimplemented)},
		{"malformed message", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.message(1, []byte{0xff})
		}, grpcStatus(codes.InvalidArgument)},
		{"message that ends early", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.must(p.frames.WriteData(1, true, prefix(0, 10)))
		}, grpcStatus(codes.Internal)},
		{"incomplete messages of many streams", func(p *peer) {
			p.settings(1000)
			for stream := uint32(7); ; stream -= 2 {
				p.headers(7-stream+1, ":method", "POST", ":scheme", "http", ":path", path, "content-type", "application/grpc")
				if stream == 1 {
					break
				}
			}
			for stream := uint32(7); stream >= 3; stream -= 2 {
				p.data(stream, append(prefix(0, 1<<20), make([]byte, 14_000)...))
				p.data(stream, make([]byte, 16_000))
			}
			p.data(1, append(prefix(0, 1<<20), make([]byte, 16_000)...))
		}, grpcStatus(codes.ResourceExhausted)},
		{"not POST", func(p *peer) {
			p.settings(1000)
			p.headers(1, ":method", "GET", ":scheme", "http", ":path", path, "content-type", "application/grpc")
		}, "405 "},
		{"not gRPC", func(p *peer) {
			p.settings(1000)
			p.headers(1, ":method", "POST", ":scheme", "http", ":path", path, "content-type", "application/grpc-web")
		}, "415 "},
		{"17 KiB of headers", func(p *peer) {
			p.settings(1000)
			p.open(1, slices.Repeat([]string{"x", strings.Repeat("~", 1000)}, 17)...)
		}, "431 "},
		{"a header field of 17 KiB", func(p *peer) {
			p.settings(1000)
			p.open(1, "x", strings.Repeat("~", 17<<10))
		}, "connection COMPRESSION_ERROR"},
		{"a megabyte of headers", func(p *peer) {
			p.settings(1000)
			var fields []string
			for i := range 1000 {
				fields = append(fields, "x", fmt.Sprint(i)+strings.Repeat("~", 1000))
			}
			p.open(1, fields...)
		}, "connection ENHANCE_YOUR_CALM"},
		{"no path", func(p *peer) {
			p.settings(1000)
			p.headers(1, ":method", "POST", ":scheme", "http", "content-type", "application/grpc")
		}, "reset PROTOCOL_ERROR"},
		{"header field of a connection", func(p *peer) {
			p.settings(1000)
			p.open(1, "connection", "close")
		}, "reset PROTOCOL_ERROR"},
		{"second request on a stream", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.must(p.frames.WriteRSTStream(1, http2.ErrCodeCancel))
			p.open(1)
		}, "connection STREAM_CLOSED"},
		{"DATA after RST_STREAM", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.must(p.frames.WriteRSTStream(1, http2.ErrCodeCancel))
			p.data(1, prefix(0, 10))
		}, "reset STREAM_CLOSED"},
		{"stream that depends on itself", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.must(p.frames.WritePriority(1, http2.PriorityParam{StreamDep: 1}))
		}, "reset PROTOCOL_ERROR"},
		{"even stream", func(p *peer) {
			p.settings(1000)
			p.open(2)
		}, "connection PROTOCOL_ERROR"},
		{"DATA of an idle stream", func(p *peer) {
			p.settings(1000)
			p.data(3, []byte("x"))
		}, "connection PROTOCOL_ERROR"},
		{"fifth stream", func(p *peer) {
			p.settings(1000)
			for stream := uint32(1); stream <= 9; stream += 2 {
				p.open(stream)
			}
			p.wantReset(9, "REFUSED_STREAM")
			p.must(p.frames.WriteRSTStream(1, http2.ErrCodeCancel))
			p.open(11)
			p.data(11, prefix(1, 0))
			if got := p.ends(11); got != grpcStatus(codes.Unimplemented) {
				p.Errorf("stream after a reset: %q", got)
			}
			p.bytes([]byte{0, 0, 0, 9, 0, 0, 0, 0, 1}) // CONTINUATION
		}, "connection PROTOCOL_ERROR"},
		{"window above its maximum", func(p *peer) {
			p.settings(1000)
			p.open(1)
			p.window(1, 1<<31-1)
		}, "reset FLOW_CONTROL_ERROR"},
		{"window of the connection above its maximum", func(p *peer) {
			p.settings(1000)
			p.window(0, 1<<31-1)
		}, "connection FLOW_CONTROL_ERROR"},
		{"PINGs", func(p *peer) {
			p.settings(1000)
			for range 200 {
				p.must(p.frames.WritePing(false, [8]byte{}))
			}
		}, "connection ENHANCE_YOUR_CALM"},
		{"empty DATA", func(p *peer) {
			p.settings(1000)
			p.open(1)
			for range 200 {
				p.data(1, nil)
			}
		}, "connection ENHANCE_YOUR_CALM"},
		{"rapid reset", func(p *peer) {
			p.settings(1000)
			for stream := uint32(3); stream < 400; stream += 2 {
				p.open(stream)
				p.must(p.frames.WriteRSTStream(stream, http2.ErrCodeCancel))
			}
		}, "connection ENHANCE_YOUR_CALM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPeer(t, address)
			tt.send(p)
			if got := p.ends(1); got != tt.want {
				t.Errorf("ended by %q, want %q", got, tt.want)
			}
			_ = p.conn.Close()
			a.send(response(t, tt.name, 100))
			want(t, healthy, tt.name, 100)
		})
	}
}

// TestStop checks that a client whose stream ends before its requests receives RST_STREAM with NO_ERROR.
func TestStop(t *testing.T) {
	_, _, address := serve(t, transport.DefaultLimits(), nil)
	p := newPeer(t, address)
	p.settings(1000)
	p.open(1)
	p.data(1, prefix(1, 10))
	if got := p.ends(1); got != " 12" {
		t.Fatalf("ended by %q, want trailers with status 12", got)
	}
	p.wantReset(1, "NO_ERROR")
}

// TestConnections checks the limit of connections.
func TestConnections(t *testing.T) {
	l := transport.DefaultLimits()
	l.Connections = 1
	_, _, address := serve(t, l, nil)
	s := open(t.Context(), t, dial(t, address, nil))
	want(t, s, "first", 10)
	p := newPeer(t, address)
	if got := p.ends(1); got != "closed" && !strings.Contains(got, "reset") {
		t.Errorf("second connection: %q, want it closed", got)
	}
}
