package wire

import (
	"slices"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// A Body is what many streams may share of a response: everything but its nonce
// and the identifier of the control plane. Build it, then share it.
type Body struct {
	delta   bool
	version string
	wrap    Wrap // SotW
	pieces  mem.BufferSlice
	size    int
	count   int // resources and removals

	room [2]mem.Buffer // for the pieces of a response with one resource
}

// NewDeltaBody begins the body of a DeltaDiscoveryResponse.
func NewDeltaBody(typeURL, systemVersion string) *Body { return newBody(true, typeURL, systemVersion) }

// A Wrap selects which resources of a SotW response are sent with their name and
// version, in a Resource message.
type Wrap int

// The ways to wrap, by what the client supports (B.19).
const (
	Unwrapped   Wrap = iota // none
	WrapDetails             // those whose message has fields that the client needs
	WrapAll                 // all
)

// NewSotWBody begins the body of a DiscoveryResponse.
func NewSotWBody(typeURL, version string, wrap Wrap) *Body {
	b := newBody(false, typeURL, version)
	b.wrap = wrap
	return b
}

func newBody(delta bool, typeURL, version string) *Body {
	b := &Body{delta: delta, version: version}
	b.pieces = b.room[:0]
	const overhead = 8 // tags and lengths, generously
	header := make([]byte, 0, len(version)+len(typeURL)+overhead)
	header = appendString(header, responseSystemVersion, version)
	b.add(appendString(header, responseTypeURL, typeURL))
	return b
}

// Add adds a resource, with the rest of its time to live if that is not zero. In a
// SotW body, one without content adds nothing (R111).
func (b *Body) Add(r *Resource, ttl time.Duration) {
	switch {
	case b.delta:
		b.addMessage(nil, r, ttl)
	case !r.HasBody():
		return
	case b.wrap == WrapAll, b.wrap == WrapDetails && (ttl > 0 || r.hasDetails()):
		b.addMessage(appendString(nil, anyTypeURL, resourceWrapper), r, ttl)
	default:
		b.addBuffer(r.body)
	}
	b.count++
}

// hasDetails reports whether the Resource message has fields that a client needs
// beside the content (B.19).
func (r *Resource) hasDetails() bool { return r.Constraints != nil || r.DoNotCache || r.standsIn }

// addMessage adds the resource's Resource message as a field of the response: in
// Delta bare, in SotW as the value of an Any that begins with any. Only the lengths
// and the TTL are new, the message is shared.
func (b *Body) addMessage(any []byte, r *Resource, ttl time.Duration) {
	if any == nil && ttl <= 0 {
		b.addBuffer(r.field)
		return
	}
	_, _, message, _ := consumeField(r.Field())
	life := ttlField(ttl)
	size := len(message) + len(life)
	if any != nil {
		any = protowire.AppendTag(any, anyValue, protowire.BytesType)
		any = protowire.AppendVarint(any, uint64(size))
		size += len(any)
	}
	head := protowire.AppendTag(nil, responseResources, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(size))
	b.add(append(head, any...))
	b.add(message)
	if len(life) > 0 {
		b.add(life)
	}
}

// Heartbeat adds a resource without its content, in a Delta body only: a client
// that has this version starts its clock anew (R106).
func (b *Body) Heartbeat(r *Resource, ttl time.Duration) {
	msg := appendString(nil, resourceVersion, r.Version)
	msg = appendString(msg, resourceName, r.Name)
	msg = append(msg, ttlField(ttl)...)
	b.count++
	b.add(appendBytes(nil, responseResources, msg))
}

// ttlField returns Resource.ttl, nothing if there is none. A Duration is seconds=1
// and nanos=2.
func ttlField(ttl time.Duration) []byte {
	if ttl <= 0 {
		return nil
	}
	d := appendNumber(nil, 1, uint64(ttl/time.Second))
	return appendBytes(nil, resourceTTL, appendNumber(d, 2, uint64(ttl%time.Second)))
}

// Remove adds a name to removed_resources, in a Delta body only.
func (b *Body) Remove(name string) {
	b.count++
	b.add(appendBytes(nil, responseRemoved, name))
}

// RemoveVariant adds to removed_resource_names, in a Delta body only.
func (b *Body) RemoveVariant(v Variant) {
	b.count++
	b.add(appendFullName(nil, responseRemovedNames, v))
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

func (b *Body) add(piece []byte) { b.addBuffer(mem.SliceBuffer(piece)) }

// addBuffer is add for what is a buffer already: that needs no memory for it.
func (b *Body) addBuffer(piece mem.Buffer) {
	b.pieces = append(b.pieces, piece)
	b.size += piece.Len()
}

// Grow makes room for so many more resources.
func (b *Body) Grow(resources int) { b.pieces = slices.Grow(b.pieces, resources) }

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

// Error adds an error to resource_errors. Its resource must not be in the body.
func (b *Body) Error(e *ResourceError) {
	num := sotwErrors
	if b.delta {
		num = responseErrors
	}
	b.count++
	b.add(appendBytes(nil, num, e.encoded))
}
