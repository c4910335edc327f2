package wire

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A fieldReader splits an encoded message into its fields:
//
//	f := fieldReader{msg: msg}
//	for f.next() {
//		…
//	}
type fieldReader struct {
	msg []byte
	at  int // where the field begins that next reads
	bad bool

	// Of the field that next has read.
	from int
	num  protowire.Number
	typ  protowire.Type
	val  []byte // its value, without the length prefix
}

// next reads the next field. It returns false at the end of the message, and where that is malformed, with bad set.
func (f *fieldReader) next() bool {
	if f.at >= len(f.msg) {
		return false
	}
	var n int
	f.num, f.typ, f.val, n = consumeField(f.msg[f.at:])
	if n < 0 {
		f.bad = true
		return false
	}
	f.from, f.at = f.at, f.at+n
	return true
}

// raw returns the whole field.
func (f *fieldReader) raw() []byte { return f.msg[f.from:f.at] }

// run adds the fields that follow to a field of strings, bytes or messages, as far as they have its number, and returns how many they are:
// raw then returns all of them.
func (f *fieldReader) run() (more int) {
	tag := f.msg[f.from]
	for tag < 0x80 && f.at < len(f.msg) && f.msg[f.at] == tag {
		rest := f.msg[f.at+1:]
		if len(rest) > 0 && int(rest[0]) < min(len(rest), 0x80) { // as nearly always
			f.at += 2 + int(rest[0])
			more++
			continue
		}
		size, n := protowire.ConsumeVarint(rest)
		if n < 0 || size > uint64(len(f.msg)-f.at-1-n) {
			break // next finds it malformed
		}
		f.at += 1 + n + int(size)
		more++
	}
	return more
}

// is reports whether the field has a number and the type of strings, bytes and messages.
func (f *fieldReader) is(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.BytesType
}

// isNumber reports whether the field has a number and the type of numbers and enums.
func (f *fieldReader) isNumber(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.VarintType
}

// number returns the value of a field that isNumber.
func (f *fieldReader) number() uint64 {
	v, _ := protowire.ConsumeVarint(f.val)
	return v
}

// err returns an error that says where a message is malformed, nil if it is not.
func (f *fieldReader) err(what string) error {
	if !f.bad {
		return nil
	}
	return fmt.Errorf("%w: %s at byte %d of %d", ErrMalformed, what, f.at, len(f.msg))
}

// wellFormed reports whether msg is a sequence of whole fields.
func wellFormed(msg []byte) bool {
	f := fieldReader{msg: msg}
	for f.next() {
	}
	return !f.bad
}

// stringField returns the last value of a string field of a message.
func stringField(msg []byte, want protowire.Number) (s string, ok bool) {
	var val []byte
	f := fieldReader{msg: msg}
	for f.next() {
		if f.is(want) {
			val, ok = f.val, true
		}
	}
	if f.bad {
		return "", false
	}
	return string(val), ok
}

// consumeField splits the first field off b: its number, type, the bytes of its
// value (without the length prefix) and the size of the whole field, negative if
// b is malformed.
func consumeField(b []byte) (num protowire.Number, typ protowire.Type, val []byte, n int) {
	if len(b) > 1 && b[0] < 0x80 && b[0]>>3 > 0 && b[0]&7 == byte(protowire.BytesType) && b[1] < 0x80 && int(b[1]) <= len(b)-2 {
		n = 2 + int(b[1])
		return protowire.Number(b[0] >> 3), protowire.BytesType, b[2:n:n], n // as nearly all fields are
	}
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, 0, nil, tag
	}
	if num > protowire.MaxValidNumber {
		return 0, 0, nil, -1 // ConsumeTag accepts it, the generated decoders do not
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

// text returns the value of a string field. Protobuf strings are UTF-8, and a client
// rejects a message with another one. Errors quote a limited part of the text, since peers receive them.
func text(val []byte, what string) (string, error) {
	if !utf8.Valid(val) {
		return "", fmt.Errorf("%w: %s %.256q is not UTF-8", ErrMalformed, what, val)
	}
	return string(val), nil
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

// Elements are the parts of an encoded message that cost memory when it is decoded. Two bytes are enough for one, of
// either kind.
type Elements struct {
	// Messages counts messages, the outermost one and entries of maps included.
	Messages int

	// Values counts list elements, entries of maps, and each further occurrence of any other field, which replaces the
	// one before or is merged with it.
	Values int
}

// CountElements counts the elements in an encoded message of a type before anything is built of it. Unknown fields, and
// what is in an Any, count as nothing. It stops once there are more than most of either kind. Errors: [ErrMalformed],
// also if more than depth messages are nested.
func CountElements(md protoreflect.MessageDescriptor, msg []byte, depth int, most Elements) (n Elements, err error) {
	err = n.count(md, msg, depth, &most)
	return n, err
}

func (n *Elements) count(md protoreflect.MessageDescriptor, msg []byte, depth int, most *Elements) error {
	if depth == 0 {
		return fmt.Errorf("%w: too many messages are nested", ErrMalformed)
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
			if err := n.count(inner, f.val, depth-1, most); err != nil {
				return err
			}
		}
	}
	return f.err(string(md.FullName()))
}
