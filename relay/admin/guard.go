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

// headers restrict what a browser does with a response. Scripts and styles are loaded from the server only; inline ones
// are blocked.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY", // for browsers that do not know frame-ancestors
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cache-Control":                "no-store",
}

func withHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		next.ServeHTTP(w, r)
	})
}

// OperatorHeader names the operator on whose behalf a peer sends a command. It counts from peers only.
const OperatorHeader = "Tender-Operator"

// guard rejects requests that a page of another site made a browser send, and with TLS requests that the identity of
// the client does not permit. It adds the caller to the context.
func (s *Server) guard(mux *http.ServeMux) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.ownHost(r); err != nil {
			writeError(w, http.StatusMisdirectedRequest, err.Error())
			return
		}
		if err := cross.Check(r); err != nil || embedded(r) {
			writeError(w, http.StatusForbidden, "a browser sent this for a page of another site")
			return
		}
		_, pattern := mux.Handler(r)
		need, served := s.permissions[pattern]
		if !served {
			need.operator = authz.Read // a 404 needs it too
		}
		caller, err := s.caller(r, need)
		if err != nil {
			s.refuse(r, pattern, err)
			writeError(w, http.StatusForbidden, err.Error())
			return
		}
		if !served && isGRPC(r) {
			writeWrongPort(w)
			return
		}
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
}

// refuse logs a rejected request. A rejected command is recorded as an action if its sender may read: other clients
// could fill the history.
func (s *Server) refuse(r *http.Request, pattern string, err error) {
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelWarn, "operator refused",
		slog.String("from", r.RemoteAddr), slog.String("path", r.URL.Path), slog.Any("err", err))
	if s.permissions[pattern].operator != authz.Act {
		return
	}
	if reader, unknown := s.identity(r, authz.Read); unknown == nil {
		command := strings.TrimPrefix(pattern, http.MethodPost+" /api/v1/")
		s.record(r, newCaller(r, reader), command, nil, Refuse(http.StatusForbidden, err))
	}
}

// caller returns the sender of a request, or why the request is not permitted. A request that names an operator was
// forwarded by a peer.
func (s *Server) caller(r *http.Request, need permission) (Caller, error) {
	operator, forwarded := r.Header[OperatorHeader]
	if !forwarded {
		who, err := s.identity(r, need.operator)
		if err != nil && need.peers {
			if peer, no := s.identity(r, authz.Peer); no == nil {
				who, err = peer, nil
			}
		}
		return newCaller(r, who), err
	}
	if r.TLS == nil {
		return Caller{}, fmt.Errorf("the header %s is for peers, which need a client certificate", OperatorHeader)
	}
	peer, err := s.identity(r, authz.Peer)
	switch {
	case err != nil:
		return Caller{}, fmt.Errorf("the header %s is for peers: %w", OperatorHeader, err)
	case !need.forwarded:
		return Caller{}, fmt.Errorf("the header %s: peers forward nothing to %.64q", OperatorHeader, r.URL.Path)
	case len(operator) != 1 || operator[0] == "" || len(operator[0]) > maxOperatorBytes || strings.ContainsFunc(operator[0], unicode.IsControl):
		return Caller{}, fmt.Errorf("the header %s: want one identity of at most %d bytes", OperatorHeader, maxOperatorBytes)
	}
	caller := newCaller(r, operator[0])
	caller.Via = peer
	return caller, nil
}

// maxOperatorBytes bounds the operator that a peer names.
const maxOperatorBytes = 1 << 10

// identity returns the identity of a request, or why it lacks the permission. Clients on this host need no identity, and
// peers are never on this host.
func (s *Server) identity(r *http.Request, may authz.Permission) (who string, err error) {
	switch {
	case r.TLS == nil && may != authz.Peer:
		return "local", nil
	case r.TLS == nil || len(r.TLS.VerifiedChains) == 0:
		return "", errors.New("an operator needs a client certificate")
	}
	return s.cfg.TLS.Operator(r.TLS.PeerCertificates[0], may)
}

// embedded reports whether another site's page loads the response as a part of itself, such as an image, which costs
// the relay even if the page cannot read it. A link from another site is not embedded.
func embedded(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// ownHost returns an error if the Host header does not name this server: without TLS, localhost or a loopback address;
// with TLS, any address, or a name of the certificate. A Unix socket cannot be reached from a page, so any Host is
// valid.
func (s *Server) ownHost(r *http.Request) error {
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
		return fmt.Errorf("the Host header %.64q is neither localhost nor an address on loopback", r.Host)
	case isAddr, s.cfg.TLS.IsNamed(host):
		return nil
	}
	return fmt.Errorf("the Host header %.64q is neither an address nor a name that the relay's certificate is for", r.Host)
}
