package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Errors of [Decoder.Decode] and [Decoder.DecodeSotW], in addition to [ErrXDSTP]. Each means
// that the origin violated the protocol: the session refuses the response, and the
// cache does not change (B.9).
var (
	ErrMalformed    = errors.New("malformed message")
	ErrUnnamed      = errors.New("resource without a name")
	ErrDuplicate    = errors.New("duplicate resource name")
	ErrTypeMismatch = errors.New("resource of another type")

	// ErrText is wrapped too if a name, a version, a nonce or a type URL is not UTF-8.
	ErrText = errors.New("is not UTF-8")
)

// A fieldReader splits an encoded message into its fields:
//
//	f := fieldReader{msg: msg}
//	for f.next() {
//		…
//	}
type fieldReader struct {
	msg       []byte
	offset    int // offset of the field that next reads
	malformed bool

	// The field that next has read.
	start int // its offset
	num   protowire.Number
	typ   protowire.Type
	value []byte // its value, without the length prefix

	chunk      string // see chunkText
	chunkStart int
}

// next reads the next field. It returns false at the end of the message. If the message is malformed, it sets malformed
// and returns false.
func (f *fieldReader) next() bool {
	if f.offset >= len(f.msg) {
		return false
	}
	var n int
	f.num, f.typ, f.value, n = consumeField(f.msg[f.offset:])
	if n < 0 {
		f.malformed = true
		return false
	}
	f.start, f.offset = f.offset, f.offset+n
	return true
}

// raw returns the whole field.
func (f *fieldReader) raw() []byte { return f.msg[f.start:f.offset] }

// run extends the current length-delimited field by the directly following fields of the same number. It returns the
// number of added fields; raw then returns the bytes of all of them.
func (f *fieldReader) run() (more int) {
	tag := f.msg[f.start]
	for tag < 0x80 && f.offset < len(f.msg) && f.msg[f.offset] == tag {
		rest := f.msg[f.offset+1:]
		if len(rest) > 0 && int(rest[0]) < min(len(rest), 0x80) { // the usual case
			f.offset += 2 + int(rest[0])
			more++
			continue
		}
		size, n := protowire.ConsumeVarint(rest)
		if n < 0 || size > uint64(len(f.msg)-f.offset-1-n) {
			break // next reports that it is malformed
		}
		f.offset += 1 + n + int(size)
		more++
	}
	return more
}

// isBytes reports whether the field has this number and is length-delimited: a string, bytes or a message.
func (f *fieldReader) isBytes(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.BytesType
}

// isVarint reports whether the field has this number and is a varint: an integer, a bool or an enum.
func (f *fieldReader) isVarint(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.VarintType
}

// varint returns the value of a field for which isVarint is true.
func (f *fieldReader) varint() uint64 {
	v, _ := protowire.ConsumeVarint(f.value)
	return v
}

// err returns an error with the position at which the message is malformed; nil if it is well formed.
func (f *fieldReader) err(part string) error {
	if !f.malformed {
		return nil
	}
	return fmt.Errorf("%w: %s at byte %d of %d", ErrMalformed, part, f.offset, len(f.msg))
}

// wellFormed reports whether msg is a sequence of complete fields.
func wellFormed(msg []byte) bool {
	f := fieldReader{msg: msg}
	for f.next() {
	}
	return !f.malformed
}

// stringField returns the last value of a string field of a message.
func stringField(msg []byte, want protowire.Number) (s string, ok bool) {
	var val []byte
	f := fieldReader{msg: msg}
	for f.next() {
		if f.isBytes(want) {
			val, ok = f.value, true
		}
	}
	if f.malformed {
		return "", false
	}
	return string(val), ok
}

// consumeField returns the first field of b: its number, its type, the bytes of its
// value without the length prefix, and the size of the whole field, which is negative
// if b is malformed.
func consumeField(b []byte) (num protowire.Number, typ protowire.Type, val []byte, n int) {
	short := len(b) > 1 && b[0] < 0x80 && b[0]>>3 > 0 && b[0]&7 == byte(protowire.BytesType) && b[1] < 0x80
	if short && int(b[1]) <= len(b)-2 {
		n = 2 + int(b[1])
		return protowire.Number(b[0] >> 3), protowire.BytesType, b[2:n:n], n // the usual case
	}
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, 0, nil, tag
	}
	if num > protowire.MaxValidNumber {
		return 0, 0, nil, -1 // the generated decoders reject such a number, but ConsumeTag does not
	}
	if typ == protowire.BytesType {
		val, n = protowire.ConsumeBytes(b[tag:])
	} else if n = protowire.ConsumeFieldValue(num, typ, b[tag:]); n >= 0 {
		val = b[tag : tag+n]
	}
	if n < 0 {
		return 0, 0, nil, n
	}
	return num, typ, val, tag + n
}

