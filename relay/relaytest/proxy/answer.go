package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Servers that can answer in place of an origin, for [Link.Answer].

// AnswerHTTP1 answers by HTTP/1.1, like a web server or a load balancer without gRPC.
func AnswerHTTP1(conn net.Conn) {
	replyOnce(conn, []byte("HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 15\r\nConnection: close\r\n\r\n<h1>no</h1>\r\n\r\n"))
}

// AnswerTLS expects TLS, and rejects plaintext connections.
func AnswerTLS(conn net.Conn) {
	_ = tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS12}).Handshake() // fails without a ClientHello
}

// AnswerRandom sends some thousand random bytes.
func AnswerRandom(conn net.Conn) {
	b := make([]byte, 4096)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	replyOnce(conn, b)
}

// AnswerNothing accepts the connection, reads, and sends nothing.
func AnswerNothing(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// AnswerTruncated begins as a gRPC server does, and ends in the middle of a frame.
func AnswerTruncated(conn net.Conn) {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	_ = f.WriteSettings() // a buffer takes all
	_ = f.WriteData(1, false, make([]byte, 100))
	replyOnce(conn, b.Bytes()[:b.Len()-50])
}

// replyOnce sends b after the first bytes of the client.
func replyOnce(conn net.Conn, b []byte) {
	if _, err := conn.Read(make([]byte, pieceBytes)); err != nil {
		return
	}
	_, _ = conn.Write(b) // it fails only if the client has closed
}

// An HTTP2Answer answers a stream of a client.
type HTTP2Answer func(f *http2.Framer, stream uint32) error

// AnswerHTTP2 returns a correct HTTP/2 server whose streams are answered by answer.
func AnswerHTTP2(answer HTTP2Answer) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(conn, conn)
		for err := f.WriteSettings(); err == nil; {
			var frame http2.Frame
			if frame, err = f.ReadFrame(); err == nil {
				err = answerFrame(f, frame, answer)
			}
		}
	}
}

func answerFrame(f *http2.Framer, frame http2.Frame, answer HTTP2Answer) error {
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return f.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return f.WritePing(true, frame.Data)
		}
	case *http2.HeadersFrame:
		return answer(f, frame.StreamID)
	}
	return nil
}

// StreamReset ends a stream with RST_STREAM and a code.
func StreamReset(code http2.ErrCode) HTTP2Answer {
	return func(f *http2.Framer, stream uint32) error { return f.WriteRSTStream(stream, code) }
}

// StreamTrailersOnly ends a stream with a gRPC status without headers before, as a server rejects a call.
func StreamTrailersOnly(status, message string) HTTP2Answer {
	return func(f *http2.Framer, stream uint32) error {
		return writeHeaders(f, stream, true, ":status", "200", "content-type", "application/grpc", "grpc-status", status, "grpc-message", message)
	}
}

// StreamHTML answers a stream as a web server does that speaks HTTP/2.
func StreamHTML(f *http2.Framer, stream uint32) error {
	if err := writeHeaders(f, stream, false, ":status", "404", "content-type", "text/html"); err != nil {
		return err
	}
	return f.WriteData(stream, true, []byte("<h1>no</h1>"))
}

// StreamMessage sends one gRPC message, whatever it is, and leaves the stream open.
func StreamMessage(message []byte) HTTP2Answer {
	return func(f *http2.Framer, stream uint32) error {
		if err := writeHeaders(f, stream, false, ":status", "200", "content-type", "application/grpc"); err != nil {
			return err
		}
		prefix := []byte{0, byte(len(message) >> 24), byte(len(message) >> 16), byte(len(message) >> 8), byte(len(message))}
		return f.WriteData(stream, false, append(prefix, message...))
	}
}

// StreamGoAway ends the connection with GOAWAY as soon as anybody wants something of it.
func StreamGoAway(f *http2.Framer, _ uint32) error {
	if err := f.WriteGoAway(0, http2.ErrCodeNo, nil); err != nil {
		return err
	}
	return io.EOF
}

func writeHeaders(f *http2.Framer, stream uint32, end bool, fields ...string) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
}
