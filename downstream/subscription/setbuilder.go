package subscription

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A setBuilder collects a complete set, each resource once.
type setBuilder struct {
	union   bool // include removed resources that the client was sent
	sumOnly bool // compute only the sum, which covers all visible resources even if they cannot be sent

	resources []*wire.Resource
	ttls      []time.Duration     // by index of resources
	seen      map[string]struct{} // keys; nil if none can occur twice
	refers    *wire.References    // of changed resources
	sum       fingerprint.Sum
}

// collect adds all that the client sees to a set.
func (v visible) collect(b setBuilder) *setBuilder {
	b.seen = make(map[string]struct{})
	b.addNames(v)
	for part := range v.wildcards() {
		b.addMembers(part.visibleAt(v.g), v)
	}
	return &b
}

// addNames adds the resources that the client named. It also adds removed ones that the client was sent, in a union or
// if the origin has not confirmed the removal.
func (b *setBuilder) addNames(v visible) {
	for _, n := range v.names {
		e, seq := v.entryOf(n)
		switch keeps := n.sent != 0 && seq > n.sent && (b.union || !v.confirmedAbsent(e)) && !b.sumOnly; {
		case e.Present():
			b.add(v, e.Resource, e, seq > n.sent)
		case e != nil && e.Prior != nil && keeps:
			b.add(v, e.Prior, e, false)
		}
	}
}

// addMembers adds the resources of a wildcard set that the client did not name. A union also has the removed ones that
// the client was sent. TTLs are those of the subscription of.
func (b *setBuilder) addMembers(members, of visible) {
	for e := range members.t.Wildcard.Since(0) {
		if _, named := members.find(e.Name); named {
			continue
		}
		switch {
		case e.Present():
			if !members.withheld(e) {
				b.add(of, e.Resource, e, e.Seq > members.sentUpTo)
			}
		case b.union && members.keepsInUnion(e):
			b.add(of, e.Prior, e, false)
		}
	}
}

// keepsInUnion reports whether a union holds a resource that left the wildcard set: the client was sent it.
func (v visible) keepsInUnion(e *cache.Entry) bool {
	return !e.Present() && e.Prior != nil && v.hadMember(e)
}

// add adds the resource of an entry, or its former one, unless the set has it already or its content was dropped.
func (b *setBuilder) add(v visible, r *wire.Resource, e *cache.Entry, changed bool) {
	if _, seen := b.seen[r.Key()]; seen || r.ContentDropped() && !b.sumOnly {
		return
	}
	if b.seen != nil {
		b.seen[r.Key()] = struct{}{}
	}
	if b.sum = b.sum.Add(e.Leaf); b.sumOnly {
		return
	}
	b.resources, b.ttls = append(b.resources, r), append(b.ttls, v.ttlOf(e))
	if changed {
		b.refers = b.refers.With(r)
	}
}

// body returns the set as the body of a response.
func (b *setBuilder) body(v visible, wrap wire.Wrap) *wire.Body {
	body := wire.NewSotWBody(v.TypeURL, b.sum.Version(v.t.System()), wrap)
	body.Grow(len(b.resources))
	for i, r := range b.resources {
		body.Add(r, b.ttls[i])
	}
	return body
}

// names returns the names of the resources in the set.
func (b *setBuilder) names() []string {
	names := make([]string, len(b.resources))
	for i, r := range b.resources {
		names[i] = r.Name
	}
	return names
}
