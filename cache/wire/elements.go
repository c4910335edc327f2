package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

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
