package cache

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A Statement is what an origin states of one name of a set: its content, its error, or both.
type Statement struct {
	Name string

	HasContent, HasError bool // whether it has Resource and Deadline, and whether it has Err

	Resource *wire.Resource      // nil if it does not exist
	Deadline time.Time           // end of its TTL, which may be over; zero is never
	Err      *wire.ResourceError // nil if the resource has no error

	entry *Entry // with this content in another generation; nil if there is none
}

// expiredAt reports whether the TTL of the resource has ended.
func (s *Statement) expiredAt(now time.Time) bool {
	return s.isExpired() || !s.Deadline.IsZero() && !now.Before(s.Deadline)
}

// Exists reports whether the set has state of the name, even if that is that there is no resource.
func (s *Statement) Exists() bool { return s.HasContent || s.HasError }

// Expired reports whether the resource does not exist because its TTL has ended, by now or when it was read.
func (s *Statement) Expired() bool { return s.expiredAt(time.Now()) }

// Cacheable reports whether the content may be kept. It is true for a resource that does not exist.
func (s *Statement) Cacheable() bool {
	return s.Resource == nil || mayKeep(s.Resource)
}

// Same reports whether readers see no difference between two statements of a name in a set.
func (s *Statement) Same(o *Statement) bool {
	switch {
	case s.HasContent != o.HasContent, (s.Err == nil) != (o.Err == nil), (s.Resource == nil) != (o.Resource == nil):
		return false
	case s.Resource != nil && (s.Resource.Key() != o.Resource.Key() || !s.Resource.SameContent(o.Resource)):
		return false
	}
	return s.Err == nil || s.Err.Same(o.Err)
}

// Ended returns the statement that a resource does not exist because its TTL has ended.
func Ended(name string) Statement {
	return Statement{Name: name, HasContent: true, entry: &Entry{Expired: true}}
}

// isExpired reports whether the statement is that a resource does not exist because its TTL has ended.
func (s *Statement) isExpired() bool { return s.entry != nil && s.entry.Expired }

// statement returns what readers see of a name in a set of the type: nothing if the set has no state of it, which is never so of
// the wildcard set. n is nil if the name, whose text is given, is not in the index.
func (t *Type) statement(kind Kind, n *Name, text string) Statement {
	s := Statement{Name: text}
	if n != nil {
		s.entry = t.Set(kind).Get(n)
		if e := t.Errors(kind).Get(n); e != nil {
			s.Err = e.Err
		}
	}
	s.HasContent = s.entry != nil || kind == Wildcard
	s.HasError = s.HasContent || s.Err != nil
	if s.entry.Present() {
		s.Resource, s.Deadline = s.entry.Resource, s.entry.Deadline()
	}
	return s
}

// Newest has statements that were not applied, because they wait. Other names have the state of the set.
type Newest interface {
	// Resource returns the resource that is stated of a name; nil if it does not exist, or if stated is false.
	Resource(name string) (r *wire.Resource, stated bool)

	// Aliases returns the other names of which a resource is stated.
	Aliases(resource string) []string

	// Passes reports whether a statement waits for nothing. shown is the entry that readers see; nil if there is none.
	Passes(s Statement, shown *Entry) bool

	// Record records a statement, in the order of the response: it is applied next, or waits. shown is the entry that
	// readers see; nil if there is none. The index is locked.
	Record(s Statement, shown *Entry, waits bool)
}

// first is the part of a response that is applied by ApplyFirst.
type first struct {
	newest  Newest
	errors  []*wire.ResourceError // of the response
	failed  map[*Name]bool        // names without a resource whose error is applied with the removal
	waiting bool
}

// withError returns a statement of a name with the error that the response has of it: clients get both together.
func (f *first) withError(n *Name, s Statement) Statement {
	if !s.HasContent || s.Resource != nil || s.HasError {
		return s
	}
	plain, parameters := wire.SplitParameters(n.text)
	for _, e := range f.errors {
		if e.Name == plain && e.Matches(parameters) && !e.NotFound() {
			s.HasError, s.Err = true, e
		}
	}
	return s
}

