package admin

import (
	"net/http"
	"net/http/pprof"
)

// debugRoutes are what go tool pprof asks. The package adds them to http.DefaultServeMux
// too, which nobody serves.
func debugRoutes() []route {
	const begin = "/debug/pprof/"
	return []route{
		{http.MethodGet, begin, http.HandlerFunc(pprof.Index)}, // and the profiles by name
		{http.MethodGet, begin + "cmdline", http.HandlerFunc(pprof.Cmdline)},
		{http.MethodGet, begin + "profile", http.HandlerFunc(pprof.Profile)},
		{http.MethodGet, begin + "symbol", http.HandlerFunc(pprof.Symbol)},
		{http.MethodGet, begin + "trace", http.HandlerFunc(pprof.Trace)},
	}
}
