// Package transport is the server side of HTTP/2 and gRPC for long-lived streams with few messages, such as those of
// ADS. It is an alternative to the server transport of grpc-go (TENDER_TRANSPORT). All methods other than those in
// [Config.Streams] are passed to an [http.Handler] on the same connection, which is a gRPC server of grpc-go.
//
// # Where to read
//
// A connection (conn.go) has one goroutine, which reads. It holds no buffer while it waits, and processes all frames
// that it has read (read.go, receive.go) before it waits again. A request goes to the [Receiver] of its stream
// (inbox.go): the reading goroutine offers it, and a goroutine that exists as long as requests wait handles what takes
// longer. Goroutines that send write to the socket themselves, without blocking (send.go). While a socket accepts no
// more bytes, its connection has a second goroutine, which waits for the socket.
//
//	config.go       configuration
//	server.go       listeners and connections
//	conn.go         the life of a connection
//	socket_….go     reads that hold no buffer, and writes that do not block
//	read.go         from bytes to frames
//	receive.go      what each frame does
//	headers.go      header fields of requests and responses
//	stream.go       the methods of a stream
//	inbox.go        requests until they are handled
//	send.go         flow control and batches of frames
//	tls.go          the connection below TLS
//	keepalive.go    pings, maximum age, and the end of a connection in two steps
//	other.go        all other methods, by an http.Handler
//
// # Limits
//
// The limits are those of package guard (B.35). They are checked where bytes are read: each frame is counted once it is
// complete, and DATA is charged before it is copied. Frames of a response wait in the queue of their stream as
// references to shared bytes. A frame header is created when the flow-control windows admit the frame.
//
// # Concurrency properties
//
// The reading goroutine owns the state of the parser. Conn.mu guards everything else of a connection and its streams.
// It is held while frames are written to the socket, which does not block. Methods of a Receiver are called without it.
//
// The package is not a stable API: programs that embed Tender use package relay.
package transport
