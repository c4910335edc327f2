package admin

import (
	"io"
	"net/http"
	"strings"
)

// livez serves 200 as long as the process runs.
func livez(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }

// readyz serves 200 if the relay is ready, else 503 with a line for each reason.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	reasons := s.cfg.Ready()
	if len(reasons) == 0 {
		writeText(w, http.StatusOK, "ok\n")
		return
	}
	writeText(w, http.StatusServiceUnavailable, "not ready: "+strings.Join(reasons, "\nnot ready: ")+"\n")
}

// writeText writes a response as plain text.
func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // fails only if the client disconnected
}
