package relaytest

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// A Digest is the SHA-256 of the value of a resource's Any.
type Digest [sha256.Size]byte

// String returns the first 8 bytes in hexadecimal: enough to tell by eye.
func (d Digest) String() string { return hex.EncodeToString(d[:8]) }

// DigestOf returns the digest that a client has of m once it was sent.
func DigestOf(m proto.Message) Digest { return sha256.Sum256(pack(m).GetValue()) }

// An Entry is what a peer has under one name. Entries may be compared by ==.
type Entry struct {
	// Version is the resource's own version in Delta; in SotW it is the
	// version_info of the response that brought it.
	Version string
	// Digest is zero for a resource that came without a body.
	Digest Digest
}

// A State is what a peer has: by type URL, by resource name. A type without
// resources may be present or absent.
type State map[string]map[string]Entry

// Names returns the sorted names that s has of a type.
func (s State) Names(typeURL string) []string {
	return slices.Sorted(maps.Keys(s[typeURL]))
}

// Has reports whether s has exactly these names of a type.
func (s State) Has(typeURL string, names ...string) bool {
	if len(s[typeURL]) != len(names) {
		return false
	}
	for _, name := range names {
		if _, ok := s[typeURL][name]; !ok {
			return false
		}
	}
	return true
}

// Digest returns the digest under a name, zero if there is none.
func (s State) Digest(typeURL, name string) Digest { return s[typeURL][name].Digest }

// SameContent reports whether s and t have the same names of a type with the
// same bytes. Versions do not count: SotW and Delta have different ones.
func (s State) SameContent(t State, typeURL string) bool {
	return maps.EqualFunc(s[typeURL], t[typeURL], func(a, b Entry) bool { return a.Digest == b.Digest })
}

// Clone returns a copy that shares nothing with s.
func (s State) Clone() State {
	c := make(State, len(s))
	for typeURL, entries := range s {
		c[typeURL] = maps.Clone(entries)
	}
	return c
}

func (s State) entries(typeURL string) map[string]Entry {
	if s[typeURL] == nil {
		s[typeURL] = make(map[string]Entry)
	}
	return s[typeURL]
}

// fullState lists the types of which a SotW response holds all that the client
// is to have, so that a name that is absent is deleted: the two of the
// protocol, and SRDS as Envoy reads it.
func fullState(typeURL string) bool {
	return typeURL == ListenerType || typeURL == ClusterType || typeURL == ScopedRouteType
}

// NameOf returns the name that a resource has in itself, as every xDS type does.
func NameOf(body *anypb.Any) string { return nameOf(body.GetValue()) }

// nameOf reads the name of a resource out of its bytes: every xDS type has it
// in field 1. One that has none is called by its digest.
func nameOf(value []byte) string {
	if name, ok := field(value, 1); ok {
		return string(name)
	}
	return "sha256:" + Digest(sha256.Sum256(value)).String()
}

// field returns the first length-delimited field num of a message.
func field(b []byte, num protowire.Number) ([]byte, bool) {
	for len(b) > 0 {
		got, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, false
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(got, typ, b)
		if size < 0 {
			return nil, false
		}
		if got == num && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return v, true
		}
		b = b[size:]
	}
	return nil, false
}

func digest(body *anypb.Any) Digest {
	if body == nil {
		return Digest{}
	}
	return sha256.Sum256(body.GetValue())
}

// collectionOf returns the collection that a name belongs to: "a/b" is in "a/*",
// and, of an xdstp name, "a/b?c=d" in "a/*?c=d".
func collectionOf(name string) string {
	path, context := name, ""
	if at := strings.IndexByte(name, '?'); at >= 0 && strings.HasPrefix(name, "xdstp:") {
		path, context = name[:at], name[at:]
	}
	return path[:strings.LastIndexByte(path, '/')+1] + "*" + context
}
