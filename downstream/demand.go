package downstream

import (
	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// checkDemand refuses a request with which clients would want more than the relay asks origins
// for; others is how many globs the stream has of other types.
func (s *subscription) checkDemand(r *wire.Request, others int) error {
	if err := s.checkGlobs(r, others); err != nil {
		return err
	}
	return s.checkOrigins(r)
}

// checkGlobs refuses a request with which the globs of a stream, or those that its group
// follows, would be too many; others is how many the stream has of other types.
func (s *subscription) checkGlobs(r *wire.Request, others int) error {
	_, globs := splitGlobs(r.Subscribe)
	if len(globs) == 0 {
		return nil
	}
	var added []string // their keys
	for _, text := range sortedSet(globs) {
		if s.findGlob(text) == nil {
			added = append(added, cache.Collection(s.typeURL, text))
		}
	}
	total := others + len(globs)
	if s.delta {
		total = others + len(s.globs) + len(added)
	}
	if total > s.cfg.MaxGlobs {
		return Exceeds(LimitGlobs, "%d globs on one stream, at most %d are served", total, s.cfg.MaxGlobs)
	}
	if more, followed := s.watch.Unfollowed(added); more > 0 && followed+more > s.cfg.MaxGroupGlobs {
		return Exceeds(LimitGroupGlobs, "%d globs in one node group, at most %d are served",
			followed+more, s.cfg.MaxGroupGlobs)
	}
	return nil
}

// checkOrigins refuses a request with which the names that clients want of an origin would be
// too many. Those that others want already are served all the same.
func (s *subscription) checkOrigins(r *wire.Request) error {
	if len(r.Subscribe) <= s.watch.Room() {
		return nil // as nearly always
	}
	names, _ := splitGlobs(s.real(without(r.Subscribe, wire.Wildcard)))
	gone := r.Unsubscribe
	if !s.delta { // what is listed stays
		for _, n := range s.names {
			gone = append(gone, n.name.String())
		}
	}
	if wanted, most, exceeds := s.watch.Exceeds(s.key, names, gone); exceeds {
		return Exceeds(LimitOriginNames, "clients want %d resource names of one origin, it is asked for at most %d", wanted, most)
	}
	return nil
}
