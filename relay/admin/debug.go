package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// debugRoutes returns the routes of go tool pprof. The package net/http/pprof also registers them in
// http.DefaultServeMux, which no server uses.
func debugRoutes() []route {
	const prefix = "/debug/pprof/"
	return []route{
		get(prefix, limitProfile(pprof.Index)), // also serves the profiles by name
		get(prefix+"cmdline", http.HandlerFunc(pprof.Cmdline)),
		get(prefix+"profile", limitProfile(pprof.Profile)),
		get(prefix+"symbol", http.HandlerFunc(pprof.Symbol)),
		get(prefix+"trace", limitProfile(pprof.Trace)),
	}
}

// maxProfileSeconds is the maximum duration of a profile. net/http/pprof adds the duration to the write timeout, and
// keeps a trace in memory.
const maxProfileSeconds = 120

// limitProfile refuses a profile that takes longer than maxProfileSeconds.
func limitProfile(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := r.FormValue("seconds")
		if seconds, err := strconv.ParseFloat(text, 64); err == nil && !(seconds <= maxProfileSeconds) { // also refuses NaN
			writeError(w, http.StatusBadRequest, fmt.Sprintf("seconds=%.32q: want at most %d", text, maxProfileSeconds))
			return
		}
		next(w, r)
	}
}
