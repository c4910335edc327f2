package downstream

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// failures is what is wrong with resources that a stream subscribed to, as far as
// its client has not been told.
type failures struct {
	scannedUpTo   cache.Seq     // up to where the log of errors was read
	wildcardAsked bool          // the members were asked for since: what went wrong before concerns them
	due           []*cache.Name // of which the origin said what is wrong

	relayErrors  []*wire.ResourceError // what the relay itself has to say
	muted        bool                  // it is not said: the stream is to end without a response (B.8)
	misnamedSent map[string]struct{}   // names that cannot be, of which the client was told

	// Names that cannot be asked for.
	unreachableSent map[*cache.Name]struct{} // that the client was told of
	originsChecked  uint64                   // how the origins stood when all were looked at
	recheckAt       time.Time                // when to look again; zero if that is not needed
}

// behind reports whether there may be something to tell.
func (f *failures) behind(t *cache.Type) bool {
	return t.Failed() > f.scannedUpTo || f.wildcardAsked && t.Failed() > 0 || f.any()
}

// any reports whether something waits to be told.
func (f *failures) any() bool { return len(f.due)+len(f.relayErrors) > 0 }

// asked records that the client asked for a name, or asked for it again: what is wrong
// with it is told to it.
func (f *failures) nameRequested(t *cache.Type, n *cache.Name) {
	f.originsChecked = 0
	delete(f.unreachableSent, n)
	if t.Failed() > 0 {
		f.due = append(f.due, n)
	}
}

// collect finds what the client has to be told (R123, R124).
func (f *failures) collect(s *subscription, t *cache.Type) {
	from := [...]cache.Seq{cache.Wildcard: f.scannedUpTo, cache.ByName: f.scannedUpTo}
	if f.wildcardAsked {
		from[cache.Wildcard] = 0
	}
	for kind, p := range from {
		for e := range t.Errors(cache.Kind(kind)).Since(p) {
			f.due = append(f.due, e.Name)
		}
	}
	f.scannedUpTo, f.wildcardAsked = max(f.scannedUpTo, t.Failed()), false
	if len(f.due) == 0 {
		return
	}
	slices.SortFunc(f.due, (*cache.Name).Compare)
	f.due = slices.DeleteFunc(slices.Compact(f.due), func(n *cache.Name) bool { return s.errorOf(t, n) == nil })
}

// failureOf returns what is wrong with a resource as the client sees it, if it does.
func (s *subscription) errorOf(t *cache.Type, n *cache.Name) *cache.Entry {
	if _, named := s.find(n); named {
		return t.Errors(cache.ByName).Get(n)
	}
	if s.wildcard == nil {
		return nil
	}
	return t.Errors(cache.Wildcard).Get(n)
}

// misnamed has the client told that a name cannot be.
func (f *failures) misnamed(b wire.BadName) {
	if _, told := f.misnamedSent[b.Name]; told {
		return
	}
	if f.misnamedSent == nil {
		f.misnamedSent = make(map[string]struct{})
	}
	f.misnamedSent[b.Name] = struct{}{}
	f.relayErrors = append(f.relayErrors, wire.NewResourceError(b.Name, codes.Unavailable, b.Err.Error()))
}

