package admin

import (
	"io"
	"net/http"
	"strings"
)

// probeRoutes are what probes may ask.
func (s *Server) probeRoutes() []route {
	routes := []route{
		{http.MethodGet, "/livez", http.HandlerFunc(livez)},
		{http.MethodGet, "/readyz", http.HandlerFunc(s.readyz)},
	}
	if s.cfg.Metrics != nil {
		routes = append(routes, route{http.MethodGet, "/metrics", s.cfg.Metrics})
	}
	return routes
}

// livez answers, which is all that it has to say.
func livez(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }

// readyz answers 200 if the relay is ready, else 503 and a line for each reason.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	reasons := s.cfg.Ready()
	if len(reasons) == 0 {
		writeText(w, http.StatusOK, "ok\n")
		return
	}
	writeText(w, http.StatusServiceUnavailable, "not ready: "+strings.Join(reasons, "\nnot ready: ")+"\n")
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // who does not read it does not need it
}
