package cache

import (
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// Collection returns the key of what a glob stands for: wherever a view takes a type
// URL, it also takes this, and the collection's members are those resources of the
// type that the glob matches (R132). They are a set of their own, with a phase, a
// log and watchers of its own.
func Collection(typeURL, glob string) string { return typeURL + wire.Separator + glob }

// resourceType returns the type of the resources of a type or collection.
func resourceType(key string) string {
	typeURL, _, _ := SplitCollection(key)
	return typeURL
}

// SplitCollection returns the type URL and the glob of a collection, or a type URL as
// it is.
func SplitCollection(key string) (typeURL, glob string, is bool) {
	return strings.Cut(key, wire.Separator)
}
