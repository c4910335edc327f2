// Package fingerprint identifies a set of resources by its content. The version_info of complete sets is made from it
// (B.2).
//
// The fingerprint of a set, a [Sum], is the sum of a hash of each resource, its leaf. So a change of one resource
// costs one subtraction and one addition, whatever the size of the set. No order, clock, counter or host enters: all
// replicas of a relay, and a relay after a restart, give one set the same version.
//
// The package is not a stable API: programs that embed Tender use package relay.
package fingerprint

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// A Sum identifies a set of resources: the sum of their leaves modulo 2^128. The zero Sum is that of the empty set.
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

// prefix begins the part of a version that identifies the content.
const prefix = "r1."

// Version returns the version_info of the set. System is the origin's own version, which is only shown: what follows
// the last "~" identifies the content.
func (s Sum) Version(system string) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], s.hi)
	binary.BigEndian.PutUint64(b[8:], s.lo)
	v := prefix + base64.RawURLEncoding.EncodeToString(b[:])
	if system == "" {
		return v
	}
	return system + "~" + v
}

// SameVersion reports whether a version that a client sent identifies this set.
func (s Sum) SameVersion(version string) bool { return content(version) == s.Version("") }

// content returns the part of a version that identifies the content.
func content(version string) string { return version[strings.LastIndexByte(version, '~')+1:] }

// Parse returns the sum of the set that a version identifies; not ok if Version did not make it.
func Parse(version string) (s Sum, ok bool) {
	text, ok := strings.CutPrefix(content(version), prefix)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != 16 {
		return Sum{}, false
	}
	return Sum{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}, true
}

// Mark returns 32 bits of the sum, never zero, to remember many of them.
func (s Sum) Mark() uint32 { return uint32(s.lo) | 1 }

// Leaf returns what a resource adds to the sum of its set. A resource without a body is in no SotW response and adds
// nothing.
func Leaf(typeURL string, r *wire.Resource) Sum {
	if !r.HasBody() {
		return Sum{}
	}
	const usual = 256 // bytes, which need no allocation
	b := append(append(make([]byte, 0, usual), "tender1"...), typeURL...)
	b = append(append(append(b, 0), r.Name...), 0)
	b = append(b, r.Digest[:]...)
	d := sha256.Sum256(b)
	return Sum{binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:16])}
}
