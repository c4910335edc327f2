package pending

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
)

// Copy copies the state of names from a generation of another view, like [cache.Writer.Copy], except what must wait.
func (l *List) Copy(kind cache.Kind, from *cache.View, g *cache.Generation, key string, names []*cache.Name) {
	set := setKey{key, kind}
	switch changes, removals := l.stops(set.typeURL(), false), l.stops(set.typeURL(), true); {
	case changes:
		l.copyFirst(set, g, names)
	case removals:
		var gone, present []*cache.Name
		for _, n := range names {
			if g.Type(key).Set(kind).Get(n).Present() {
				present = append(present, n)
				l.end(set, cache.Statement{Name: n.String(), HasContent: true, HasError: true})
			} else {
				gone = append(gone, n)
			}
		}
		l.paceCopies(set, from, g, present)
		l.copyFirst(set, g, gone)
	default:
		l.paceCopies(set, from, g, names)
		return
	}
	l.recordStopped()
}

// copyFirst copies the part of a state that is not stopped, and lists the rest.
func (l *List) copyFirst(set setKey, g *cache.Generation, names []*cache.Name) {
	if len(names) == 0 {
		return
	}
	shown := l.served(set).System()
	l.w.CopyFirst(set.kind, g, set.key, names, newest{l, set, new(cache.Change)})
	if l.systems[set] = g.Type(set.key).System(); len(l.sets[set]) > 0 && shown != "" && l.served(set).System() != shown {
		l.w.Restate(set.kind, set.key, shown, nil)
	}
	l.endSystem(set)
}

// paceCopies copies states, except what must wait for an interval.
func (l *List) paceCopies(set setKey, from *cache.View, g *cache.Generation, names []*cache.Name) {
	kind, key := set.kind, set.key
	if len(names) == 0 {
		return
	}
	if l.clock == nil {
		l.w.Copy(kind, g, key, names)
		return
	}
	now := time.Now()
	states := l.compareCopies(set, g, names)
	waits := l.admitCopies(set, states, now)
	var direct []*cache.Name
	var awaited, dropped []string
	for i, n := range names {
		state, name := states[i], n.String()
		if state == same || state == removes && !waits.removals || state != removes && !waits.changes {
			l.remove(set, name)
			direct, dropped = append(direct, n), append(dropped, name)
			continue
		}
		l.put(set, name, row{copied: &copied{from, n, state == removes}})
		if state == adds {
			awaited = append(awaited, name)
		}
	}
	if len(direct) > 0 {
		l.record(set, l.w.Copy(kind, g, key, direct), now)
	}
	l.w.Await(kind, key, awaited, dropped)
	l.dropEmpty(set.typeURL())
}

// admitCopies decides what waits of a statement, and ends the waits before it if it cannot wait.
func (l *List) admitCopies(set setKey, states []copyState, now time.Time) admission {
	failed, removed := slices.Contains(states, fails), slices.Contains(states, removes)
	waits := l.admit(set.typeURL(), failed || removed, now)
	switch {
	case !waits.any():
	case failed, removed && waits.removals && l.hasFirst(set, states):
		l.hastenAll(now)
		return admission{}
	case l.hasFirst(set, states):
		l.hasten(set.typeURL(), now)
		return admission{}
	}
	return waits
}

// A copyState compares the state of a name in another view with the served one.
type copyState int

const (
	same  copyState = iota
	first           // it must not wait
	adds
	changes
	removes
	fails // removed with an error: it must not wait
)

// compareCopies compares the states of names in another view with those of a set that clients are sent.
func (l *List) compareCopies(set setKey, g *cache.Generation, names []*cache.Name) []copyState {
	theirs, mine := g.Type(set.key), l.served(set)
	of := theirs.Set(set.kind)
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = n.String()
	}
	states := make([]copyState, len(names))
	for i, own := range l.w.View().Find(set.key, texts) {
		var was *cache.Entry
		if own != nil {
			was = mine.Get(own)
		}
		is := of.Get(names[i])
		failed := theirs.Errors(set.kind).Get(names[i]) != nil
		switch states[i] = compareCopy(is, was); {
		case failed && states[i] == removes:
			states[i] = fails
		case failed, set.kind == cache.ByName && was == nil:
			states[i] = first
		}
	}
	return states
}

// compareCopy compares an entry of another view with the served one. Either may be nil.
func compareCopy(is, was *cache.Entry) copyState {
	switch {
	case !is.Present() && !was.Present():
		return same
	case mustNotWait(is), mustNotWait(was):
		return first
	case !is.Present():
		return removes
	case !was.Present():
		return adds
	case was.Resource.SameContent(is.Resource):
		return same
	}
	return changes
}

// mustNotWait reports whether an entry, or nil, expires, may not be kept, or has no content.
func mustNotWait(e *cache.Entry) bool {
	return e.Present() && (e.Expires() || e.Resource.DoNotCache || !e.Resource.HasBody())
}

// hasFirst reports whether states of a set have the first one of it, or of a name.
func (l *List) hasFirst(set setKey, states []copyState) bool {
	isFirst := set.kind == cache.Wildcard && l.w.Generation().Type(set.key).Phase == cache.Unknown
	return isFirst || slices.Contains(states, first)
}
