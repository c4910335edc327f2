package admin

import (
	"fmt"
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

// ownSite refuses what a page of another site may have a browser send.
func ownSite(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownHost(r) {
			writeError(w, http.StatusMisdirectedRequest, fmt.Sprintf("the Host header %.64q is neither localhost nor an address on loopback", r.Host))
			return
		}
		if err := cross.Check(r); err != nil || embedded(r) {
			writeError(w, http.StatusForbidden, "a browser sent this for a page of another site")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// embedded reports whether a page of another site has the answer as a part of it, such as
// an image: even what it may not read costs the relay something. A link from there is none.
func embedded(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// ownHost reports whether the request names its server in a way that leads nowhere else
// than to the browser's own host: by an address on loopback, or as localhost. A browser
// does not reach sockets of the file system.
func ownHost(r *http.Request) bool {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
