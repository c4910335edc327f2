package upstream

import (
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Protocol says in which variant of xDS an origin is spoken to.
type Protocol int

// The protocols that a session may speak.
const (
	// ProtocolAuto is Delta ADS, or SotW ADS with a target that does not implement
	// Delta.
	ProtocolAuto Protocol = iota
	// ProtocolDelta is Delta ADS only.
	ProtocolDelta
	// ProtocolSotW is SotW ADS only.
	ProtocolSotW
)

func (p Protocol) String() string { return [...]string{"auto", "delta", "sotw"}[p] }

// speaksSotW reports whether a stream is to be opened in SotW. The auxiliary one is
// of the variant of the main one.
func (v *streams) speaksSotW(r role) bool {
	if r == auxiliary {
		return v.lines[main].sotw != nil
	}
	return v.noDelta || v.cfg.Protocol == ProtocolSotW
}

// otherVariant reports whether a stream has ended because the target does not
// implement Delta, so that SotW is to be tried. Any other end that the origin puts
// to the main stream lets Delta be tried again: what answers next may be a newer
// server.
func (v *streams) otherVariant(l *adsStream, err error) bool {
	if errors.Is(err, errResync) {
		return false
	}
	noDelta := v.cfg.Protocol == ProtocolAuto && l.sotw == nil && !l.responded && status.Code(err) == codes.Unimplemented
	if l.role == main {
		v.noDelta = noDelta
		if noDelta {
			v.session.tellNoDelta(v.target)
		}
	}
	return noDelta
}

// tellNoDelta logs, once, that a target does not implement Delta.
func (s *Session) tellNoDelta(target int) {
	if s.toldNoDelta[target].CompareAndSwap(false, true) {
		s.cfg.Logger.Info("the origin does not implement Delta ADS: it is spoken to in SotW", slog.String("origin", s.cfg.Targets[target]))
	}
}