// recordFailed records that the error of a removal is applied.
func (f *first) recordFailed(n *Name, s Statement) {
	if !s.HasContent || s.Err == nil {
		return
	}
	if f.failed == nil {
		f.failed = make(map[*Name]bool)
	}
	f.failed[n] = true
}

// A response of the origin that is applied to a set. Its methods find the names to which a part of the response
// applies; the methods of setEdit change the entries.
type response struct {
	setEdit

	// firsts has the key of the first resource for each name; nil unless some resource is a variant.
	firsts map[string]string

	first *first // nil if all of the response is applied
}

// newResponse returns a response with resources that is about to be applied to a set.
func newResponse(to setEdit, resources []received) response {
	re := response{setEdit: to}
	if slices.ContainsFunc(resources, func(r received) bool { return r.Constraints != nil }) {
		re.firsts = make(map[string]string)
	}
	return re
}

// resource returns the newest resource of a name; nil if there is none. stated reports that it waits.
func (re response) resource(n *Name) (r *wire.Resource, stated bool) {
	if re.first != nil {
		if r, stated = re.first.newest.Resource(n.text); stated {
			return r, true
		}
	}
	return resourceOf(re.set.Get(n)), false
}

// resourceNamed is resource for a text, which has no Name if its resource is a member that waits.
func (re response) resourceNamed(text string) *wire.Resource {
	if n := re.index.names[text]; n != nil {
		r, _ := re.resource(n)
		return r
	}
	if re.first == nil {
		return nil
	}
	r, _ := re.first.newest.Resource(text)
	return r
}

