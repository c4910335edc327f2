// Package admin is the HTTP server for operators, their browsers and probes. The relay passes functions that return the
// status.
//
// # Two servers
//
// The server for probes ([Server.ServeProbes]) has /livez, /readyz and /metrics only. Its responses contain no secrets,
// so it can listen on addresses that a kubelet and Prometheus can reach. The server for operators ([Server.Serve]) also
// serves GET /api/v1/status ([Status]), the other GET requests of the API, and POST /api/v1/NAME for each [Command].
// If [Config.Debug] is set, it serves /debug/pprof. It listens on loopback or on a Unix socket. On other addresses
// ([Server.ServeTLS]), [TLS] identifies operators. It is protected from pages of other sites in a browser:
//
//   - A request whose Host is neither localhost nor a loopback address is refused, to prevent DNS rebinding. With TLS,
//     other addresses and the names of the certificate are accepted too.
//   - A GET changes no state. Commands are POST requests with application/json, which no HTML form sends. The server
//     refuses commands that the browser marks as sent by another site, and GET requests for parts of a page of another
//     site.
//   - Response headers forbid inline scripts, framing by other sites, and content sniffing.
//
// # Concurrency properties
//
// The methods of a server may be called from any goroutine, and it calls the functions of its [Config] from any
// goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package admin
