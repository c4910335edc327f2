package cache

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// append appends a past; nothing for nil.
func (p *past) append(b []byte, num protowire.Number) []byte {
	if p == nil {
		return b
	}
	n := slices.Index(p.former[:], 0)
	if n < 0 {
		n = maxFormer
	}
	return appendPast(b, num, p.former[:n], p.reverted)
}

// appendPast appends marks of former contents, with the time when the present content was reverted: eight bytes of Unix
// nanoseconds, zero for never, and four for each mark, in big endian. It appends nothing if there are no marks.
func appendPast(b []byte, num protowire.Number, former []uint32, reverted time.Time) []byte {
	if len(former) == 0 {
		return b
	}
	var nanos uint64
	if !reverted.IsZero() {
		nanos = uint64(reverted.UnixNano())
	}
	packed := binary.BigEndian.AppendUint64(nil, nanos)
	for _, m := range former {
		packed = binary.BigEndian.AppendUint32(packed, m)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), packed)
}

// readPast reads what appendPast appended, with at most a number of marks.
func readPast(val []byte, most int) (former []uint32, reverted time.Time, err error) {
	if len(val) < 8 || len(val)%4 != 0 || (len(val)-8)/4 > most {
		return nil, time.Time{}, fmt.Errorf("former contents of %d bytes", len(val))
	}
	if nanos := binary.BigEndian.Uint64(val); nanos != 0 {
		reverted = time.Unix(0, int64(nanos))
	}
	for val = val[8:]; len(val) > 0; val = val[4:] {
		former = append(former, binary.BigEndian.Uint32(val))
	}
	return former, reverted, nil
}

func (s *setHistory) append(b []byte, num protowire.Number) []byte {
	return appendPast(b, num, s.former, s.reverted)
}

func (s *setHistory) read(val []byte) (err error) {
	s.former, s.reverted, err = readPast(val, maxFormerSums)
	return err
}

func (p *past) read(val []byte) error {
	former, reverted, err := readPast(val, maxFormer)
	copy(p.former[:], former)
	p.reverted = reverted
	return err
}
