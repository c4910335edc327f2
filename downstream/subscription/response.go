package subscription

import (
	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// MaxResponseBytes is the size that a response which can be cut never exceeds, except for a single resource: clients
// of gRPC read messages of up to 4 MiB by default (B.32).
const MaxResponseBytes = 3_500_000

// A Response is what a client is to be sent. One without a body is none.
type Response struct {
	Body *wire.Body

	// Endpoints names the ClusterLoadAssignments that clusters in the response need anew (B.16).
	Endpoints []string

	// Cut is set if the response was full before the changes were.
	Cut bool

	// Secrets names the Secrets in the response.
	Secrets []string

	// After is the position that the client was sent before: the response holds what changed after it.
	After cache.Seq

	newlyRequested span              // of the changes of names in it that the client was not sent before
	before         cache.Seq         // up to where the client was sent changes before
	from           *cache.Generation // that the response is made of
}

// A writer collects what one response holds.
type writer struct {
	visible
	out      Response
	sizeHint int                 // how many resources there may be, if that is known
	emitted  map[string]struct{} // keys that the response has something of; nil if none can occur twice
}

func newWriter(v visible) writer {
	w := writer{visible: v}
	if v.t.ByName.Aliased() || len(v.resend) > 0 || v.ttlsDue() || v.errors.behind(v.t) {
		w.emitted = make(map[string]struct{})
	}
	return w
}

// body returns the body of the response, which begins with it, even if it stays empty.
func (w *writer) body() *wire.Body {
	if w.out.Body == nil {
		w.out.Body = w.newBody()
		w.out.Body.Grow(w.sizeHint)
	}
	return w.out.Body
}

func (w *writer) newBody() *wire.Body {
	if w.Delta {
		return wire.NewDeltaBody(w.TypeURL, w.t.System())
	}
	whole := w.visible
	if w.parent != nil {
		whole = w.parent.visibleAt(w.g) // the version is of all that the client sees of the type
	}
	return wire.NewSotWBody(w.TypeURL, whole.sum().Version(w.t.System()), w.wrap)
}

// alreadyEmitted reports whether the response has something of a key, and notes that it has now.
func (w *writer) alreadyEmitted(key string) bool {
	if w.emitted == nil {
		return false
	}
	_, twice := w.emitted[key]
	w.emitted[key] = struct{}{}
	return twice
}

// add adds a resource.
func (w *writer) add(e *cache.Entry) {
	r := e.Resource
	if !w.Delta && !r.HasBody() || w.alreadyEmitted(r.Key()) {
		return // SotW cannot express that an alias is not known
	}
	w.body().Add(r, w.ttlOf(e))
	if w.Secret {
		w.out.Secrets = append(w.out.Secrets, r.Name)
	}
	if r.EDSName != "" {
		w.out.Endpoints = append(w.out.Endpoints, r.EDSName)
	}
}

// removeResource removes a resource from a Delta client. A SotW client learns of the removal from what referred to the
// resource (R067).
func (w *writer) removeResource(name string) {
	name = wire.PlainName(name)
	if w.Delta && !w.visibleElsewhere(name) && !w.alreadyEmitted(name) {
		w.body().Remove(name)
	}
}

// removeUnlessAliased removes a resource unless the client also sees it by another name (R092).
func (w *writer) removeUnlessAliased(name string) {
	if !w.visibleUnderAlias(name) {
		w.removeResource(name)
	}
}

// removeMember removes a resource that left the wildcard set.
func (w *writer) removeMember(e *cache.Entry) {
	if r := e.Prior; r != nil && r.Constraints != nil {
		w.removeVariant(r.Variant())
		return
	}
	w.removeUnlessAliased(e.Name.String())
}

// removeVariant removes one variant of a resource from a Delta client, unless the response has that very one.
func (w *writer) removeVariant(v wire.Variant) {
	if w.Delta && !w.alreadyEmitted(v.Key()) {
		w.body().RemoveVariant(v)
	}
}

// removeEmptyGlob tells a client that its glob matches nothing, by the glob's name (R132).
func (w *writer) removeEmptyGlob() {
	if w.glob != "" && w.t.Wildcard.Count() == 0 {
		w.removeResource(w.glob)
	}
}

// full reports whether the response ends before an entry, which may be nil, and the rest follow in the next one (B.32).
func (w *writer) full(next *cache.Entry) bool {
	if w.out.Body == nil || w.out.Cut {
		return w.out.Cut
	}
	size, more := w.out.Body.Size(), 0
	if next.Present() {
		more = next.Resource.Size()
	}
	w.out.Cut = size >= w.Settings.ResponseBytes || size+more > MaxResponseBytes && w.out.Body.Len() > 0
	return w.out.Cut
}

// removeEntry removes what an entry stands for from a Delta client: by the name that the client asked for, or, if it
// had the resource, by the resource's own name. A client that returns and reports the resource is sent both (R086).
func (w *writer) removeEntry(e *cache.Entry, had bool) {
	r := e.Prior
	switch {
	case !w.Delta:
	case r == nil || !had:
		w.removeResource(e.Name.String())
		if r == nil || r.Constraints != nil || r.Name == e.Name.String() {
			return
		}
		if _, holds := w.initialVersions[r.Name]; holds {
			delete(w.initialVersions, r.Name)
			w.removeUnlessAliased(r.Name)
		}
	case r.Constraints == nil:
		w.removeUnlessAliased(r.Name)
	default:
		w.removeVariant(r.Variant())
	}
}
