package downstream

import (
	"errors"
	"fmt"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a Node may have beside its extensions, which are skipped (B.35). Of the 61,090 bytes that a stock Envoy 1.40.0 sends, 174 are left,
// with 4 values; the largest Node in Istio's tests of its bootstrap has 1,154 bytes and less than 50 values.
const (
	maxNodeContent = 256 << 10 // bytes
	maxNodeValues  = 10_000    // list elements and entries of maps, which fields of a Struct are, at any depth
	maxNodeDepth   = 2000      // messages in one another
)

// largeNode is a Node in bytes that takes time to decode, and memory to keep, that counts (see nodeShares).
const largeNode = 16 << 10

type node = corepb.Node

var nodeDescriptor = new(node).ProtoReflect().Descriptor()

// A rawNode is a Node as it came, without its extensions.
type RawNode struct {
	Encoded []byte
	Size    int // with its extensions
}

// checkNode refuses a Node that is too large to be looked at.
func (c *Config) checkNode(raw RawNode) error {
	switch {
	case raw.Size > c.MaxNodeBytes:
		return ExceedsAs(LimitNodeBytes, codes.InvalidArgument, "node of %d bytes, at most %d are allowed", raw.Size, c.MaxNodeBytes)
	case len(raw.Encoded) > maxNodeContent:
		return ExceedsAs(LimitNodeBytes, codes.InvalidArgument, "node of %d bytes without its extensions, at most %d are allowed", len(raw.Encoded), maxNodeContent)
	default:
		return nil
	}
}

// node decodes a Node, once it is known that this takes no more memory than a Node may.
func (c *Config) node(raw RawNode) (*node, error) {
	if err := c.checkNode(raw); err != nil {
		return nil, err
	}
	values := maxNodeValues
	err := countValues(raw.Encoded, nodeDescriptor, maxNodeDepth, &values)
	if errors.Is(err, errTooManyValues) {
		return nil, tooManyValues()
	}
	n := new(node)
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw.Encoded, n)
	}
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "node is not an envoy.config.core.v3.Node: %v", err)
	}
	if !c.DynamicParameters {
		n.DynamicParameters = nil // which nobody looks at
	}
	return n, nil
}

func tooManyValues() error {
	return ExceedsAs(LimitNodeBytes, codes.InvalidArgument, "node of more than %d values, counting list elements and fields of structs at any depth: no more are allowed", maxNodeValues)
}

var errTooManyValues = errors.New("too many values")

// countValues takes the values in an encoded message from those that are left: each element of a list, each entry of a map, and each
// further occurrence of any other field, which replaces the one before or is merged with it. What is not known is not decoded.
func countValues(msg []byte, of protoreflect.MessageDescriptor, depth int, left *int) error {
	if depth == 0 {
		return fmt.Errorf("more than %d messages are in one another", maxNodeDepth)
	}
	var seen uint64 // fields that are no lists, by their numbers
	for len(msg) > 0 {
		num, typ, tag := protowire.ConsumeTag(msg)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		n := protowire.ConsumeFieldValue(num, typ, msg[tag:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		val := msg[tag : tag+n]
		msg = msg[tag+n:]
		field := of.Fields().ByNumber(num)
		if field == nil {
			continue
		}
		bit := uint64(1) << (num % 64)
		if field.Cardinality() == protoreflect.Repeated || seen&bit != 0 {
			if *left--; *left < 0 {
				return errTooManyValues
			}
		}
		seen |= bit
		if inner := field.Message(); inner != nil && typ == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(val)
			if err := countValues(content, inner, depth-1, left); err != nil {
				return err
			}
		}
	}
	return nil
}
