package cache

import "strings"

// collectionMark stands between a type URL and a glob. No type URL holds it: what
// clients send is text, and it is not part of any.
const collectionMark = "\x00"

// Collection returns the key of what a glob stands for: wherever a view takes a type
// URL, it also takes this, and the collection's members are those resources of the
// type that the glob matches (R132). They are a set of their own, with a phase, a
// log and watchers of its own.
func Collection(typeURL, glob string) string { return typeURL + collectionMark + glob }

// resourceType returns the type of the resources of a type or collection.
func resourceType(key string) string {
	typeURL, _, _ := SplitCollection(key)
	return typeURL
}

// SplitCollection returns the type URL and the glob of a collection, or a type URL as
// it is.
func SplitCollection(key string) (typeURL, glob string, is bool) {
	return strings.Cut(key, collectionMark)
}
