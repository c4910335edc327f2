package wire

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// stringField returns the last value of a string field of a message.
func stringField(msg []byte, want protowire.Number) (s string, ok bool) {
	for len(msg) > 0 {
		num, typ, val, n := consumeField(msg)
		if n < 0 {
			return "", false
		}
		if num == want && typ == protowire.BytesType {
			s, ok = string(val), true
		}
		msg = msg[n:]
	}
	return s, ok
}

// consumeField splits the first field off b: its number, type, the bytes of its
// value (without the length prefix) and the size of the whole field, negative if
// b is malformed.
func consumeField(b []byte) (num protowire.Number, typ protowire.Type, val []byte, n int) {
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, 0, nil, tag
	}
	if num > protowire.MaxValidNumber {
		return 0, 0, nil, -1 // ConsumeTag lets it pass, the generated decoders do not
	}
	if typ == protowire.BytesType {
		val, n = protowire.ConsumeBytes(b[tag:])
		if n < 0 {
			return 0, 0, nil, n
		}
		return num, typ, val, tag + n
	}
	n = protowire.ConsumeFieldValue(num, typ, b[tag:])
	if n < 0 {
		return 0, 0, nil, n
	}
	return num, typ, b[tag : tag+n], tag + n
}

// text returns a string field's value; protobuf strings are UTF-8, and a client
// refuses a message that holds another. Errors, here and elsewhere, quote no more of
// a text than people can read: peers are told them.
func text(val []byte, what string) (string, error) {
	if !utf8.Valid(val) {
		return "", fmt.Errorf("%w: %s %.256q is not UTF-8", ErrMalformed, what, val)
	}
	return string(val), nil
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}
