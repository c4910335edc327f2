package content

// A Stamp identifies a resource within its type by Index, and a change of it, counted
// from 0. Made is the time of the change in nanoseconds since 1970; it is comparable
// between processes, since all run on one machine.
type Stamp struct {
	Index  int
	Change uint32
	Made   int64
}

// StampBytes is the length of an encoded stamp: the mark, followed by Index, Change and
// Made in hexadecimal.
const StampBytes = len(mark) + 8 + 8 + 16

const mark = "stamp:"

// Append appends the stamp to b.
func (s Stamp) Append(b []byte) []byte {
	b = append(b, mark...)
	b = appendHex(b, uint64(s.Index), 8)
	b = appendHex(b, uint64(s.Change), 8)
	return appendHex(b, uint64(s.Made), 16)
}

// ReadStamp returns the stamp at the end of an encoded resource, and whether there is one.
func ReadStamp(resource []byte) (Stamp, bool) {
	if len(resource) < StampBytes {
		return Stamp{}, false
	}
	b := resource[len(resource)-StampBytes:]
	if string(b[:len(mark)]) != mark {
		return Stamp{}, false
	}
	b = b[len(mark):]
	index, ok1 := readHex(b[:8])
	change, ok2 := readHex(b[8:16])
	made, ok3 := readHex(b[16:])
	return Stamp{Index: int(index), Change: uint32(change), Made: int64(made)}, ok1 && ok2 && ok3
}

func appendHex(b []byte, v uint64, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		b = append(b, "0123456789abcdef"[v>>shift&15])
	}
	return b
}

func readHex(b []byte) (v uint64, ok bool) {
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}
