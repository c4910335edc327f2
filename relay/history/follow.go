package history

import (
	"cmp"
	"context"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// pause is the minimum time between two reads of a view by its follower. It bounds the cost; changes of one resource
// within it are recorded as one.
const pause = 100 * time.Millisecond

// A Follower records what changes in one view.
type Follower struct {
	journal *Journal
	view    *cache.View
	group   string
	watch   *cache.Watch
	seen    *cache.Generation // owned by Run
}

// Follow returns a follower of the view of a node group, to which all that the view has by now is
// nothing new. Run must be called.
func (j *Journal) Follow(v *cache.View, group string) *Follower {
	j.open(v)
	return &Follower{journal: j, view: v, group: group, watch: v.Observe(), seen: v.Generation()}
}

// Run records changes until ctx ends, and then forgets those of the view.
func (f *Follower) Run(ctx context.Context) {
	defer f.journal.forget(f.view)
	defer f.watch.Close()
	for {
		select {
		case <-f.watch.C:
		case <-ctx.Done():
			return
		}
		f.look()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// look records what has changed since the last look.
func (f *Follower) look() {
	generation := f.view.Generation()
	for t := range generation.ChangedSince(f.seen.Revision) {
		typeURL, glob, _ := cache.SplitCollection(t.URL)
		if wire.IsSecret(typeURL) {
			continue // there is no history of Secrets (B.36)
		}
		was := f.seen.Type(t.URL)
		if t.Wildcard.Floor() > f.seen.Seq && t.Phase > cache.Unknown { // else the members are wanted no more
			f.missed(typeURL, cmp.Or(glob, wire.Wildcard), &was.Wildcard, &t.Wildcard)
		}
		f.compare(typeURL, cmp.Or(glob, wire.Wildcard), &was.Wildcard, &t.Wildcard)
		f.compare(typeURL, "", &was.ByName, &t.ByName)
	}
	f.seen = generation
}

// compare records what has changed from one set to another that came after it.
func (f *Follower) compare(typeURL, askedAs string, was, is *cache.Set) {
	for e := range is.Since(f.seen.Seq) {
		f.journal.record(f.view, event{
			resource: resource{typeURL, e.Name.String()}, group: f.group, askedAs: askedAs,
			at: f.view.Cause(e.Seq).Received, was: kept(was.Get(e.Name)), is: kept(e), expired: e.Expired,
		})
	}
}

// missed records removals that a set has forgotten already.
func (f *Follower) missed(typeURL, askedAs string, was, is *cache.Set) {
	for e := range was.Since(0) {
		if e.Present() && is.Get(e.Name) == nil {
			f.journal.record(f.view, event{
				resource: resource{typeURL, e.Name.String()}, group: f.group, askedAs: askedAs,
				at: f.view.Cause(f.seen.Seq + 1).Received, was: kept(e),
			})
		}
	}
}

// kept returns the resource of an entry for the journal: without content if it has do_not_cache (R125), or if it is a
// Secret within another resource.
func kept(e *cache.Entry) *wire.Resource {
	if !e.Present() {
		return nil
	}
	if r := e.Resource; !r.DoNotCache && !wire.IsSecret(r.TypeURL) {
		return r
	}
	return e.Resource.DropContent()
}
