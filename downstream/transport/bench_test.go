package transport

import (
	"fmt"
	"testing"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// BenchmarkSend measures a response from SendMsg to the frames of a batch, without the socket. Its body is shared by all
// streams.
func BenchmarkSend(b *testing.B) {
	const typeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	for _, gzip := range []bool{false, true} {
		b.Run(fmt.Sprintf("gzip=%t", gzip), func(b *testing.B) {
			body := wire.NewDeltaBody(typeURL, "7")
			body.Add(check.Must(wire.NewResource(typeURL, "a", "1", make([]byte, 1024))), 0)
			r := &wire.Response{Body: body.Join(), Nonce: "12345", Gzip: gzip}
			c := &Conn{}
			s := &Stream{conn: c, id: 1, headers: true}
			b.ReportAllocs()
			for b.Loop() {
				c.window, s.window.send = defaultWindow, defaultWindow
				check.OK(b, s.SendMsg(r))
				c.batch().release()
			}
			if s.pending() || s.unsent != 0 {
				b.Fatalf("%d bytes were not sent", s.unsent)
			}
		})
	}
}
