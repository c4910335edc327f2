package admin

import (
	"log/slog"
	"net/http"

	"github.com/xdstender/tender/relay/authz"
)

// SnapshotPath is the path at which a relay gives its state to a peer.
const SnapshotPath = "/api/v1/tier/snapshot"

// maxTakers is the number of peers that take the state at the same time. Further ones wait.
const maxTakers = 2

// A snapshotServer serves the state of the relay to peers.
type snapshotServer struct {
	cfg   *Config
	turns chan struct{} // a slot for each taker
}

// newSnapshotServer returns the server of a configuration.
func newSnapshotServer(cfg *Config) *snapshotServer {
	return &snapshotServer{cfg: cfg, turns: make(chan struct{}, maxTakers)}
}

// ServeHTTP serves the state. The guard has checked that the peer may take it.
func (s *snapshotServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Snapshot == nil {
		writeError(w, http.StatusNotFound, errNoPeers.Error())
		return
	}
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-r.Context().Done():
		return
	}
	_, err := s.cfg.TLS.Operator(r.TLS.PeerCertificates[0], authz.TakeSecrets) // the guard requires TLS for authz.Take
	secrets, from := err == nil, CallerOf(r.Context()).By("")
	w.Header().Set("Content-Type", "application/x-tar")
	out := &countedWriter{ResponseWriter: w}
	err = s.cfg.Snapshot(r.Context(), secrets, out)
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelInfo, "state sent to a peer", slog.String("from", r.RemoteAddr),
		slog.String("by", from), slog.Bool("secrets", secrets), slog.Int64("bytes", out.bytes), slog.Any("err", err))
	if err == nil {
		return
	}
	if out.bytes > 0 { // a part was sent: end the connection, so that the peer does not take it for the whole
		panic(http.ErrAbortHandler)
	}
	writeError(w, CodeOf(err), err.Error())
}

// A countedWriter counts the bytes of the body of a response.
type countedWriter struct {
	http.ResponseWriter
	bytes int64
}

func (w *countedWriter) Write(b []byte) (n int, err error) {
	n, err = w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}
