package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"unicode"

	"github.com/xdstender/tender/relay/authz"
)

// headers are the security headers of all responses. The policy blocks inline scripts and styles, and those of other
// servers.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY", // for browsers without frame-ancestors
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cache-Control":                "no-store",
}

// withHeaders adds the security headers to the responses of a handler.
func withHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		next.ServeHTTP(w, r)
	})
}

// OperatorHeader names the operator on whose behalf a peer sends a command. Requests of other clients with the header
// are refused.
const OperatorHeader = "Tender-Operator"

// A guard decides which requests of operators are served.
type guard struct {
	tls         *TLS                  // nil without TLS
	permissions map[string]permission // by pattern
	actions     *actions              // records refused commands
	logger      *slog.Logger
}

// protect refuses requests that a browser sends for a page of another site. With TLS, it also refuses requests that the
// identity of the client does not permit. It adds the caller to the context.
func (g *guard) protect(mux *http.ServeMux) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.checkHost(r); err != nil {
			writeError(w, http.StatusMisdirectedRequest, err.Error())
			return
		}
		if err := crossOrigin.Check(r); err != nil || embedded(r) {
			writeError(w, http.StatusForbidden, "a browser sent this request for a page of another site")
			return
		}
		_, pattern := mux.Handler(r)
		need, served := g.permissions[pattern]
		if !served {
			need.operator = authz.Read // also for a 404
		}
		caller, err := g.caller(r, need)
		if err != nil {
			g.recordRefusal(r, pattern, err)
			writeError(w, http.StatusForbidden, err.Error())
			return
		}
		if !served && isGRPC(r) {
			writeWrongPort(w)
			return
		}
		if strings.HasPrefix(r.URL.Path, apiPrefix) && (!served || pattern == pagesPattern) {
			writeUnknown(w, r, mux)
			return
		}
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
}

// apiPrefix is the prefix of the paths whose responses are JSON. pagesPattern is the pattern of pages, which serve all
// other paths.
const (
	apiPrefix    = "/api/"
	pagesPattern = http.MethodGet + " /"
)

// writeUnknown writes the response to a request for a path, or a method of it, that the API does not have.
func writeUnknown(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern == "" || pattern == pagesPattern {
			continue
		}
		allow := method
		if method == http.MethodGet {
			allow = "GET, HEAD"
		}
		w.Header().Set("Allow", allow)
		writeError(w, http.StatusMethodNotAllowed, fmt.Sprintf("%.64s is not allowed; use %s", r.Method, method))
		return
	}
	writeError(w, http.StatusNotFound, fmt.Sprintf("the API has no path %.256q", r.URL.Path))
}

// recordRefusal logs a refused request. It records a refused command as an action only if the sender may read,
// because other clients could fill the list of actions.
func (g *guard) recordRefusal(r *http.Request, pattern string, err error) {
	g.logger.LogAttrs(r.Context(), slog.LevelWarn, "operator request refused",
		slog.String("from", r.RemoteAddr), slog.String("path", r.URL.Path), slog.Any("err", err))
	if g.permissions[pattern].operator != authz.Act {
		return
	}
	if reader, readErr := g.identity(r, authz.Read); readErr == nil {
		command := strings.TrimPrefix(pattern, http.MethodPost+" /api/v1/")
		g.actions.record(r, newCaller(r, reader), command, nil, Refuse(http.StatusForbidden, err))
	}
}

// caller returns the sender of a request, or an error if the request is not permitted. A request with OperatorHeader
// was forwarded by a peer.
func (g *guard) caller(r *http.Request, need permission) (Caller, error) {
	operator, forwarded := r.Header[OperatorHeader]
	if !forwarded {
		identity, err := g.identity(r, need.operator)
		if err != nil && need.peers {
			if peer, peerErr := g.identity(r, authz.Peer); peerErr == nil {
				identity, err = peer, nil
			}
		}
		return newCaller(r, identity), err
	}
	if r.TLS == nil {
		return Caller{}, fmt.Errorf("only peers with a client certificate may send the header %s", OperatorHeader)
	}
	peer, err := g.identity(r, authz.Peer)
	switch {
	case err != nil:
		return Caller{}, fmt.Errorf("only peers may send the header %s: %w", OperatorHeader, err)
	case !need.forwarded:
		return Caller{}, fmt.Errorf("the header %s: peers may not forward requests to %.64q", OperatorHeader, r.URL.Path)
	case len(operator) != 1 || operator[0] == "" || len(operator[0]) > maxOperatorBytes,
		strings.ContainsFunc(operator[0], unicode.IsControl):
		return Caller{}, fmt.Errorf("the header %s: want one identity of at most %d bytes", OperatorHeader, maxOperatorBytes)
	}
	caller := newCaller(r, operator[0])
	caller.Via = peer
	return caller, nil
}

// maxOperatorBytes is the maximum length of the operator in OperatorHeader.
const maxOperatorBytes = 1 << 10

// identity returns the identity of the client, or an error if it lacks a permission. Clients without TLS are on this
// host and have all permissions except those of peers.
func (g *guard) identity(r *http.Request, may authz.Permission) (identity string, err error) {
	switch {
	case r.TLS == nil && (may == authz.Read || may == authz.Act):
		return "local", nil
	case r.TLS == nil || len(r.TLS.VerifiedChains) == 0:
		return "", errors.New("an operator needs a client certificate")
	}
	return g.tls.Operator(r.TLS.PeerCertificates[0], may)
}

// embedded reports whether a page of another site loads the response as a part, such as an image. That costs the relay
// even if the page cannot read the response. Following a link from another site is not embedding.
func embedded(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// checkHost returns an error if the Host header does not name this server: without TLS, localhost or a loopback
// address; with TLS, any address, or a name of the certificate. A Unix socket cannot be reached from a page, so any
// Host is valid.
func (g *guard) checkHost(r *http.Request) error {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return nil
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	addr, err := netip.ParseAddr(host)
	switch isAddr := err == nil; {
	case strings.EqualFold(host, "localhost"), isAddr && addr.Unmap().IsLoopback():
		return nil
	case r.TLS == nil:
		return fmt.Errorf("the Host header %.64q is neither localhost nor a loopback address", r.Host)
	case isAddr, g.tls.IsNamed(host):
		return nil
	}
	return fmt.Errorf("the Host header %.64q is neither an address nor a name of the certificate of the relay", r.Host)
}
