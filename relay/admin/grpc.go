package admin

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

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

// wrongPort is what a client of xDS is answered that connects to the port of operators.
const wrongPort = "wrong port: this is the admin port of the relay; xDS clients connect to TENDER_LISTEN"

// isGRPC reports whether a request is a call of gRPC.
func isGRPC(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// writeWrongPort answers a call of a method that is not served with UNIMPLEMENTED, as a gRPC server would: a client
// shows the text of that, and of an HTTP error only the code.
func writeWrongPort(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(codes.Unimplemented)))
	w.Header().Set("Grpc-Message", wrongPort)
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
