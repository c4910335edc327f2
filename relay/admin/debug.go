package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// debugRoutes are what go tool pprof asks. The package adds them to http.DefaultServeMux
// too, which nobody serves.
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

// maxProfileSeconds bounds a profile. Its seconds come on top of the time that an answer may
// take, and a trace holds all of its own in memory.
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
