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

// grpcRoutes returns a route for each method of a gRPC server. They share the port with the other routes.
func grpcRoutes(server *grpc.Server) (routes []route) {
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			path := "/" + service + "/" + method.Name
			routes = append(routes, route{http.MethodPost, path, withoutTimeouts(server), permission{operator: authz.Read}})
		}
	}
	return routes
}

// wrongPort is the error for xDS clients that connect to an admin address.
const wrongPort = "wrong port: this is an admin address of the relay; xDS clients connect to TENDER_LISTEN"

// isGRPC reports whether a request is a gRPC call.
func isGRPC(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// writeWrongPort responds to a call of an unknown method with UNIMPLEMENTED, as a gRPC server does. Clients show the
// text of a gRPC status, but only the code of an HTTP error.
func writeWrongPort(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(codes.Unimplemented)))
	w.Header().Set("Grpc-Message", wrongPort)
}

// withoutTimeouts removes the timeouts of the server, because streams have no maximum duration.
func withoutTimeouts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		// The calls do not fail on HTTP/2, and the gRPC server refuses other protocols.
		_ = c.SetReadDeadline(time.Time{})
		_ = c.SetWriteDeadline(time.Time{})
		next.ServeHTTP(w, r)
	})
}
