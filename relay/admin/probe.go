package admin

import (
	"io"
	"net/http"
	"strings"
)

// livez answers 200 for as long as the process runs.
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
	_, _ = io.WriteString(w, text) // it fails only if the client disconnected
}
