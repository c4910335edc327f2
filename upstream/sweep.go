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

// A doubt is which members of a set may have gone while the relay was not connected. An origin that was told what is held says so;
// another leaves them out, and is asked for them by name (B.15).
type doubt struct {
	began   time.Time
	told    heldNames // the origin was told that they are held, and has not mentioned them since
	marked  heldNames // it was not told, and has not mentioned them either
	asked   []string  // by name
	askedAt time.Time // zero if they were not
}

// heard takes what an origin said of the members, some of it to no end, and reports whether that showed that it does not look
// at what it is told is held.
func (d *doubt) heard(u wire.Update, same bool, now time.Time) (ignores bool) {
	if ignores = same && len(d.told) > 0; ignores {
		ignores = d.distrust(now)
	}
	d.told.drop(u)
	d.marked.drop(u)
	return ignores
}

// distrust has it that the origin does not look at what it was told, if these are its first answers: much later, a resend has
// another reason. It reports whether they are.
func (d *doubt) distrust(now time.Time) (first bool) {
	if now.Sub(d.began) > confirmMax {
		return false
	}
	maps.Copy(d.marked, d.told)
	d.told = nil
	return true
}

// none reports whether the origin has mentioned all.
func (d *doubt) none() bool { return len(d.told)+len(d.marked) == 0 }

// A sweep finds out which members an origin dropped while the relay did not follow
// them, where the origin does not say so itself. Wildcard that a resync did
// not mention are suspects; each is asked for by name, on the stream that does
// not carry the wildcard, beside a control: a member that is known to be there.
// What the origin says is removed, or is silent on while it answers for the
// control, is gone (B.15). Either all members in doubt were told to the origin, or none.
type sweep struct {
	doubt
	last time.Time // response that said something for the first time since it began; zero if none came

	suspects heldNames // that were asked for
	gone     heldNames // suspects that the origin says are removed
	control  string    // "" if no member is known to be there
	repeated bool      // the control was asked for before, for a client
	alive    time.Time // when the origin last answered for anything since asked
}

// begin starts a resync: all members are in doubt, but for those that an operator had kept. An origin that is trusted was told
// of them and says what is gone.
func (s *sweep) begin(t *cache.Type, kept map[string]removal, trusted bool, now time.Time) {
	*s = sweep{doubt: doubt{began: now, marked: namesIn(&t.Wildcard)}}
	for name := range kept {
		delete(s.marked, name)
	}
	if trusted {
		s.told, s.marked = s.marked, make(heldNames)
	}
}

// heard takes a response for the members, and reports whether that showed that the origin does not look at what it is told.
func (s *sweep) heard(u wire.Update, c cache.Change, now time.Time) (ignores bool) {
	doubtful := len(s.told) + len(s.marked)
	switch {
	case doubtful == 0:
		return false
	case len(s.told) > 0 && now.Sub(s.began) > confirmMax:
		s.told = nil // a resend now has another reason
		return false
	}
	ignores = s.doubt.heard(u, c.Same > 0, now)
	s.suspects.drop(u)
	s.gone.drop(u)
	// An origin may say for ever of what it has mentioned that it lives on. That the wildcard
	// failed says nothing about what there is.
	first := s.last.IsZero() && !u.Fails(wire.Wildcard)
	if len(s.told)+len(s.marked) < doubtful || c.Changed > 0 || first {
		s.last = now
	}
	return ignores
}

// doubts returns the members that may be gone, and until when that is not known at the latest. Of an origin that says nothing at
// all of the members, it may not be known for ever: then nothing waits for it.
func (s *sweep) doubts(trust bool, now time.Time) (names map[string]struct{}, until time.Time) {
	names = s.marked
	switch told := len(s.told) > 0; {
	case told && trust || s.none():
		return nil, time.Time{}
	case told:
		names = s.told
	case !s.last.IsZero():
		return names, s.last.Add(2 * sweepQuiet)
	}
	if until = s.began.Add(confirmMax); now.Before(until) {
		return names, until
	}
	return nil, time.Time{}
}

// clear ends the doubt about a member.
func (s *sweep) clear(name string) {
	delete(s.told, name)
	delete(s.marked, name)
	delete(s.suspects, name)
	delete(s.gone, name)
}

// answered takes a response to suspects asked for by name.
func (s *sweep) answered(u wire.Update, now time.Time) {
	for _, r := range u.Resources {
		if r.Name == s.control {
			s.alive = now
		}
		s.clear(r.Name) // still there
	}
	for name := range u.RemovedNames() {
		if _, ok := s.suspects[name]; ok {
			s.gone[name] = struct{}{}
			s.alive = now
		}
	}
}

// suspect reports whether it is time to ask for what the resync did not mention,
// and if not, when it may be.
func (s *sweep) suspect(now time.Time) (due bool, next time.Time) {
	if len(s.marked) == 0 || s.asking() {
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
	s.suspects, s.gone = maps.Clone(s.marked), make(heldNames)
	for e := range t.Wildcard.Since(0) {
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
	return s.asked
}

func nameOf(e *cache.Entry) string { return e.Name.String() }

// asking reports whether suspects are being asked for.
func (s *sweep) asking() bool { return !s.askedAt.IsZero() }

// renew begins to wait for an answer, also on a stream that was opened anew.
func (s *sweep) renew(now time.Time) {
	s.askedAt, s.alive = now, time.Time{}
	s.asked = slices.Sorted(maps.Keys(s.suspects))
	if s.control != "" {
		s.asked = append(s.asked, s.control)
	}
}

// verdict reports whether the sweep is over, and which members seem to be gone. Unproven is
// set if only silence says so, and there was no control.
func (s *sweep) verdict(wanted func() map[string]struct{}, now time.Time) (over bool, gone map[string]struct{}, unproven bool, next time.Time) {
	next = s.askedAt.Add(sweepQuiet)
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
