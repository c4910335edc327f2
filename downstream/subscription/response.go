package subscription

import (
	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// MaxResponseBytes is the maximum size of a response that may be partial, unless it has a single resource. By default,
// gRPC clients read messages of up to 4 MiB (B.32).
const MaxResponseBytes = 3_500_000

// A Response is a response to a client. Without a body, nothing is sent.
type Response struct {
	Body *wire.Body

	// Refers has what must be sent again for resources in the response that are new or changed (B.16); nil if there is nothing.
	Refers *wire.References

	// Truncated is set if the response was full before it had all changes. Waits is set if changes wait, so that there is no body.
	Truncated, Waits bool

	// Secrets names the Secrets in the response.
	Secrets []string

	// After is the position up to which the client was sent changes before. The response has later changes.
	After cache.Seq

	has            *delivery         // its resources and removals by name; nil without any, or if it does not matter
	newlyRequested span              // changes in it of names that the client is sent for the first time
	before         cache.Seq         // position of the subscription before this response
	from           *cache.Generation // the generation that it was built from
}

// MoreDue reports whether changes are due that the response does not have. Removals of other types must not overtake them.
func (r *Response) MoreDue() bool { return r.Truncated || r.Waits }

// A writer builds one response.
type writer struct {
	visible
	out      Response
	sizeHint int                 // expected number of resources; 0 if unknown
	emitted  map[string]struct{} // keys of resources, removals and errors in out; nil if none can occur twice
}

func newWriter(v visible) writer {
	w := writer{visible: v}
	if v.t.ByName.Aliased() || len(v.resend) > 0 || v.ttlsDue() || v.errors.behind(v.t) {
		w.emitted = make(map[string]struct{})
	}
	return w
}

// body returns the body of the response. It creates an empty one if needed, which makes the response due.
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
		whole = w.parent.visibleAt(w.g) // the version covers all that the client sees of the type
	}
	return wire.NewSotWBody(w.TypeURL, whole.sum().Version(w.t.System()), w.wrap)
}

// alreadyEmitted reports whether the response already contains a key, and records that it does now.
func (w *writer) alreadyEmitted(key string) bool {
	if w.emitted == nil {
		return false
	}
	_, emitted := w.emitted[key]
	w.emitted[key] = struct{}{}
	return emitted
}

// add adds a resource.
func (w *writer) add(e *cache.Entry) {
	r := e.Resource
	if !w.Delta && !r.HasBody() || w.alreadyEmitted(r.Key()) {
		return // SotW cannot express that an alias is unknown
	}
	w.body().Add(r, w.ttlOf(e))
	if d := w.delivery(); d != nil {
		d.added = append(d.added, e.Name.String())
	}
	if w.Secret {
		w.out.Secrets = append(w.out.Secrets, r.Name)
	}
	w.out.Refers = w.out.Refers.With(r)
}

// delivery returns what the response has, to which the caller adds; nil if it does not matter.
func (w *writer) delivery() *delivery {
	if !w.Delta || !wire.HasKeys(w.TypeURL) {
		return nil
	}
	if w.out.has == nil {
		w.out.has = new(delivery)
	}
	return w.out.has
}

func (w *writer) recordRemoved(name string) {
	if d := w.delivery(); d != nil {
		d.removed = append(d.removed, name)
	}
}

// removeResource removes a resource from a Delta client. A SotW client learns of the removal from a change to the
// resource that referred to it (R067).
func (w *writer) removeResource(name string) {
	if w.stateAbsent(name) {
		w.recordRemoved(wire.PlainName(name))
	}
}

// stateAbsent tells a Delta client that a resource does not exist, which it may never have had. It reports whether the
// response says so.
func (w *writer) stateAbsent(name string) bool {
	name = wire.PlainName(name)
	if !w.Delta || w.visibleElsewhere(name) || w.alreadyEmitted(name) {
		return false
	}
	w.body().Remove(name)
	return true
}

// removeUnlessAliased removes a resource unless the client also sees it under another name (R092).
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

// removeVariant removes one variant of a resource from a Delta client, unless the response contains that variant.
func (w *writer) removeVariant(v wire.Variant) {
	if w.Delta && !w.alreadyEmitted(v.Key()) {
		w.body().RemoveVariant(v)
		w.recordRemoved(v.Name)
	}
}

// removeEmptyGlob sends the name of a glob as removed if the glob matches nothing (R132).
func (w *writer) removeEmptyGlob() {
	if w.glob != "" && w.t.Wildcard.Count() == 0 {
		w.removeResource(w.glob)
	}
}

// full reports whether the response must end before the next entry, which may be nil. The other entries follow in the
// next response (B.32).
func (w *writer) full(next *cache.Entry) bool {
	if w.out.Body == nil || w.out.Truncated {
		return w.out.Truncated
	}
	size, more := w.out.Body.Size(), 0
	if next.Present() {
		more = next.Resource.Size()
	}
	w.out.Truncated = size >= w.Settings.ResponseBytes || size+more > MaxResponseBytes && w.out.Body.Len() > 0
	return w.out.Truncated
}

// removeEntry removes the resource of an entry from a Delta client. If the client had the resource, it is sent the
// resource's own name, otherwise the subscribed name. A returning client that reported the resource is sent both
// (R086).
func (w *writer) removeEntry(e *cache.Entry, had bool) {
	r := e.Prior
	switch {
	case !w.Delta:
	case r == nil || !had:
		if _, holds := w.initialVersions[e.Name.String()]; holds || r != nil {
			w.removeResource(e.Name.String())
		} else {
			w.stateAbsent(e.Name.String())
		}
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
