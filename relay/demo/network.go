package demo

import (
	"context"
	"net"

	"google.golang.org/grpc"
)

// A network replaces the sockets of a demo by listeners in memory, for tests in virtual time. The zero value is sockets.
type network struct {
	origin, clients, operators net.Listener

	dial func(ctx context.Context, to net.Listener) (net.Conn, error)
}

// dialOptions returns the options of a gRPC connection to a listener, nil for a socket.
func (n network) dialOptions(to net.Listener) []grpc.DialOption {
	if to == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.dial(ctx, to) })}
}

// dialHTTP returns a function that connects to the admin address, nil for a socket.
func (n network) dialHTTP() func(ctx context.Context, network, address string) (net.Conn, error) {
	if n.operators == nil {
		return nil
	}
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(ctx, n.operators) }
}

// listeners returns the listener in memory that replaces a socket, if there is one.
func listeners(l net.Listener) []net.Listener {
	if l == nil {
		return nil
	}
	return []net.Listener{l}
}
