package wire

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// nodeExtensions is the field of a Node that lists the extensions in the client's binary: most bytes of the Node of an
// official Envoy. The relay does not use it and does not keep it.
const nodeExtensions = 9

// appendNode appends an encoded Node without its extensions.
func appendNode(to, node []byte) ([]byte, error) {
	f := fieldReader{msg: node}
	for f.next() {
		if !f.isBytes(nodeExtensions) {
			to = append(to, f.raw()...)
		}
	}
	if f.malformed {
		return to, fmt.Errorf("node is not an envoy.config.core.v3.Node: %w", ErrMalformed)
	}
	return to, nil
}

// TakeNode returns the Node in a field of a message, without its extensions, or nil if there is none; the size of that
// field in bytes; and the message without the field. Errors: [ErrMalformed].
func TakeNode(msg []byte, field protowire.Number) (node []byte, size int, rest []byte, err error) {
	f := fieldReader{msg: msg}
	for f.next() {
		switch {
		case f.isBytes(field):
			if node == nil {
				node, rest = []byte{}, slices.Clone(msg[:f.start])
			}
			if node, err = appendNode(node, f.value); err != nil {
				return nil, 0, nil, err
			}
			size += len(f.value)
		case node != nil:
			rest = append(rest, f.raw()...)
		}
	}
	if f.malformed {
		return nil, 0, nil, f.err("message")
	}
	if node == nil {
		rest = msg
	}
	return node, size, rest, nil
}

// Shorten cuts a text to a number of bytes and adds an ellipsis. A text that is not longer is returned unchanged.
func Shorten(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}
