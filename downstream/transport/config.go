package transport

import (
	"net/http"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/xdstender/tender/downstream/guard"
)

// Config configures a [Server].
type Config struct {
	// Guard limits the resources that clients use.
	Guard *guard.Guard

	// Credentials perform the handshake of a connection. TLS must offer h2 by ALPN.
	Credentials credentials.TransportCredentials

	// Streams has a function for each method that the server serves itself, by its path. It is called for a new stream
	// by the goroutine that reads the connection, and must not block. It returns nil if it has called [Stream.End].
	Streams map[string]func(*Stream) Receiver

	// Other serves all other requests. It must be usable by gRPC, as a *grpc.Server is, with [PeerOptions].
	Other http.Handler

	MaxMessageBytes int // length of a request; for Other, its own limit applies
	MaxStreams      int // open streams of a connection
	MaxHeaderBytes  int // uncompressed header fields of a request, as HTTP/2 counts them

	// Window is the receive window of connections and streams, in bytes.
	Window int

	// Handshake is the timeout from the connection to the first SETTINGS of the client.
	Handshake time.Duration

	// Keepalive has the interval and the timeout of pings, and the maximum age of a connection.
	Keepalive keepalive.ServerParameters

	// PingInterval is the minimum interval of a client's pings. A connection with several shorter ones is closed.
	PingInterval time.Duration
}

// A Receiver handles the requests of a stream. Calls do not overlap.
type Receiver interface {
	// Offer handles a request of at most 64 KiB if that takes no time. It is called by the goroutine that reads the connection,
	// must not block, and must not keep the request. If it returns false, Continue follows.
	Offer(request []byte) (done bool)

	// Continue handles the request that Offer has not handled. It may block.
	Continue()

	// Receive handles a request. It may block.
	Receive(request []byte)

	// Closed is called at most once, after the last request: with io.EOF if the client has half-closed the stream, or
	// with a gRPC status. It is not called after [Stream.End]. It may block.
	Closed(err error)
}
