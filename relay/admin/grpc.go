package admin

import (
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/authz"
)

// grpcRoutes are the methods of a gRPC server, which come by HTTP/2 on the same port as all
// else.
func grpcRoutes(server *grpc.Server) (routes []route) {
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			routes = append(routes, route{http.MethodPost, "/" + service + "/" + method.Name, unbounded(server), permission{operator: authz.Read}})
		}
	}
	return routes
}

// unbounded has the server's own bounds not end a stream, which lasts for as long as its
// client wants.
func unbounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		// Neither fails on a connection of HTTP/2, and gRPC refuses others.
		_ = c.SetReadDeadline(time.Time{})
		_ = c.SetWriteDeadline(time.Time{})
		next.ServeHTTP(w, r)
	})
}