// text returns the value of a string field. Protobuf strings are UTF-8, and clients
// reject messages with other strings. Errors are sent to peers, so they quote a limited part of the text.
func text(val []byte, field string) (string, error) {
	if !utf8.Valid(val) {
		return "", fmt.Errorf("%w: %s %.256q %w", ErrMalformed, field, val, ErrText)
	}
	return string(val), nil
}

// proseText returns the value of a string field for people, such as an error message, as UTF-8. Envoy truncates such
// texts to a number of bytes. A peer whose text is truncated inside a character must not be rejected.
func proseText(val []byte) string { return strings.ToValidUTF8(string(val), "\ufffd") }

// withProse returns a message whose string field at a path of field numbers is UTF-8. It returns msg if the field is
// UTF-8 or msg is malformed, which its decoder reports.
func withProse(msg []byte, path ...protowire.Number) []byte {
	var out []byte
	copied := 0 // bytes of msg that are in out
	f := fieldReader{msg: msg}
	for f.next() {
		if !f.isBytes(path[0]) {
			continue
		}
		val := f.value
		if len(path) > 1 {
			val = withProse(val, path[1:]...)
		} else if !utf8.Valid(val) {
			val = []byte(proseText(val))
		}
		if !bytes.Equal(val, f.value) {
			out = appendBytes(append(out, msg[copied:f.start]...), path[0], val)
			copied = f.offset
		}
	}
	if out == nil || f.malformed {
		return msg
	}
	return append(out, msg[copied:]...)
}

// textChunk is the size of the strings that chunkText allocates, in bytes.
const textChunk = 1 << 10

// chunkText is text for one of many short fields that follow each other. It allocates one string for several fields:
// textChunk bytes of the message, or the whole field if it is longer.
func (f *fieldReader) chunkText(field string) (string, error) {
	if !utf8.Valid(f.value) {
		return text(f.value, field)
	}
	from := f.offset - len(f.value)
	if f.offset > f.chunkStart+len(f.chunk) {
		f.chunk, f.chunkStart = string(f.msg[from:max(f.offset, min(from+textChunk, len(f.msg)))]), from
	}
	return f.chunk[from-f.chunkStart : f.offset-f.chunkStart], nil
}

func appendBytes[T ~string | ~[]byte](b []byte, num protowire.Number, v T) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// appendString appends a string field, unless it is empty.
func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return appendBytes(b, num, s)
}

// appendNumber appends a varint field, unless it is zero.
func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// Elements counts the parts of an encoded message that take memory when the message is decoded. Two encoded bytes are
// enough for an element of either kind.
type Elements struct {
	// Messages counts messages, including the outermost message and map entries.
	Messages int

	// Values counts list elements, map entries, and repeated occurrences of singular fields, which replace the
	// earlier value or are merged with it.
	Values int
}

// CountElements counts the elements of an encoded message of a type without decoding it. It does not count unknown
// fields and the contents of an Any, and stops at more than most of either kind. Errors: [ErrMalformed], also if
// messages are nested more than depth levels deep.
func CountElements(md protoreflect.MessageDescriptor, msg []byte, depth int, most Elements) (n Elements, err error) {
	err = n.count(md, msg, depth, &most)
	return n, err
}

func (n *Elements) count(md protoreflect.MessageDescriptor, msg []byte, depth int, most *Elements) error {
	if depth == 0 {
		return fmt.Errorf("%w: messages are nested too deeply", ErrMalformed)
	}
	n.Messages++
	var seen uint64 // fields, by their numbers
	f := fieldReader{msg: msg}
	for n.Messages <= most.Messages && n.Values <= most.Values && f.next() {
		known := md.Fields().ByNumber(f.num)
		if known == nil {
			continue
		}
		bit := uint64(1) << (f.num % 64)
		if known.Cardinality() == protoreflect.Repeated || seen&bit != 0 {
			n.Values++
		}
		seen |= bit
		if inner := known.Message(); inner != nil && f.typ == protowire.BytesType {
			if err := n.count(inner, f.value, depth-1, most); err != nil {
				return err
			}
		}
	}
	return f.err(string(md.FullName()))
}
