package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// nodeExtensions is the field of a Node that lists the extensions of the client's build: of a stock Envoy nearly all of its bytes. Nothing
// looks at it, and it is not kept.
const nodeExtensions = 9

// appendNode appends an encoded Node without its extensions.
func appendNode(to, node []byte) ([]byte, error) {
	begin := 0 // of the fields that are not appended yet
	for at := 0; at < len(node); {
		num, typ, _, n := consumeField(node[at:])
		if n < 0 {
			return to, fmt.Errorf("node is not an envoy.config.core.v3.Node: %w", ErrMalformed)
		}
		if num == nodeExtensions && typ == protowire.BytesType {
			to = append(to, node[begin:at]...)
			begin = at + n
		}
		at += n
	}
	return append(to, node[begin:]...), nil
}

// TakeNode returns the Node that a field of a message holds, without its extensions and nil if there is none, the bytes that it came
// in, and the message without it. Errors: [ErrMalformed].
func TakeNode(msg []byte, field protowire.Number) (node []byte, size int, rest []byte, err error) {
	begin := 0
	for at := 0; at < len(msg); {
		num, typ, val, n := consumeField(msg[at:])
		if n < 0 {
			return nil, 0, nil, fmt.Errorf("%w at byte %d of %d", ErrMalformed, at, len(msg))
		}
		if num == field && typ == protowire.BytesType {
			if node == nil {
				node = []byte{}
			}
			if node, err = appendNode(node, val); err != nil {
				return nil, 0, nil, err
			}
			size += len(val)
			rest = append(rest, msg[begin:at]...)
			begin = at + n
		}
		at += n
	}
	if begin == 0 {
		return node, size, msg, nil
	}
	return node, size, append(rest, msg[begin:]...), nil
}
