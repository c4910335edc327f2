package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// headers keep a browser from doing harm with what it is answered. Scripts and styles
// come from the server alone, never out of the page's own text.
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

// guard refuses what a page of another site may have a browser send, and by TLS all but
// operators.
func (s *Server) guard(next http.Handler) http.Handler {
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
		if _, err := s.operator(r); err != nil {
			s.cfg.Logger.LogAttrs(r.Context(), slog.LevelWarn, "operator refused",
				slog.String("from", r.RemoteAddr), slog.String("path", r.URL.Path), slog.Any("err", err))
			writeError(w, http.StatusForbidden, err.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// operator returns who sent a request. On this host, nobody has to say.
func (s *Server) operator(r *http.Request) (who string, err error) {
	if r.TLS == nil {
		return "local", nil
	}
	if len(r.TLS.VerifiedChains) == 0 {
		return "", errors.New("an operator needs a client certificate")
	}
	return s.cfg.TLS.Operator(r.TLS.PeerCertificates[0])
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
