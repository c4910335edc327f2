package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// resourceWrapper is the type URL of the message that wraps resources.
const resourceWrapper = typePrefix + "envoy.service.discovery.v3.Resource"

// A Body is what many streams may share of a response: everything but its nonce
// and the identifier of the control plane. Build it, then share it.
type Body struct {
	delta   bool
	version string
	wrap    bool // SotW: each resource in its Resource message
	pieces  mem.BufferSlice
	size    int
	count   int // resources and removals
}

// NewDeltaBody begins the body of a DeltaDiscoveryResponse.
func NewDeltaBody(typeURL, systemVersion string) *Body { return newBody(true, typeURL, systemVersion) }

// NewSotWBody begins the body of a DiscoveryResponse. With wrap, each resource
// comes with its name and version, in a Resource message (B.19); only for
// clients that said that they understand it.
func NewSotWBody(typeURL, version string, wrap bool) *Body {
	b := newBody(false, typeURL, version)
	b.wrap = wrap
	return b
}

func newBody(delta bool, typeURL, version string) *Body {
	b := &Body{delta: delta, version: version}
	header := appendString(nil, responseSystemVersion, version)
	b.add(appendString(header, responseTypeURL, typeURL))
	return b
}

// Add adds a resource. In a SotW body, one without content adds nothing (R111).
func (b *Body) Add(r *Resource) {
	switch {
	case b.delta:
		b.add(r.field)
	case !r.HasBody():
		return
	case b.wrap:
		b.addWrapped(r)
	default:
		b.add(r.body)
	}
	b.count++
}

// addWrapped adds an Any that holds the resource's Resource message. Only the
// Any's own bytes are new, the message is shared.
func (b *Body) addWrapped(r *Resource) {
	_, _, tag := protowire.ConsumeTag(r.field)
	message, _ := protowire.ConsumeBytes(r.field[tag:])

	head := appendString(nil, anyTypeURL, resourceWrapper)
	head = protowire.AppendTag(head, anyValue, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(message)))

	field := protowire.AppendTag(nil, responseResources, protowire.BytesType)
	field = protowire.AppendVarint(field, uint64(len(head)+len(message)))
	b.add(append(field, head...))
	b.add(message)
}

// Remove adds a name to removed_resources, in a Delta body only.
func (b *Body) Remove(name string) {
	b.count++
	field := protowire.AppendTag(nil, responseRemoved, protowire.BytesType)
	b.add(protowire.AppendString(field, name))
}

// Version returns the response's version_info, or system_version_info.
func (b *Body) Version() string { return b.version }

// Size returns the encoded size in bytes.
func (b *Body) Size() int { return b.size }

// Len returns how many resources and removals the body holds.
func (b *Body) Len() int { return b.count }

// Join copies the pieces into one: worth it for a body that is sent many times,
// since the transport's work grows with the number of pieces.
func (b *Body) Join() *Body {
	if len(b.pieces) > 1 {
		b.pieces = mem.BufferSlice{mem.SliceBuffer(b.pieces.Materialize())}
	}
	return b
}

func (b *Body) add(piece mem.SliceBuffer) {
	b.pieces = append(b.pieces, piece)
	b.size += len(piece)
}

// A Response is one message to one stream: a shared body and what is the
// stream's own.
type Response struct {
	Body  *Body
	Nonce string

	// ControlPlane is the identifier that tells clients who speaks, "" to leave it
	// out (B.38).
	ControlPlane string
}

// buffers returns the encoded response.
func (r *Response) buffers() mem.BufferSlice {
	const overhead = 16 // tags and lengths, generously
	tail := make([]byte, 0, len(r.Nonce)+len(r.ControlPlane)+overhead)
	tail = appendString(tail, responseNonce, r.Nonce)
	if r.ControlPlane != "" {
		num := sotwControlPlane
		if r.Body.delta {
			num = responseControlPlane
		}
		identifier := protowire.SizeTag(1) + protowire.SizeBytes(len(r.ControlPlane))
		tail = protowire.AppendTag(tail, num, protowire.BytesType)
		tail = protowire.AppendVarint(tail, uint64(identifier))
		tail = appendString(tail, 1, r.ControlPlane)
	}
	out := make(mem.BufferSlice, 0, len(r.Body.pieces)+1)
	out = append(out, r.Body.pieces...)
	return append(out, mem.SliceBuffer(tail))
}