// unreachable tells a client that understands it of names that cannot be asked for,
// since the origin is not there: it goes on with what it has, and knows why (B.7).
func (f *failures) unreachable(s *subscription, g *cache.Generation, t *cache.Type, now time.Time) {
	if !s.tellsUnreachable() || f.originsChecked == g.OriginChanges() {
		return
	}
	f.recheckAt = time.Time{}
	for _, n := range s.names {
		from := g.From(n.name)
		if _, told := f.unreachableSent[n.name]; told || from.Connected || s.answerKnown(g, t, n) {
			continue
		}
		if at := later(s.namesSince, from.Lost).Add(s.cfg.ColdWait); now.Before(at) {
			f.recheckAt = earlier(f.recheckAt, at)
		} else {
			f.addUnreachable(n.name)
		}
	}
	if f.recheckAt.IsZero() {
		f.originsChecked = g.OriginChanges()
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// unaskable has the client told that a name cannot be asked for.
func (f *failures) addUnreachable(n *cache.Name) {
	if f.unreachableSent == nil {
		f.unreachableSent = make(map[*cache.Name]struct{})
	}
	f.unreachableSent[n] = struct{}{}
	f.relayErrors = append(f.relayErrors, wire.NewResourceError(n.String(), codes.Unavailable, "the origin cannot be reached"))
}

// tells reports whether the client is told by errors what the relay itself has to say of
// names (B.39); of those of complete sets it is told nothing (B.7).
func (s *subscription) tellsUnreachable() bool {
	return s.errors && !s.failures.muted && (s.delta || !s.FullState)
}

// knows reports whether the client was told of a name, or can be.
func (s *subscription) answerKnown(g *cache.Generation, t *cache.Type, n subscribed) bool {
	if t.Errors(cache.ByName).Get(n.name) != nil {
		return true
	}
	e, _ := t.Lookup(n.name)
	return e != nil && !s.mayReappear(g, e, n) && (n.sent != 0 || !e.Present() || !e.Resource.Released())
}

// fail tells what is wrong with resources that the client subscribed to. Of what the
// response says something else, it is told later: a name is never in both (R124).
func (s *subscription) addErrors(w *writer, now time.Time) {
	f := &s.failures
	f.collect(s, w.typ)
	f.unreachable(s, w.head, w.typ, now)
	var told []*wire.ResourceError
	f.due = slices.DeleteFunc(f.due, func(n *cache.Name) bool {
		e := s.errorOf(w.typ, n)
		if slices.Contains(told, e.Err) {
			return true // by another of its names
		}
		if w.full(nil) || !s.errorInOrder(w.head, w.typ, e) || w.alreadyEmitted(e.Err.Key()) {
			return false
		}
		told = append(told, e.Err)
		w.ensureBody().Error(e.Err)
		return true
	})
	f.addRelayErrors(w.ensureBody, func() bool { return w.full(nil) })
}

// tellOwn adds what the relay itself has to say to a body, until that is full.
func (f *failures) addRelayErrors(begin func() *wire.Body, full func() bool) {
	for !f.muted && len(f.relayErrors) > 0 && !full() {
		begin().Error(f.relayErrors[0])
		f.relayErrors = f.relayErrors[1:]
	}
}

// timely reports whether the client can be told of an error now. What is wrong with a
// member follows the members. An error that says that a resource is gone follows its
// removal, which has its time (B.7, B.11): to be told the one is as good as the other.
func (s *subscription) errorInOrder(g *cache.Generation, t *cache.Type, e *cache.Entry) bool {
	at, named := s.find(e.Name)
	switch {
	case !named && e.Name.String() == cmp.Or(s.glob, wire.Wildcard):
		return true
	case !named && !s.wildcardStarted:
		return false
	case !e.Err.NotFound():
		return true
	case !named:
		gone := t.Wildcard.Get(e.Name)
		return gone == nil || gone.Seq <= s.removedUpTo
	}
	told := s.names[at].sent
	if !s.delta && s.LateRemovals {
		told = s.removedUpTo // the removal itself is not told
	}
	seen, seq := t.Lookup(e.Name)
	return g.Absent(seen) && seq <= told
}

// lateFailures tells a SotW client what is wrong with resources whose removal had to
// wait.
func (s *subscription) lateErrors(g *cache.Generation, t *cache.Type, now time.Time) *Response {
	if s.removedUpTo = g.Seq; !s.failures.any() {
		return nil
	}
	w := s.newWriter(g, t)
	s.addErrors(w, now)
	return w.result()
}

// failing reports whether a response that holds all that the client is to have is due
// for what is wrong with resources that are not in it. Of those that are in it, nothing
// is told: for the client, the resource ends the error.
func (s *subscription) errorsDue(g *cache.Generation, t *cache.Type) (due bool) {
	f := &s.failures
	f.collect(s, t)
	f.due = slices.DeleteFunc(f.due, func(n *cache.Name) bool {
		in, lasting := s.inSet(g, t, n, s.LateRemovals && s.holdsSet)
		due = due || !in
		return lasting
	})
	for _, glob := range s.globs {
		due = glob.errorsDue(g, g.Type(glob.key)) || due
	}
	return due || len(f.relayErrors) > 0 && !f.muted
}

// inSet reports whether a set has a resource with an error, and whether it will be in
// the next one too.
func (s *subscription) inSet(g *cache.Generation, t *cache.Type, n *cache.Name, union bool) (in, lasting bool) {
	at, named := s.find(n)
	if !named {
		return s.inSetAsMember(t, n, union)
	}
	e, seq := s.see(t, s.names[at])
	if e.Present() {
		return true, true
	}
	if err := s.errorOf(t, n).Err; err.NotFound() && !g.Absent(e) {
		return true, false // that it is gone is yet to be confirmed
	}
	return e != nil && e.Prior != nil && union && s.names[at].sent != 0 && seq > s.names[at].sent, false
}

// inSetAsMember is inSet for what the client did not name.
func (s *subscription) inSetAsMember(t *cache.Type, n *cache.Name, union bool) (in, lasting bool) {
	e := t.Wildcard.Get(n)
	if e.Present() {
		lasting = !s.withheld(t, e)
		return lasting, lasting
	}
	return union && e != nil && e.Prior != nil && s.hadMember(e), false
}

// tellWith adds to a complete set what is wrong with resources that are not in it.
func (s *subscription) addErrorsTo(body *wire.Body, g *cache.Generation, t *cache.Type, union bool) {
	f := &s.failures
	var told []*wire.ResourceError
	f.due = slices.DeleteFunc(f.due, func(n *cache.Name) bool {
		in, lasting := s.inSet(g, t, n, union)
		if e := s.errorOf(t, n); !in && !slices.Contains(told, e.Err) {
			told = append(told, e.Err)
			body.Error(e.Err)
		}
		return !in || lasting
	})
	set := body.Size()
	f.addRelayErrors(func() *wire.Body { return body }, func() bool { return body.Size()-set >= s.cfg.ResponseBytes })
	for _, glob := range s.globs {
		glob.addErrorsTo(body, g, g.Type(glob.key), union)
	}
}

// see returns what the client is shown of a name that it subscribed to, and when that
// last changed. What the origin once gave and now denies is kept from one who does not
// have it (R137).
func (s *subscription) see(t *cache.Type, n subscribed) (*cache.Entry, cache.Seq) {
	e, seq := t.Lookup(n.name)
	if failed := t.Errors(cache.ByName); e.Present() && n.sent == 0 && failed.Last() > 0 && !s.returning() {
		if err := failed.Get(n.name); err != nil && err.Err.Denied() {
			return nil, 0
		}
	}
	return e, seq
}

// withheld reports whether a member is kept from the client as see has it: from one
// who began to follow the members when the origin denied it already.
func (s *subscription) withheld(t *cache.Type, member *cache.Entry) bool {
	if t.Errors(cache.Wildcard).Last() == 0 || s.returning() {
		return false
	}
	err := t.Errors(cache.Wildcard).Get(member.Name)
	return err != nil && err.Err.Denied() && (s.sendAll || err.Born() <= s.wildcardSince)
}

// withheldMembers yields the members that are kept from the client.
func (s *subscription) withheldMembers(t *cache.Type) iter.Seq[*cache.Entry] {
	return func(yield func(*cache.Entry) bool) {
		for err := range t.Errors(cache.Wildcard).Since(0) {
			if e := t.Wildcard.Get(err.Name); e.Present() && s.withheld(t, e) && !yield(e) {
				return
			}
		}
	}
}

// withholds reports whether any member is kept from the client.
func (s *subscription) withholds(t *cache.Type) bool {
	for range s.withheldMembers(t) {
		return true
	}
	return false
}

// returning reports whether the client may hold what a complete set would lack.
func (s *subscription) returning() bool { return !s.delta && s.FullState && s.initialVersion != "" }
