// Package admin is the relay's side for operators: what they, their probes and their
// browsers may ask of it, over HTTP. It knows neither xDS nor the relay, which tells
// it by functions how everything stands.
//
// # Two servers
//
// The probes' ([Server.ServeProbes]) have /livez, /readyz and /metrics, and nothing
// else: nothing that they say is a secret, so that they may listen where a kubelet and
// Prometheus find them. The admin's ([Server.Serve]) have these too, /api/v1/status
// ([Status]), a POST /api/v1/NAME for each [Command], and /debug/pprof if [Config.Debug]
// says so. They listen on loopback, or on a socket of the file system; elsewhere
// ([Server.ServeTLS]) they are for those whom [TLS] takes for operators. They have to be safe
// from a browser that runs there and from the pages that it shows:
//
//   - A request whose Host is neither localhost nor an address on loopback is refused:
//     the page of an attacker whose name resolves to 127.0.0.1 gets nothing (DNS
//     rebinding). By TLS, other addresses and the names of the certificate are good too.
//   - No GET changes anything. What does is a POST of application/json, which no form
//     sends, and which is refused if a browser says that another site's page sent it; as
//     is a GET for a part of such a page.
//   - Answers forbid a browser to run a script that stands in a page, to show one
//     inside another site's, and to take one for anything but what it is.
//
// # Concurrency properties
//
// A server's methods may be called from any goroutine, and call the functions of its
// [Config] from any.
//
// It is no stable API: programs that embed Tender use package relay.
package admin
