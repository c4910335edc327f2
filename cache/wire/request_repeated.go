package wire

import (
	"hash/maphash"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxAround is the maximum size in bytes of the fields around the names of a request that decodeRepeated decodes. An ACK
// has less.
const maxAround = 4 << 10

// decodeRepeated decodes a SotW request that has the names of the previous request for its type in the same encoding, as
// an ACK does. It hashes the names where they are, and neither copies nor parses them. It reports whether data is such a
// request, and valid; otherwise, the caller decodes it by Decode.
func (r *Request) decodeRepeated(data mem.BufferSlice) bool {
	if r.Delta || r.Latest == nil || len(data) == 0 {
		return false
	}
	before := beforeNames(data[0].ReadOnlyData())
	if before < 0 {
		return false
	}
	size := data.Len()
	for i := range r.Latest.types {
		names := &r.Latest.types[i]
		after := size - before - names.size
		if names.size == 0 || after < 0 || before+after > maxAround {
			continue
		}
		if r.decodeAround(data, before, after, names) {
			return true
		}
	}
	return false
}

// beforeNames returns the size of the fields before the first name to subscribe to in a SotW request, or -1 if the first
// buffer of the request has none.
func beforeNames(b []byte) int {
	for f := (fieldReader{msg: b}); f.next(); {
		if f.typ == protowire.BytesType && int(f.num) < len(sotwFields) && isSubscribe(sotwFields[f.num]) {
			return f.start
		}
	}
	return -1
}

// isSubscribe reports whether a field has a name to subscribe to.
func isSubscribe(f requestField) bool { return f == fieldSubscribe || f == fieldSubscribeLocator }

// decodeAround is decodeRepeated for one type, whose names would be between the fields before and those after them.
func (r *Request) decodeAround(data mem.BufferSlice, before, after int, names *typeNames) bool {
	pool := mem.DefaultBufferPool()
	around := pool.Get(before + after)
	defer pool.Put(around)
	copy((*around)[:before], data[0].ReadOnlyData())
	copyEnd((*around)[before:], data)
	found := countFields(sotwFields[:], *around)
	if found.lists > 0 || string(found.typeURL) != names.typeURL || hashOf(data, before, names.size) != names.sum {
		return false
	}
	size := r.Size
	r.Clear()
	r.Size, r.NamesSum, r.Repeated = size, names.sum, true
	return r.readFields(sotwFields[:], *around) == nil
}

// copyEnd copies the last bytes of data.
func copyEnd(to []byte, data mem.BufferSlice) {
	for i := len(data) - 1; len(to) > 0; i-- {
		b := data[i].ReadOnlyData()
		n := min(len(b), len(to))
		copy(to[len(to)-n:], b[len(b)-n:])
		to = to[:len(to)-n]
	}
}

// hashOf returns the hash of size bytes after the first skip ones, as [Request.NamesSum] has it for one list of names.
func hashOf(data mem.BufferSlice, skip, size int) uint64 {
	var h maphash.Hash
	h.SetSeed(namesSeed)
	for _, b := range data {
		piece := b.ReadOnlyData()
		piece = piece[min(skip, len(piece)):]
		skip = max(0, skip-b.Len())
		piece = piece[:min(size, len(piece))]
		_, _ = h.Write(piece) // never fails
		size -= len(piece)
	}
	return h.Sum64()
}
