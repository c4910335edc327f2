package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxNesting is how deep messages of clients may be nested.
const maxNesting = 100

// Messages counts the messages in an encoded one of a type, itself and entries of maps included, before anything is built of it: two
// bytes are enough for one. Strings, and what is in an Any, count as nothing. It stops once there are more than most. Errors:
// [ErrMalformed], also if messages are nested deeper than 100 times.
func Messages(md protoreflect.MessageDescriptor, msg []byte, most int) (n int, err error) {
	err = countMessages(md, msg, maxNesting, most, &n)
	return n, err
}

func countMessages(md protoreflect.MessageDescriptor, msg []byte, depth, most int, n *int) error {
	if depth == 0 {
		return fmt.Errorf("%w: %s is nested deeper than %d messages", ErrMalformed, md.FullName(), maxNesting)
	}
	*n++
	fields := md.Fields()
	for len(msg) > 0 && *n <= most {
		num, typ, val, size := consumeField(msg)
		if size < 0 {
			return fmt.Errorf("%w: %s", ErrMalformed, md.FullName())
		}
		msg = msg[size:]
		f := fields.ByNumber(num)
		if f == nil || f.Message() == nil || typ != protowire.BytesType {
			continue
		}
		if err := countMessages(f.Message(), val, depth-1, most, n); err != nil {
			return err
		}
	}
	return nil
}
