package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// debugRoutes are the paths of go tool pprof. The package net/http/pprof also adds them to http.DefaultServeMux, which
// is not served.
func debugRoutes() []route {
	const begin = "/debug/pprof/"
	return []route{
		get(begin, profiled(pprof.Index)), // and the profiles by name
		get(begin+"cmdline", http.HandlerFunc(pprof.Cmdline)),
		get(begin+"profile", profiled(pprof.Profile)),
		get(begin+"symbol", http.HandlerFunc(pprof.Symbol)),
		get(begin+"trace", profiled(pprof.Trace)),
	}
}

// maxProfileSeconds bounds the length of a profile. It is added to the write timeout, and a trace is held in memory.
const maxProfileSeconds = 120

// profiled refuses a profile that takes longer than maxProfileSeconds.
func profiled(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := r.FormValue("seconds")
		if seconds, err := strconv.ParseFloat(text, 64); err == nil && !(seconds <= maxProfileSeconds) { // NaN is refused
			writeError(w, http.StatusBadRequest, fmt.Sprintf("seconds=%.32q: allowed are up to %d", text, maxProfileSeconds))
			return
		}
		next(w, r)
	}
}
