package reconcile

import (
	"iter"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A waiting is an addition that waits for the removal of resources that exclude it.
type waiting struct {
	resource *wire.Resource
	since    time.Time
	cause    cache.Cause
	renewed  time.Time // when the origin last stated it, or renewed its TTL
}

// A keyIndex finds the served resources of a set by their keys.
type keyIndex struct {
	names map[string]names    // by key; nil until an addition has keys
	keys  map[string][]string // by name
	most  int                 // number of keys at which the served resources are counted again, which takes long
}

// build indexes the served resources on the first call.
func (i *keyIndex) build(served iter.Seq[string], get func(name string) *wire.Resource) {
	if i.names != nil {
		return
	}
	i.names, i.keys = make(map[string]names), make(map[string][]string)
	for name := range served {
		i.add(get(name))
	}
}

// keysOf returns the keys of a resource. Variants of one name have none: each client gets one of them. r may be nil.
func keysOf(r *wire.Resource) []string {
	if r == nil || r.Constraints != nil || r.Refusal != nil {
		return nil
	}
	return r.Keys()
}

// add indexes a served resource; r may be nil.
func (i *keyIndex) add(r *wire.Resource) {
	keys := keysOf(r)
	if len(keys) > 0 {
		i.keys[r.Name] = keys
	}
	for _, key := range keys {
		of := i.names[key]
		put(&of, r.Name, struct{}{})
		i.names[key] = of
	}
}

func (i *keyIndex) drop(name string) {
	for _, key := range i.keys[name] {
		if delete(i.names[key], name); len(i.names[key]) == 0 {
			delete(i.names, key)
		}
	}
	delete(i.keys, name)
}

// update indexes the resources of an update that was applied. served is the number of served resources. Some leave the content
// without an update, for example when their TTL is over: the index is built anew before it has many of these.
func (i *keyIndex) update(u wire.Update, get func(name string) *wire.Resource, served func() int) {
	if i.names == nil {
		return
	}
	if len(i.keys) > i.most {
		if i.most = 2*served() + 16; len(i.keys) > i.most {
			*i = keyIndex{}
			return
		}
	}
	for name := range u.RemovedNames() {
		i.drop(name)
	}
	for _, r := range u.Resources {
		i.drop(r.Name)
		i.add(get(r.Name)) // the view does not store a resource without a subscription
	}
}

// additions count the resources that an origin added.
type additions struct {
	all     int
	unkeyed int // those without keys, which may be renamed resources
}

// count counts a resource; r is nil if it has left the content since.
func (a *additions) count(r *wire.Resource) {
	if a.all++; r != nil && len(keysOf(r)) == 0 {
		a.unkeyed++
	}
}

// large reports whether removals from a set are so many that the origin may have lost its state. size is the number of resources
// with the additions.
func (a additions) large(typeURL string, removed, size int) bool {
	return cache.LargeRemoval(typeURL, removed, size-a.all, a.unkeyed)
}
