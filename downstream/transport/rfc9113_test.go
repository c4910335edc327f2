package transport

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// A rule is a requirement of RFC 9113 or RFC 7541 on a server, of which most have a case in h2spec.
type rule struct {
	section string
	name    string
	bare    bool // send sends the SETTINGS itself
	send    func(p *rogue)
	want    string // result of ends for stream 1, perhaps several separated by |
}

// rules are the requirements whose violation a client can cause with a few frames.
var rules = []rule{
	{"3.4", "preface that is none", true, func(p *rogue) { p.frame(http2.FramePing, 0, 0, make([]byte, 8)) },
		"connection PROTOCOL_ERROR"},
	{"3.4", "no SETTINGS first", true, func(p *rogue) { p.open(1) }, "connection PROTOCOL_ERROR"},
	{"3.4", "ACK of SETTINGS first", true, func(p *rogue) { p.frame(http2.FrameSettings, http2.FlagSettingsAck, 0, nil) },
		"connection PROTOCOL_ERROR"},
	{"4.1", "unknown frame type", false, func(p *rogue) {
		p.frame(0x16, 0xff, 0, []byte("x"))
		p.open(1, "grpc-encoding", "gzip")
	}, status200(codes.Unimplemented)},
	{"4.1", "undefined flags and reserved bit", false, func(p *rogue) {
		p.frame(http2.FramePing, 0x16, 0, make([]byte, 8))
		p.frame(http2.FramePing, 0, 1<<31, make([]byte, 8))
		p.open(1, "grpc-encoding", "gzip")
	}, status200(codes.Unimplemented)},
	{"4.2", "DATA above the maximum size", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FrameData, 0, 1, make([]byte, maxFrame+1))
	}, "connection FRAME_SIZE_ERROR"},
	{"4.2", "HEADERS above the maximum size", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, make([]byte, maxFrame+1))
	}, "connection FRAME_SIZE_ERROR"},
	{"4.3", "invalid header block", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, []byte{0x40})
	}, "connection COMPRESSION_ERROR"},
	{"4.3", "PRIORITY within a header block", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, 0, 1, encodeFields(nil, call()...))
		p.frame(http2.FramePriority, 0, 1, []byte{0, 0, 0, 0, 255})
	}, "connection PROTOCOL_ERROR"},
	{"4.3", "HEADERS of another stream within a header block", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, 0, 1, encodeFields(nil, call()...))
		p.open(3)
	}, "connection PROTOCOL_ERROR"},
	{"5.1", "DATA of an idle stream", false, func(p *rogue) { p.data(1, []byte("x")) }, "connection PROTOCOL_ERROR"},
	{"5.1", "RST_STREAM of an idle stream", false, func(p *rogue) {
		p.must(p.frames.WriteRSTStream(1, http2.ErrCodeCancel))
	}, "connection PROTOCOL_ERROR"},
	{"5.1", "WINDOW_UPDATE of an idle stream", false, func(p *rogue) {
		p.must(p.frames.WriteWindowUpdate(1, 100))
	}, "connection PROTOCOL_ERROR"},
	{"5.1", "CONTINUATION of an idle stream", false, func(p *rogue) {
		p.frame(http2.FrameContinuation, http2.FlagHeadersEndHeaders, 1, encodeFields(nil, call()...))
	}, "connection PROTOCOL_ERROR"},
	{"5.1", "DATA on a half-closed stream", false, func(p *rogue) {
		p.headers(1, http2.FlagHeadersEndStream, call("x-hold", "1")...)
		p.data(1, []byte("x"))
	}, "reset STREAM_CLOSED|" + status200(codes.OK)},
	{"5.1", "DATA after RST_STREAM", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WriteRSTStream(1, http2.ErrCodeCancel))
		p.data(1, prefix(0, 10))
	}, "reset STREAM_CLOSED"},
	{"5.1", "HEADERS after RST_STREAM", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WriteRSTStream(1, http2.ErrCodeCancel))
		p.open(1)
	}, "connection STREAM_CLOSED"},
	{"5.1", "DATA after the server has reset the stream", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WriteWindowUpdate(1, maxWindow))
		p.await("RST_STREAM", func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream })
		p.data(1, []byte("x"))
		p.ping() // the frame was ignored
		p.frame(http2.FrameData, 0, 0, nil)
	}, "connection PROTOCOL_ERROR"},
	{"5.1.1", "even stream", false, func(p *rogue) { p.open(2) }, "connection PROTOCOL_ERROR"},
	{"5.1.1", "lower stream", false, func(p *rogue) {
		p.open(5)
		p.open(3)
	}, "connection STREAM_CLOSED"},
	{"5.1.2", "too many streams", false, func(p *rogue) {
		for stream := uint32(3); stream < 3+2*100; stream += 2 {
			p.open(stream)
		}
		p.open(301)
		p.await("RST_STREAM", func(f http2.Frame) bool {
			r, is := f.(*http2.RSTStreamFrame)
			return is && r.StreamID == 301 && r.ErrCode == http2.ErrCodeRefusedStream
		})
		p.frame(http2.FrameData, 0, 0, nil)
	}, "connection PROTOCOL_ERROR"},
	{"5.3.1", "stream that depends on itself", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WritePriority(1, http2.PriorityParam{StreamDep: 1}))
	}, "reset PROTOCOL_ERROR"},
	{"5.3.1", "HEADERS that depend on themselves", false, func(p *rogue) {
		block := append([]byte{0, 0, 0, 1, 255}, encodeFields(nil, call()...)...)
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersPriority, 1, block)
	}, "reset PROTOCOL_ERROR"},
	{"6.1", "DATA of stream 0", false, func(p *rogue) { p.frame(http2.FrameData, 0, 0, []byte("x")) },
		"connection PROTOCOL_ERROR"},
	{"6.1", "padding as long as the payload", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FrameData, http2.FlagDataPadded, 1, []byte{6, 'x', 0, 0, 0, 0})
	}, "connection PROTOCOL_ERROR"},
	{"6.2", "HEADERS of stream 0", false, func(p *rogue) { p.open(0) }, "connection PROTOCOL_ERROR"},
	{"6.2", "HEADERS with too much padding", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersPadded, 1, []byte{9, 0x82})
	}, "connection PROTOCOL_ERROR"},
	{"6.3", "PRIORITY of stream 0", false, func(p *rogue) { p.frame(http2.FramePriority, 0, 0, make([]byte, 5)) },
		"connection PROTOCOL_ERROR"},
	{"6.3", "PRIORITY of 4 bytes", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FramePriority, 0, 1, make([]byte, 4))
	}, "connection FRAME_SIZE_ERROR|reset FRAME_SIZE_ERROR"},
	{"6.4", "RST_STREAM of stream 0", false, func(p *rogue) { p.frame(http2.FrameRSTStream, 0, 0, make([]byte, 4)) },
		"connection PROTOCOL_ERROR"},
	{"6.4", "RST_STREAM of 3 bytes", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FrameRSTStream, 0, 1, make([]byte, 3))
	}, "connection FRAME_SIZE_ERROR"},
	{"6.5", "ACK of SETTINGS with a payload", false, func(p *rogue) {
		p.frame(http2.FrameSettings, http2.FlagSettingsAck, 0, []byte{0})
	}, "connection FRAME_SIZE_ERROR"},
	{"6.5", "SETTINGS of stream 1", false, func(p *rogue) { p.frame(http2.FrameSettings, 0, 1, make([]byte, 6)) },
		"connection PROTOCOL_ERROR"},
	{"6.5", "SETTINGS of 3 bytes", false, func(p *rogue) { p.frame(http2.FrameSettings, 0, 0, make([]byte, 3)) },
		"connection FRAME_SIZE_ERROR"},
	{"6.5.2", "ENABLE_PUSH of 2", false, func(p *rogue) {
		p.must(p.frames.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2}))
	}, "connection PROTOCOL_ERROR"},
	{"6.5.2", "INITIAL_WINDOW_SIZE above the maximum", false, func(p *rogue) {
		p.must(p.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}))
	}, "connection FLOW_CONTROL_ERROR"},
	{"6.5.2", "MAX_FRAME_SIZE below the minimum", false, func(p *rogue) {
		p.must(p.frames.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<14 - 1}))
	}, "connection PROTOCOL_ERROR"},
	{"6.5.2", "MAX_FRAME_SIZE above the maximum", false, func(p *rogue) {
		p.must(p.frames.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 24}))
	}, "connection PROTOCOL_ERROR"},
	{"6.5.2", "unknown setting", false, func(p *rogue) {
		p.must(p.frames.WriteSettings(http2.Setting{ID: 0xff, Val: 1}))
		p.open(1, "grpc-encoding", "gzip")
	}, status200(codes.Unimplemented)},
	{"6.6", "PUSH_PROMISE", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FramePushPromise, http2.FlagPushPromiseEndHeaders, 1, append([]byte{0, 0, 0, 2}, encodeFields(nil, call()...)...))
	}, "connection PROTOCOL_ERROR"},
	{"6.7", "PING of stream 1", false, func(p *rogue) { p.frame(http2.FramePing, 0, 1, make([]byte, 8)) },
		"connection PROTOCOL_ERROR"},
	{"6.7", "PING of 6 bytes", false, func(p *rogue) { p.frame(http2.FramePing, 0, 0, make([]byte, 6)) },
		"connection FRAME_SIZE_ERROR"},
	{"6.8", "GOAWAY of stream 1", false, func(p *rogue) { p.frame(http2.FrameGoAway, 0, 1, make([]byte, 8)) },
		"connection PROTOCOL_ERROR"},
	{"6.9", "WINDOW_UPDATE by 0", false, func(p *rogue) { p.frame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4)) },
		"connection PROTOCOL_ERROR"},
	{"6.9", "WINDOW_UPDATE of a stream by 0", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4))
	}, "reset PROTOCOL_ERROR"},
	{"6.9", "WINDOW_UPDATE of 3 bytes", false, func(p *rogue) { p.frame(http2.FrameWindowUpdate, 0, 0, make([]byte, 3)) },
		"connection FRAME_SIZE_ERROR"},
	{"6.9.1", "window above its maximum", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WriteWindowUpdate(1, maxWindow))
	}, "reset FLOW_CONTROL_ERROR"},
	{"6.9.1", "window of the connection above its maximum", false, func(p *rogue) {
		p.must(p.frames.WriteWindowUpdate(0, maxWindow))
	}, "connection FLOW_CONTROL_ERROR"},
	{"6.9.2", "window above its maximum by SETTINGS", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WriteWindowUpdate(1, maxWindow-defaultWindow))
		p.must(p.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}))
	}, "connection FLOW_CONTROL_ERROR"},
	{"6.10", "CONTINUATION without HEADERS", false, func(p *rogue) {
		p.open(1)
		p.frame(http2.FrameContinuation, http2.FlagHeadersEndHeaders, 1, nil)
	}, "connection PROTOCOL_ERROR"},
	{"6.10", "several CONTINUATION frames", false, func(p *rogue) {
		block := encodeFields(nil, call("grpc-encoding", "gzip")...)
		p.frame(http2.FrameHeaders, 0, 1, block[:10])
		p.frame(http2.FrameContinuation, 0, 1, block[10:20])
		p.frame(http2.FrameContinuation, 0, 1, nil)
		p.frame(http2.FrameContinuation, http2.FlagHeadersEndHeaders, 1, block[20:])
	}, status200(codes.Unimplemented)},
	{"6.10", "CONTINUATION of stream 0", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, 0, 1, encodeFields(nil, call()...))
		p.frame(http2.FrameContinuation, http2.FlagHeadersEndHeaders, 0, nil)
	}, "connection PROTOCOL_ERROR"},
	{"8.1", "second HEADERS without END_STREAM", false, func(p *rogue) {
		p.open(1)
		p.headers(1, 0, "x", "y")
	}, "reset PROTOCOL_ERROR"},
	{"8.1", "trailers", false, func(p *rogue) {
		p.open(1)
		p.headers(1, http2.FlagHeadersEndStream, "x", "y")
	}, status200(codes.OK)},
	{"8.1", "pseudo field in trailers", false, func(p *rogue) {
		p.open(1)
		p.headers(1, http2.FlagHeadersEndStream, ":method", "POST")
	}, "reset PROTOCOL_ERROR"},
	{"8.2.1", "name in upper case", false, func(p *rogue) { p.open(1, "X-Upper", "x") }, "reset PROTOCOL_ERROR"},
	{"8.2.1", "value with a line break", false, func(p *rogue) { p.open(1, "x", "a\r\nb") }, "reset PROTOCOL_ERROR"},
	{"8.2.2", "field of a connection", false, func(p *rogue) { p.open(1, "connection", "close") }, "reset PROTOCOL_ERROR"},
	{"8.2.2", "TE other than trailers", false, func(p *rogue) { p.open(1, "te", "gzip") }, "reset PROTOCOL_ERROR"},
	{"8.3", "unknown pseudo field", false, func(p *rogue) { p.headers(1, 0, append([]string{":test", "x"}, call()...)...) },
		"reset PROTOCOL_ERROR"},
	{"8.3", "pseudo field of responses", false, func(p *rogue) {
		p.headers(1, 0, append([]string{":status", "200"}, call()...)...)
	}, "reset PROTOCOL_ERROR"},
	{"8.3", "pseudo field after others", false, func(p *rogue) { p.open(1, ":authority", "x") }, "reset PROTOCOL_ERROR"},
	{"8.3.1", "no path", false, func(p *rogue) {
		p.headers(1, 0, ":method", "POST", ":scheme", "http", "content-type", "application/grpc")
	}, "reset PROTOCOL_ERROR"},
	{"8.3.1", "empty path", false, func(p *rogue) {
		p.headers(1, 0, ":method", "POST", ":scheme", "http", ":path", "", "content-type", "application/grpc")
	}, "reset PROTOCOL_ERROR"},
	{"8.3.1", "two methods", false, func(p *rogue) { p.headers(1, 0, append([]string{":method", "POST"}, call()...)...) },
		"reset PROTOCOL_ERROR"},
	{"HPACK 2.3.3", "index that does not exist", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, []byte{0x80 | 70})
	}, "connection COMPRESSION_ERROR"},
	{"HPACK 4.2", "table size within a block", false, func(p *rogue) {
		field := []byte{0x40, 1, 'x', 1, 'y'} // enters the dynamic table
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, append(field, 0x20))
	}, "connection COMPRESSION_ERROR"},
	{"HPACK 5.2", "invalid padding of Huffman codes", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, append(encodeFields(nil, call()...), 0, 0x81, 0, 0x81, 0))
	}, "connection COMPRESSION_ERROR"},
	{"HPACK 6.3", "table size above the limit", false, func(p *rogue) {
		p.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, append([]byte{0x3f, 0xe2, 0x1f}, encodeFields(nil, call()...)...))
	}, "connection COMPRESSION_ERROR"},
	{"gRPC", "method other than POST", false, func(p *rogue) {
		p.headers(1, 0, ":method", "GET", ":scheme", "http", ":path", path, "content-type", "application/grpc")
	}, fmt.Sprint("405 ", int(codes.Internal))},
	{"gRPC", "content type of grpc-web", false, func(p *rogue) {
		p.headers(1, 0, ":method", "POST", ":scheme", "http", ":path", path, "content-type", "application/grpc-web")
	}, fmt.Sprint("415 ", int(codes.InvalidArgument))},
	{"gRPC", "message that ends early", false, func(p *rogue) {
		p.open(1)
		p.must(p.frames.WriteData(1, true, prefix(0, 10)))
	}, status200(codes.Internal)},
	{"gRPC", "compressed message", false, func(p *rogue) {
		p.open(1)
		p.data(1, prefix(1, 10))
	}, status200(codes.Internal)},
	{"gRPC", "unknown flag of a message", false, func(p *rogue) {
		p.open(1)
		p.data(1, prefix(2, 10))
	}, status200(codes.Internal)},
	{"gRPC", "message above the limit", false, func(p *rogue) {
		p.open(1)
		p.data(1, prefix(0, 16<<20+1))
	}, status200(codes.ResourceExhausted)},
	{"gRPC", "malformed timeout", false, func(p *rogue) { p.open(1, "grpc-timeout", "1x") }, status200(codes.Internal)},
	{"gRPC", "timeout", false, func(p *rogue) { p.open(1, "grpc-timeout", "1n") }, status200(codes.DeadlineExceeded)},
	{"gRPC", "malformed binary field", false, func(p *rogue) { p.open(1, "x-bin", "$") }, status200(codes.Internal)},
	{"gRPC", "unknown method", false, func(p *rogue) {
		p.headers(1, 0, ":method", "POST", ":scheme", "http", ":path", "/no/method", "content-type", "application/grpc")
	}, status200(codes.Unimplemented)},
	{"gRPC", "63 KiB of header fields", false, func(p *rogue) {
		p.open(1, "grpc-encoding", "gzip", "x", strings.Repeat("~", 63<<10))
	}, status200(codes.Unimplemented)},
	{"gRPC", "header fields above the limit", false, func(p *rogue) {
		var fields []string
		for range 65 {
			fields = append(fields, "x", strings.Repeat("x", 1<<10))
		}
		p.open(1, fields...)
	}, "reset FRAME_SIZE_ERROR"},
	{"gRPC", "a megabyte of header fields", false, func(p *rogue) {
		p.open(1, "x", strings.Repeat("~", 1<<20))
	}, "connection PROTOCOL_ERROR|connection COMPRESSION_ERROR|connection ENHANCE_YOUR_CALM"},
	{"gRPC", "too many pings", false, func(p *rogue) {
		for range 4 {
			p.must(p.frames.WritePing(false, [8]byte{}))
		}
	}, "connection ENHANCE_YOUR_CALM"},
}

// status200 returns the result of ends for a response with a gRPC status.
func status200(c codes.Code) string { return fmt.Sprintf("200 %d", c) }

// TestRFC9113 checks the reaction to clients that use or violate a rule, each on its own connection. The stream of
// another client is not affected.
func TestRFC9113(t *testing.T) {
	f := start(t, options{})
	healthy := subscribe(t, dial(t, f, nil))
	want(t, healthy, "first", 10)
	for _, tt := range rules {
		t.Run(tt.section+" "+tt.name, func(t *testing.T) {
			p := newRogue(t, f.address)
			if !tt.bare {
				p.must(p.frames.WriteSettings())
			}
			tt.send(p)
			got := p.ends(1)
			if !contains(tt.want, got) {
				t.Errorf("ended by %q, want %q", got, tt.want)
			}
			_ = p.conn.Close()
			f.send(response(tt.name, 100))
			want(t, healthy, tt.name, 100)
		})
	}
}

// contains reports whether alternatives, separated by |, have a text.
func contains(alternatives, text string) bool {
	for a := range strings.SplitSeq(alternatives, "|") {
		if a == text {
			return true
		}
	}
	return false
}