// aliasesOf returns the other names under which the set has a resource, or is to have it.
func (re response) aliasesOf(resource string) []*Name {
	names := slices.Clone(re.branch.aliases[re.typ.URL][resource])
	if re.first == nil || re.kind == Wildcard {
		return names
	}
	names = slices.DeleteFunc(names, func(n *Name) bool {
		r, stated := re.first.newest.Resource(n.text)
		return stated && (r == nil || r.Name != resource)
	})
	for _, text := range re.first.newest.Aliases(resource) {
		if n := re.index.names[text]; n != nil && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// record records a statement.
func (re response) record(s Statement, shown *Entry, waits bool) {
	if re.first != nil {
		re.first.newest.Record(s, shown, waits)
		re.first.waiting = re.first.waiting || waits
	}
}

// admits reports whether a statement of a name is applied now.
func (re response) admits(n *Name, s Statement) bool {
	if re.first == nil {
		return true
	}
	s = re.first.withError(n, s)
	s.Name = n.text
	re.passToCohorts(n, s)
	if shown := re.set.Get(n); re.first.newest.Passes(s, shown) || re.admitsFirst(n, s) || !s.HasContent && re.first.failed[n] {
		re.first.recordFailed(n, s)
		re.record(s, shown, false)
		return true
	}
	re.record(s, re.set.Get(n), true)
	if re.kind == ByName {
		re.recordResponseFor(n)
	} else {
		re.index.release(n) // if it was created for this statement
	}
	return false
}

// fails reports whether the statement has an error other than that the resource does not exist.
func (s *Statement) fails() bool { return s.HasError && s.Err != nil && !s.Err.NotFound() }

// repeats reports whether the statement only has an error, and readers see the same one.
func (s *Statement) repeats(seen *Entry) bool {
	return seen != nil && !s.HasContent && s.Err != nil && seen.Err.Same(s.Err)
}

// admitsFirst reports whether readers lose nothing by a statement of a name.
func (re response) admitsFirst(n *Name, s Statement) bool {
	shown, err := re.set.Get(n), re.typ.Errors(re.kind).Get(n)
	hasNoError := err == nil && !s.fails()
	switch {
	case !cacheable(shown), s.repeats(err):
		return true
	case shown.Present():
		return hasNoError && shown.hasStateOf(s.Resource)
	case re.kind == Wildcard && re.typ.HasLastGood(Wildcard):
		return hasNoError && s.Resource == nil && (s.Err == nil || n.text != WholeName(re.typ.URL))
	case re.kind == Wildcard:
		return true
	}
	return re.admitsName(n, s, hasNoError)
}

// admitsName is admitsFirst for a name of the set of names that has no resource there. hasNoError reports that readers see no
// error, and that none is stated.
func (re response) admitsName(n *Name, s Statement, hasNoError bool) bool {
	shown := re.set.Get(n)
	switch seen, _ := re.typ.Lookup(n); {
	case seen == nil:
		return re.typ.Errors(ByName).Get(n) == nil && shown == nil
	case hasNoError && (s.Resource == nil || shown == nil && seen.hasContentOf(s.Resource)):
		return true // readers see no resource, or already see a member with this content
	default:
		return seen.Expired || !cacheable(seen)
	}
}

// passToCohorts gives cohorts that were shown another state of a name than the rest a statement, if readers there lose nothing by
// it.
func (re response) passToCohorts(n *Name, s Statement) {
	for i, b := range re.w.cohorts() {
		if b.apart[n] != nil {
			response{setEdit: re.cohortEdit(i).editSet(re.kind)}.passFirst(n, s)
		}
	}
}

// passFirst applies a statement of a name if readers lose nothing by it, and otherwise its TTL.
func (re response) passFirst(n *Name, s Statement) {
	if re.admitsFirst(n, s) {
		re.restate(n, s)
	} else if s.Resource != nil {
		re.renewChanged(n, s.Deadline)
	}
}

// renewChanged is renewShown if the TTL has changed.
func (re response) renewChanged(n *Name, deadline time.Time) {
	if old := re.set.Get(n); old.Present() && !deadline.Equal(old.Deadline()) {
		re.renewShown(n, deadline)
	}
}

// renewShown renews the TTL of the content that readers see of a name, also if other content waits.
func (re response) renewShown(n *Name, deadline time.Time) {
	if old := re.set.Get(n); old.Present() {
		renewed := *old
		re.renew(&renewed, deadline)
		re.setTimer(&renewed)
		re.set.put(re.txn, &renewed)
	}
}

// restatable returns the Name of a text; nil if it belongs to another source, or if no session subscribes to it.
func (re response) restatable(text string) *Name {
	n := re.index.names[text]
	if re.kind == Wildcard && n == nil {
		n = re.w.view.index.name(re.index, text)
	}
	if n == nil || !re.w.writes(re.kind, re.typ, n) || re.kind == ByName && re.set.Get(n) == nil && !re.isSubscribed(n) {
		return nil
	}
	return n
}

// restate applies a statement of a name.
func (re response) restate(n *Name, s Statement) {
	old := re.set.Get(n)
	expired := s.expiredAt(re.now)
	cleared := s.HasError && s.Err == nil && (s.Resource == nil || expired) && re.clearError(n)
	if s.HasContent {
		re.restateContent(n, s)
	}
	if s.Err != nil {
		re.putError(n, s.Err)
	}
	if cleared && !old.Present() && re.set.Get(n).seq() == old.seq() {
		re.resendAbsence(n, expired)
	}
}

// restateContent applies the content of a statement of a name.
func (re response) restateContent(n *Name, s Statement) {
	old, expired := re.set.Get(n), s.expiredAt(re.now)
	switch {
	case expired && old.Present():
		re.expireEntry(old)
	case expired && re.kind == ByName && old == nil: // readers were never sent it
		re.expireName(n, nil)
	case expired:
	case s.Resource != nil:
		r := newReceived(re.typ.URL, s.Resource, s.Deadline)
		r.failing, r.copied = !s.HasError || s.Err != nil, s.entry
		re.put(n, r)
	case re.kind == Wildcard:
		re.removeFromWildcard(n)
	default:
		re.restateAbsence(n, s)
	}
}

// restateAbsence applies the statement that a resource of the set of names does not exist.
func (re response) restateAbsence(n *Name, s Statement) {
	old := re.set.Get(n)
	re.putAbsent(n, old)
	re.unalias(old)
	if s.entry == nil || old.Present() {
		return
	}
	absent := *re.set.Get(n)
	if absent.epoch = s.entry.epoch; old != nil { // the origin reported the absence on the connection of either entry
		absent.epoch = max(old.epoch, s.entry.epoch)
	}
	re.set.put(re.txn, &absent)
}
