package history

import (
	"cmp"
	"context"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// pause is the minimum time between two reads of a view by its follower. It limits the cost. Several changes of a
// resource within this time are recorded as one.
const pause = 100 * time.Millisecond

// A Follower records the changes of one view in a journal.
type Follower struct {
	journal *Journal
	view    *cache.View
	group   string // node group of the view
	watch   *cache.Watch
	seen    *cache.Generation // last generation that was recorded; owned by Run
}

// Follow returns a follower of the view of a node group. It records changes after the current generation of the view.
// The caller must call Run, which releases the follower.
func (j *Journal) Follow(v *cache.View, group string) *Follower {
	j.open(v)
	return &Follower{journal: j, view: v, group: group, watch: v.Observe(), seen: v.Generation()}
}

// Run records changes until ctx ends. It then removes all changes of the view from the journal.
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
			continue // changes of Secrets are not recorded (B.36)
		}
		was := f.seen.Type(t.URL)
		if t.Wildcard.Floor() > f.seen.Seq && t.Phase > cache.Unknown { // phase Unknown: the relay has unsubscribed
			f.missed(typeURL, cmp.Or(glob, wire.Wildcard), &was.Wildcard, &t.Wildcard)
		}
		f.compare(typeURL, cmp.Or(glob, wire.Wildcard), &was.Wildcard, &t.Wildcard)
		f.compare(typeURL, "", &was.ByName, &t.ByName)
	}
	f.seen = generation
}

// compare records the changes between two generations of a set. askedAs is as in Change.
func (f *Follower) compare(typeURL, askedAs string, was, is *cache.Set) {
	for e := range is.Since(f.seen.Seq) {
		before := was.Get(e.Name)
		f.journal.record(f.view, event{
			resource: resource{typeURL, e.Name.String()}, group: f.group, askedAs: askedAs,
			at: f.view.Cause(e.Seq).Received, was: kept(before), is: kept(e), wasSeq: seqOf(before), seq: e.Seq, expired: e.Expired,
		})
	}
}

// missed records the removals whose tombstones the set has already dropped.
func (f *Follower) missed(typeURL, askedAs string, was, is *cache.Set) {
	for e := range was.Since(0) {
		if e.Present() && is.Get(e.Name) == nil {
			f.journal.record(f.view, event{
				resource: resource{typeURL, e.Name.String()}, group: f.group, askedAs: askedAs,
				at: f.view.Cause(f.seen.Seq + 1).Received, was: kept(e), wasSeq: e.Seq,
			})
		}
	}
}

// seqOf returns the position of an entry, 0 for nil.
func seqOf(e *cache.Entry) cache.Seq {
	if e == nil {
		return 0
	}
	return e.Seq
}

// kept returns the resource of an entry for the journal, or nil if it is not present. It drops the content of a
// resource with do_not_cache (R125) and of a Secret.
func kept(e *cache.Entry) *wire.Resource {
	if !e.Present() {
		return nil
	}
	if r := e.Resource; !r.DoNotCache && !wire.IsSecret(r.TypeURL) {
		return r
	}
	return e.Resource.DropContent()
}
