package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxNesting is how deep messages of clients may be nested.
const maxNesting = 100

// Messages returns how many messages there are in an encoded one of a type, itself and entries of maps included, before
// anything is built of it: two bytes are enough for one. Strings, and what is in an Any, count as nothing. Errors:
// [ErrMalformed], also if messages are nested deeper than 100 times.
func Messages(md protoreflect.MessageDescriptor, msg []byte) (n int, err error) {
	return messages(md, msg, maxNesting)
}

func messages(md protoreflect.MessageDescriptor, msg []byte, depth int) (n int, err error) {
	if depth == 0 {
		return 0, fmt.Errorf("%w: %s is nested deeper than %d messages", ErrMalformed, md.FullName(), maxNesting)
	}
	n = 1
	fields := md.Fields()
	for len(msg) > 0 {
		num, typ, val, size := consumeField(msg)
		if size < 0 {
			return 0, fmt.Errorf("%w: %s", ErrMalformed, md.FullName())
		}
		msg = msg[size:]
		f := fields.ByNumber(num)
		if f == nil || f.Message() == nil || typ != protowire.BytesType {
			continue
		}
		in, err := messages(f.Message(), val, depth-1)
		if err != nil {
			return 0, err
		}
		n += in
	}
	return n, nil
}
