package upstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// sweepQuiet is how long a resync must have been quiet before what it did not
// mention is suspected of being gone, and then how long the origin may be silent
// on a suspect (B.15).
const sweepQuiet = 15 * time.Second

// A sweep finds out which members an origin dropped while the relay did not follow
// them, where the origin does not say so itself. Members that a resync did
// not mention are suspects; each is asked for by name, on the stream that does
// not carry the wildcard, beside a control: a member that is known to be there.
// What the origin says is removed, or is silent on while it answers for the
// control, is gone (B.15).
type sweep struct {
	began   time.Time
	marked  map[string]struct{} // members not mentioned since it began
	last    time.Time           // response that said something for the first time since it began; zero if none came
	trusted bool                // the origin was told what is held, and so says itself what is gone

	asked    time.Time // when suspects were asked for; zero if they were not
	names    []string  // asked for
	suspects map[string]struct{}
	gone     map[string]struct{} // suspects that the origin says are removed
	control  string              // "" if no member is known to be there
	repeated bool                // the control was asked for before, for a client
	alive    time.Time           // when the origin last answered for anything since asked
}

// begin starts a resync: all members are in doubt, unless the origin was told of
// them and says what is gone, and but for those that an operator had kept.
func (s *sweep) begin(t *cache.Type, kept map[string]removal, trusted bool, now time.Time) {
	s.finish()
	s.began, s.marked, s.trusted = now, make(map[string]struct{}), trusted
	for e := range t.Members.Since(0) {
		if _, stays := kept[nameOf(e)]; e.Present() && !stays {
			s.marked[e.Resource.Name] = struct{}{}
		}
	}
}

// heard takes a response for the members.
func (s *sweep) heard(u wire.Update, c cache.Change, now time.Time) {
	if len(s.marked) == 0 {
		return
	}
	if s.trusted && now.Sub(s.began) > confirmMax {
		s.marked = nil // a resend now has another reason
		return
	}
	if c.Same > 0 {
		s.trusted = false // it resends what it was told is held, so it ignores that
	}
	doubtful := len(s.marked)
	for _, r := range u.Resources {
		s.clear(r.Name)
	}
	for name := range u.Gone() {
		s.clear(name)
	}
	// An origin may say for ever of what it has mentioned that it lives on. That the wildcard
	// failed says nothing about what there is.
	first := s.last.IsZero() && !u.Fails(wire.Wildcard)
	if len(s.marked) < doubtful || c.Changed > 0 || first {
		s.last = now
	}
}

// doubts returns the members that may be gone, and until when that is not known at the latest. Of an origin that says nothing at
// all of the members, it may not be known for ever: then nothing waits for it.
func (s *sweep) doubts(trust bool, now time.Time) (names map[string]struct{}, until time.Time) {
	switch trusted := s.trusted && trust; {
	case trusted || len(s.marked) == 0:
		return nil, time.Time{}
	case !s.trusted && !s.last.IsZero():
		return s.marked, s.last.Add(2 * sweepQuiet)
	}
	if until = s.began.Add(confirmMax); now.Before(until) {
		return s.marked, until
	}
	return nil, time.Time{}
}

// distrust puts in doubt what a response with the origin's first answers did not mention.
func (s *sweep) distrust(now time.Time) {
	if now.Sub(s.began) <= confirmMax {
		s.trusted = false
	}
}

// clear ends the doubt about a member.
func (s *sweep) clear(name string) {
	delete(s.marked, name)
	delete(s.suspects, name)
	delete(s.gone, name)
}

// answered takes a response to suspects asked for by name.
func (s *sweep) answered(u wire.Update, now time.Time) {
	if s.asked.IsZero() {
		return
	}
	for _, r := range u.Resources {
		if r.Name == s.control {
			s.alive = now
		}
		s.clear(r.Name) // still there
	}
	for name := range u.Gone() {
		if _, ok := s.suspects[name]; ok {
			s.gone[name] = struct{}{}
			s.alive = now
		}
	}
}

// suspect reports whether it is time to ask for what the resync did not mention,
// and if not, when it may be.
func (s *sweep) suspect(now time.Time) (due bool, next time.Time) {
	if s.trusted || len(s.marked) == 0 || !s.asked.IsZero() {
		return false, time.Time{}
	}
	if s.last.IsZero() {
		_, next = s.doubts(true, now)
		return false, next
	}
	next = s.last.Add(sweepQuiet)
	return !now.Before(next), next
}

// ask begins to ask for the suspects, and returns the names to subscribe to. For
// the control it prefers a member that clients did not name: go-control-plane
// does not say again what a stream is subscribed to already. What stays although the origin seems to have removed it is none.
func (s *sweep) ask(t *cache.Type, named map[*cache.Name]struct{}, staying map[string]struct{}, now time.Time) []string {
	s.suspects, s.gone = maps.Clone(s.marked), make(map[string]struct{})
	for e := range t.Members.Since(0) {
		_, doubtful := s.marked[nameOf(e)]
		if _, stays := staying[nameOf(e)]; !e.Present() || doubtful || stays {
			continue
		}
		s.control = e.Resource.Name
		if _, s.repeated = named[e.Name]; !s.repeated {
			break
		}
	}
	s.renew(now)
	return s.names
}

func nameOf(e *cache.Entry) string { return e.Name.String() }

// asking reports whether suspects are being asked for.
func (s *sweep) asking() bool { return !s.asked.IsZero() }

// renew begins to wait for an answer, also on a stream that was opened anew.
func (s *sweep) renew(now time.Time) {
	s.asked, s.alive = now, time.Time{}
	s.names = slices.Sorted(maps.Keys(s.suspects))
	if s.control != "" {
		s.names = append(s.names, s.control)
	}
}

// verdict reports whether the sweep is over, and which members seem to be gone. Unproven is
// set if only silence says so, and there was no control.
func (s *sweep) verdict(wanted func() map[string]struct{}, now time.Time) (over bool, gone map[string]struct{}, unproven bool, next time.Time) {
	if s.asked.IsZero() {
		return false, nil, false, time.Time{}
	}
	next = s.asked.Add(sweepQuiet)
	if len(s.gone) < len(s.suspects) && now.Before(next) {
		return false, nil, false, next
	}
	gone = s.believed(wanted())
	noControl := s.control == "" || s.repeated && s.alive.IsZero()
	return true, gone, noControl && len(s.gone) < len(gone), time.Time{}
}

// believed returns the suspects that are gone as far as the origin has said so, or
// was silent where silence says something: not if it was silent on the control,
// too, nor on a name that clients had asked for before.
func (s *sweep) believed(named map[string]struct{}) map[string]struct{} {
	if s.alive.IsZero() && s.control != "" && !s.repeated {
		return s.gone
	}
	maps.DeleteFunc(s.suspects, func(name string, _ struct{}) bool {
		_, asked := named[name]
		_, told := s.gone[name]
		return asked && !told
	})
	return s.suspects
}

// finish forgets the sweep.
func (s *sweep) finish() {
	s.last = time.Time{}
	s.marked, s.suspects, s.gone, s.names = nil, nil, nil, nil
	s.asked, s.alive, s.control, s.repeated = time.Time{}, time.Time{}, "", false
}
