package downstream

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// failures is what is wrong with resources that a stream subscribed to, as far as
// its client has not been told.
type failures struct {
	scanned cache.Seq             // up to where the log of errors was read
	fresh   []*cache.Name         // subscribed to since; what went wrong before concerns them
	own     []*wire.ResourceError // the relay's own
	due     []*wire.ResourceError

	told map[string]struct{} // names that the client was told cannot be asked for
}

// behind reports whether the log of errors was not read to its end.
func (f *failures) behind(t *cache.Type) bool {
	return t.Errors.Last() > f.scanned || len(f.due)+len(f.own) > 0
}

// any reports whether there is something to tell.
func (f *failures) any() bool { return len(f.due) > 0 }

// denied reports whether the origin refuses a resource that it once gave: then one who
// does not have it is told so, and not given it (R137).
func (f *failures) denied(t *cache.Type, n *cache.Name) bool {
	if t.Errors.Last() == 0 {
		return false
	}
	e := t.Errors.Get(n)
	return e != nil && !e.Err.Transient()
}

// collect finds what the client has to be told (R123, R124).
func (f *failures) collect(s *subscription, h *cache.Head, t *cache.Type, now time.Time) {
	if t.Errors.Last() > f.scanned {
		for e := range t.Errors.Since(f.scanned) {
			_, named := s.find(e.Name)
			if e.Err != nil && (named || s.wildcard != nil && e.ByWildcard) {
				f.add(e.Err)
			}
		}
		f.scanned = h.Seq
	}
	if t.Errors.Last() > 0 {
		for _, n := range f.fresh {
			if e := t.Errors.Get(n); e != nil {
				f.add(e.Err)
			}
		}
	}
	f.fresh = nil
	f.due = append(f.due, f.own...)
	f.own = nil
	f.unreachable(s, h, t, now)
}

func (f *failures) add(e *wire.ResourceError) {
	if !slices.Contains(f.due, e) {
		f.due = append(f.due, e)
	}
}

// unreachable tells clients that understand it of names that cannot be asked for,
// since the origin is not there: they go on with what they have, and know why
// (B.7). A client that is told nothing at all ends as cold.
func (f *failures) unreachable(s *subscription, h *cache.Head, t *cache.Type, now time.Time) {
	if !s.errors || !s.delta && s.fullState || now.Sub(s.since) < s.cfg.ColdWait {
		return
	}
	for _, n := range s.names {
		name := n.name.String()
		if h.From(n.name).Connected {
			delete(f.told, name)
			continue
		}
		e, _ := t.Lookup(n.name)
		if (e == nil || s.mayReturn(h, e, n)) && t.Errors.Get(n.name) == nil && f.tells(name) {
			f.due = append(f.due, wire.NewResourceError(name, codes.Unavailable, "the origin cannot be reached"))
		}
	}
}

// tells reports whether the client has not been told yet of a name that cannot be
// asked for, and notes that it is now.
func (f *failures) tells(name string) bool {
	if _, told := f.told[name]; told {
		return false
	}
	if f.told == nil {
		f.told = make(map[string]struct{})
	}
	f.told[name] = struct{}{}
	return true
}

// unreachableFrom returns when the client has to be told of names that cannot be
// asked for; a zero time if there is nothing to wait for.
func (s *subscription) unreachableFrom(h *cache.Head, now time.Time) time.Time {
	if !s.errors || !s.delta && s.fullState || len(s.names) == 0 {
		return time.Time{}
	}
	at := s.since.Add(s.cfg.ColdWait)
	if !now.Before(at) {
		return time.Time{}
	}
	for from := range s.sources(h) {
		if !from.Connected {
			return at
		}
	}
	return time.Time{}
}

// misnamed has the client told that a name cannot be.
func (f *failures) misnamed(b wire.BadName) {
	if f.tells(b.Name) {
		f.own = append(f.own, wire.NewResourceError(b.Name, codes.Unavailable, b.Err.Error()))
	}
}

// tell adds to a body what is due, but for that of which the body says something
// else: a name is never in both (R124).
func (f *failures) tell(body *wire.Body, shown func(key string) bool) {
	var later []*wire.ResourceError
	for _, e := range f.due {
		if shown(e.Key()) {
			later = append(later, e)
		} else {
			body.Error(e)
		}
	}
	f.due = later
}

// fail tells what is wrong with resources that the client subscribed to.
func (s *subscription) fail(w *writer, now time.Time) {
	f := &s.failures
	f.collect(s, w.head, w.typ, now)
	if !f.any() {
		return
	}
	shown := func(key string) bool { _, shown := w.emitted[key]; return shown }
	if slices.ContainsFunc(f.due, func(e *wire.ResourceError) bool { return !shown(e.Key()) }) {
		f.tell(w.begin(), shown)
	}
}
