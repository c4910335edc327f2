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

// String returns the first 8 bytes in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:8]) }

// DigestOf returns the digest of m in the state of a client.
func DigestOf(m proto.Message) Digest { return sha256.Sum256(Pack(m).GetValue()) }

// An Entry is a resource in the state of a peer. Entries can be compared with ==.
type Entry struct {
	// Version is the version of the resource in Delta. In SotW it is the version_info of the response with the resource.
	Version string
	// Digest is zero for a resource without a body.
	Digest Digest
}

// A State has the resources of a peer by type URL and name. A type without resources may be absent.
type State map[string]map[string]Entry

// Names returns the sorted names of the resources of a type.
func (s State) Names(typeURL string) []string {
	return slices.Sorted(maps.Keys(s[typeURL]))
}

// Has reports whether the names of the resources of a type are exactly names.
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

// Digest returns the digest of a resource, or zero if it is absent.
func (s State) Digest(typeURL, name string) Digest { return s[typeURL][name].Digest }

// SameContent reports whether s and t have the same resources of a type with the same content. Versions do not count,
// because they differ between SotW and Delta.
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

// entries returns the resources of a type, and creates the map if necessary.
func (s State) entries(typeURL string) map[string]Entry {
	if s[typeURL] == nil {
		s[typeURL] = make(map[string]Entry)
	}
	return s[typeURL]
}

// FullState reports whether SotW responses of a type contain all resources, so that absent resources are removed. These
// are the two types that the protocol defines, and SRDS in Envoy.
func FullState(typeURL string) bool {
	return typeURL == ListenerType || typeURL == ClusterType || typeURL == ScopedRouteType
}

// NameOf returns the name in the content of a resource.
func NameOf(body *anypb.Any) string { return nameOf(body.GetValue()) }

// nameOf returns the name in the content of a resource, which is field 1 in all xDS types. Without that field, the name
// is made from the digest.
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

// digest returns the digest of a body, or zero for nil.
func digest(body *anypb.Any) Digest {
	if body == nil {
		return Digest{}
	}
	return sha256.Sum256(body.GetValue())
}

// CollectionOf returns the collection of a name: "a/*" for "a/b", and "a/*?c=d" for the xdstp name "a/b?c=d".
func CollectionOf(name string) string {
	path, context := name, ""
	if at := strings.IndexByte(name, '?'); at >= 0 && strings.HasPrefix(name, "xdstp:") {
		path, context = name[:at], name[at:]
	}
	return path[:strings.LastIndexByte(path, '/')+1] + "*" + context
}
