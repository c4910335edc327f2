package subscription

import (
	"slices"

	"github.com/xdstender/tender/cache"
)

// trust decides whether an equal version proves that a client holds the current content (B.3).
//
// A client that applies part of a response and rejects it still reports its former version (envoy#12592). If the origin
// returns to that version, an equal version proves nothing. The content is therefore sent during [cache.RevertMemory].
// The same holds for resources of a rejected edition, which another relay may have sent to the client.
type trust struct{ visible }

// trustsVersion reports whether the version of a resource that the client reported can be trusted. The origin must not
// reuse versions for other content, and the resource must not have expired at the client (B.3, C31).
func (v trust) trustsVersion(from *cache.Source, e *cache.Entry) bool {
	expires := v.sendsTTLs && e.Expires()
	unique := !from.Reused || v.Settings.ContentVersions
	return !expires && unique && e.Reverted().IsZero() && !v.distrusts(e.Name.String())
}

// doubts returns why the version of the whole set proves nothing. The position tells when a resource in it last
// returned to former content. The revision is that of the view's distrust, if any resource was part of a rejected
// edition. Both are zero if the version can be trusted.
func (v trust) doubts() (reverted cache.Seq, distrust uint64) {
	revision := v.Watch.View().Distrust.Revision()
	if revision != 0 && v.distrustsAny() {
		distrust = revision
	}
	return v.reverted(), distrust
}

// distrustsAny reports whether the client subscribes to anything that was part of a rejected edition.
func (v trust) distrustsAny() bool {
	for part := range v.wildcards() {
		if v.Watch.View().Distrust.HasType(part.Key) {
			return true
		}
	}
	return slices.ContainsFunc(v.names, func(n subscribed) bool { return v.distrusts(n.name.String()) })
}

// reverted returns the position at which a visible resource last returned to former content, as far as the cache
// remembers; zero if none did. A name has an entry in each set, and these revert at different times. The position of
// its newest visible change therefore counts.
func (v trust) reverted() (at cache.Seq) {
	for part := range v.wildcards() {
		at = max(at, v.g.Type(part.Key).Wildcard.Reverted())
	}
	for _, n := range v.names {
		if e, seq := v.entryOf(n); e != nil && !e.Reverted().IsZero() {
			at = max(at, seq)
		}
	}
	return at
}
