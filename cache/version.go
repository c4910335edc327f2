package cache

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// A Sum identifies a set of resources by content: the sum of their leaves modulo
// 2^128. Adding and removing a resource costs one addition, and no order, clock,
// counter or host enters, so that every replica says the same of the same set
// (B.2). The zero Sum is that of the empty set.
type Sum struct{ hi, lo uint64 }

// Add returns s with leaf o added.
func (s Sum) Add(o Sum) Sum {
	lo, carry := bits.Add64(s.lo, o.lo, 0)
	hi, _ := bits.Add64(s.hi, o.hi, carry)
	return Sum{hi, lo}
}

// Sub returns s with leaf o removed.
func (s Sum) Sub(o Sum) Sum {
	lo, borrow := bits.Sub64(s.lo, o.lo, 0)
	hi, _ := bits.Sub64(s.hi, o.hi, borrow)
	return Sum{hi, lo}
}

// contentMark begins the part of a version that says what the content is.
const contentMark = "r1."

// Version returns the version_info of a set whose origin calls it system:
// people see the origin's own version, and what follows the last "~" is the
// content's (B.2).
func (s Sum) Version(system string) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], s.hi)
	binary.BigEndian.PutUint64(b[8:], s.lo)
	v := contentMark + base64.RawURLEncoding.EncodeToString(b[:])
	if system == "" {
		return v
	}
	return system + "~" + v
}

// SameVersion reports whether version, as a client gave it, names a set with
// this sum. Only what follows the last "~" counts.
func (s Sum) SameVersion(version string) bool {
	return version[strings.LastIndexByte(version, '~')+1:] == s.Version("")
}

// sumOf returns the sum of the set that a version names; not ok if it is no version of a Sum.
func sumOf(version string) (s Sum, ok bool) {
	text, ok := strings.CutPrefix(version[strings.LastIndexByte(version, '~')+1:], contentMark)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != 16 {
		return Sum{}, false
	}
	return Sum{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}, true
}

// mark stands for the sum where many are remembered.
func (s Sum) mark() uint32 { return uint32(s.lo) | 1 }

// VersionSource says what a SotW version is made from.
type VersionSource int

// The sources of versions (TENDER_VERSION_SOURCE).
const (
	// FromContent makes versions from the resources' bytes.
	FromContent VersionSource = iota
	// FromOrigin makes versions from the versions that the origin gave its
	// resources: right only where those are hashes of the content.
	FromOrigin
)

// leaf returns what a resource adds to its set's sum. A resource without a body
// is in no SotW set and adds nothing.
func (src VersionSource) leaf(typeURL string, r *wire.Resource) Sum {
	if !r.HasBody() {
		return Sum{}
	}
	h := sha256.New()
	h.Write([]byte("tender1" + typeURL))
	h.Write([]byte{0})
	h.Write([]byte(r.Name))
	h.Write([]byte{0})
	if src == FromOrigin && r.OriginVersion != "" {
		h.Write([]byte(r.OriginVersion))
	} else {
		h.Write(r.Digest[:])
	}
	var d [sha256.Size]byte
	h.Sum(d[:0])
	return Sum{binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:16])}
}

// same reports whether b is what a client that has a has already. Where versions
// are hashes of the content, they say so; the bytes may differ from one replica of
// the origin to the next.
func (src VersionSource) same(a, b *wire.Resource) bool {
	if src == FromOrigin && a.OriginVersion != "" && a.OriginVersion == b.OriginVersion {
		return true
	}
	return a.SameContent(b)
}
