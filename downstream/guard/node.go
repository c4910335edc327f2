package guard

import (
	"math"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// MaxNodeBytes bounds the encoded Node of a client, with its extensions.
const MaxNodeBytes = 1 << 20

// Bounds of a Node without its extensions, which are skipped (B.35). A stock Envoy 1.40.0 sends 61,090 bytes, of which
// 174 with 4 values remain. The largest Node in Istio's bootstrap tests has 1,154 bytes and less than 50 values.
const (
	maxNodeContent = 256 << 10 // bytes
	MaxNodeValues  = 10_000    // list elements and map entries (such as the fields of a Struct), at any depth
	MaxNodeDepth   = 2000      // nesting of messages
)

// Sizes in bytes without extensions. A Node of at most smallNode is decoded without a turn. A Node of at most largeNode
// is not charged.
const (
	smallNode = 4 << 10
	largeNode = 16 << 10
)

type node = corepb.Node

var nodeDescriptor = new(node).ProtoReflect().Descriptor()

// A RawNode is an encoded Node without its extensions.
type RawNode struct {
	Encoded []byte
	Size    int  // with its extensions
	Later   bool // the client sent another Node before
}

// CheckNode refuses a Node that is too large to be decoded.
func CheckNode(raw RawNode) error {
	switch {
	case raw.Size > MaxNodeBytes:
		return ExceedsAs(LimitNodeBytes, codes.InvalidArgument, "node of %d bytes, at most %d are allowed",
			raw.Size, MaxNodeBytes)
	case len(raw.Encoded) > maxNodeContent:
		return ExceedsAs(LimitNodeBytes, codes.InvalidArgument,
			"node of %d bytes without its extensions, at most %d are allowed", len(raw.Encoded), maxNodeContent)
	default:
		return nil
	}
}

// decode checks and decodes a Node.
func decode(raw RawNode, dynamicParameters bool) (*node, error) {
	if err := CheckNode(raw); err != nil {
		return nil, err
	}
	most := wire.Elements{Messages: math.MaxInt, Values: MaxNodeValues}
	found, err := wire.CountElements(nodeDescriptor, raw.Encoded, MaxNodeDepth, most)
	if err == nil && found.Values > MaxNodeValues {
		return nil, TooManyValues()
	}
	n := new(node)
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw.Encoded, n)
	}
	if err != nil {
		return nil, Refuses(InvalidNode, "node is not an envoy.config.core.v3.Node: %v", err)
	}
	if !dynamicParameters {
		n.DynamicParameters = nil
	}
	return n, nil
}

// TooManyValues returns the error of a client whose Node has more than MaxNodeValues.
func TooManyValues() error {
	return ExceedsAs(LimitNodeBytes, codes.InvalidArgument, "node of more than %d values, counting list elements "+
		"and fields of structs at any depth: no more are allowed", MaxNodeValues)
}

// NodeLabel returns the id of a Node for logs and operators.
func NodeLabel(n *node) string { return wire.Shorten(n.GetId(), 256) }
