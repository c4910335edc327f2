package wire

import "github.com/xdstender/tender/cache/wire/schema"

// What is known of a resource's content, in Resource.sensitive.
const (
	unjudged int32 = iota
	public
	mayBeSensitive
)

// MayBeSensitive reports whether the content has secrets in it, or something of which
// that cannot be known, as [schema.MayBeSensitive] has it (B.36). It looks once.
func (r *Resource) MayBeSensitive() bool {
	judgement := r.sensitive.Load()
	if judgement == unjudged {
		judgement = public
		if schema.MayBeSensitive(r.TypeURL, r.Value()) {
			judgement = mayBeSensitive
		}
		r.sensitive.Store(judgement)
	}
	return judgement == mayBeSensitive
}
