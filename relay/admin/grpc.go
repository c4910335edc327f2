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

// grpcRoutes are the methods of a gRPC server. They share the port with the other routes.
func grpcRoutes(server *grpc.Server) (routes []route) {
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			routes = append(routes, route{http.MethodPost, "/" + service + "/" + method.Name, unbounded(server), permission{operator: authz.Read}})
		}
	}
	return routes
}

// wrongPort is the error for xDS clients that connect to the admin port.
const wrongPort = "wrong port: this is the admin port of the relay; xDS clients connect to TENDER_LISTEN"

// isGRPC reports whether a request is a gRPC call.
func isGRPC(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// writeWrongPort answers a call of an unknown method with UNIMPLEMENTED, as a gRPC server does. A client shows its text;
// of an HTTP error it shows only the code.
func writeWrongPort(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(codes.Unimplemented)))
	w.Header().Set("Grpc-Message", wrongPort)
}

// unbounded removes the server's timeouts from streams, which have no maximum duration.
func unbounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		// Neither call fails on HTTP/2, and gRPC rejects other protocols.
		_ = c.SetReadDeadline(time.Time{})
		_ = c.SetWriteDeadline(time.Time{})
		next.ServeHTTP(w, r)
	})
}
