package wire

import (
	"slices"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// A Body is the part of a response that streams can share: everything but the nonce
// and the identifier of the control plane. It must not change once it is shared.
type Body struct {
	delta   bool
	version string
	wrap    Wrap // SotW
	pieces  mem.BufferSlice
	size    int
	count   int // resources and removals

	firstPieces [2]mem.Buffer // first backing array of pieces, enough for a response with one resource
}

// NewDeltaBody returns an empty body of a DeltaDiscoveryResponse.
func NewDeltaBody(typeURL, systemVersion string) *Body { return newBody(true, typeURL, systemVersion) }

// A Wrap selects the resources of a SotW response that are wrapped in a Resource
// message, which has their name and version.
type Wrap int

// The kinds of wrapping, one for each level of client support (B.19).
const (
	Unwrapped   Wrap = iota // none
	WrapDetails             // those whose Resource message has fields that the client needs
	WrapAll                 // all
)

// NewSotWBody returns an empty body of a DiscoveryResponse.
func NewSotWBody(typeURL, version string, wrap Wrap) *Body {
	b := newBody(false, typeURL, version)
	b.wrap = wrap
	return b
}

func newBody(delta bool, typeURL, version string) *Body {
	b := &Body{delta: delta, version: version}
	b.pieces = b.firstPieces[:0]
	const overhead = 8 // upper bound of tags and lengths
	header := make([]byte, 0, len(version)+len(typeURL)+overhead)
	header = appendString(header, responseSystemVersion, version)
	b.add(appendString(header, responseTypeURL, typeURL))
	return b
}

// Add adds a resource, with its remaining TTL if ttl is not zero. It adds no resource
// without content to a SotW body (R111).
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

// hasDetails reports whether the Resource message has fields that a client needs in
// addition to the content (B.19).
func (r *Resource) hasDetails() bool { return r.Constraints != nil || r.DoNotCache || r.substitute }

// addMessage adds the Resource message as a field of the response: in a Delta body as it
// is, in a SotW body as the value of an Any that begins with any. Only the lengths and the
// TTL are encoded again; the message is shared.
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

// Heartbeat adds a resource without its content to a Delta body: a client that has this
// version restarts its TTL timer (R106).
func (b *Body) Heartbeat(r *Resource, ttl time.Duration) {
	msg := appendString(nil, resourceVersion, r.Version)
	msg = appendString(msg, resourceName, r.Name)
	msg = append(msg, ttlField(ttl)...)
	b.count++
	b.add(appendBytes(nil, responseResources, msg))
}

// ttlField returns the encoded field Resource.ttl, nil if there is no TTL. Duration:
// seconds=1, nanos=2.
func ttlField(ttl time.Duration) []byte {
	if ttl <= 0 {
		return nil
	}
	d := appendNumber(nil, 1, uint64(ttl/time.Second))
	return appendBytes(nil, resourceTTL, appendNumber(d, 2, uint64(ttl%time.Second)))
}

// Remove adds a name to removed_resources of a Delta body.
func (b *Body) Remove(name string) {
	b.count++
	b.add(appendBytes(nil, responseRemoved, name))
}

// RemoveVariant adds a variant to removed_resource_names of a Delta body.
func (b *Body) RemoveVariant(v Variant) {
	b.count++
	b.add(appendFullName(nil, responseRemovedNames, v))
}

// Version returns version_info, or system_version_info of a Delta body.
func (b *Body) Version() string { return b.version }

// Size returns the encoded size in bytes.
func (b *Body) Size() int { return b.size }

// Len returns the number of resources, removals and errors in the body.
func (b *Body) Len() int { return b.count }

// Join copies the pieces into one buffer. It is useful for a body that is sent many
// times, since the cost of a send grows with the number of pieces.
func (b *Body) Join() *Body {
	if len(b.pieces) > 1 {
		b.pieces = mem.BufferSlice{&shared{SliceBuffer: b.pieces.Materialize()}}
	}
	return b
}

func (b *Body) add(piece []byte) { b.addBuffer(mem.SliceBuffer(piece)) }

// addBuffer adds a piece that is already a buffer, without an allocation.
func (b *Body) addBuffer(piece mem.Buffer) {
	b.pieces = append(b.pieces, piece)
	b.size += piece.Len()
}

// Grow reserves space for further resources.
func (b *Body) Grow(resources int) { b.pieces = slices.Grow(b.pieces, resources) }

// A Response is one message to one stream: a shared body and the fields that differ
// between streams.
type Response struct {
	Body  *Body
	Nonce string

	// ControlPlane is control_plane.identifier; it is omitted if empty (B.38).
	ControlPlane string

	// TraceParent is the trace of the oldest change in the response. It is empty unless the client is a relay.
	TraceParent string

	// Gzip is set if the stream is compressed with gzip (B.32).
	Gzip bool

	// Secret is set if the response must not be compressed, since its size would tell something of its content.
	Secret bool

	// Saved is set when the response is encoded: the number of bytes by which compression made it smaller.
	Saved int32
}

// tailBytes returns an upper bound of the size of the fields that differ between streams.
func (r *Response) tailBytes() int {
	const overhead = 16 // upper bound of tags and lengths
	return len(r.Nonce) + len(r.ControlPlane) + len(r.TraceParent) + overhead
}

// appendTail appends the encoded fields that differ between streams.
func (r *Response) appendTail(tail []byte) []byte {
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
	return appendString(tail, responseTrace, r.TraceParent)
}

// Encode returns the encoded response in two parts: the body, which is shared and must not be changed, and the fields that
// differ between streams.
func (r *Response) Encode() (body mem.BufferSlice, tail []byte) {
	return r.Body.pieces, r.appendTail(make([]byte, 0, r.tailBytes()))
}

// buffers returns the encoded response.
func (r *Response) buffers() mem.BufferSlice {
	body, tail := r.Encode()
	out := make(mem.BufferSlice, 0, len(body)+1)
	out = append(out, body...)
	return append(out, mem.SliceBuffer(tail))
}

// Error adds an error to resource_errors. The body must not contain its resource.
func (b *Body) Error(e *ResourceError) {
	num := sotwErrors
	if b.delta {
		num = responseErrors
	}
	b.count++
	b.add(appendBytes(nil, num, e.encoded))
}

// NewHaltsBody returns the body of a response that tells a relay what rollouts have halted.
func NewHaltsBody(halts []byte) *Body {
	b := new(Body)
	b.add(appendBytes(nil, responseHalts, halts))
	return b
}

// HaltsIn returns what a response tells of halts. ok is false for all other responses.
func HaltsIn(msg []byte) (halts []byte, ok bool) {
	num, typ, tag := protowire.ConsumeTag(msg)
	if tag < 0 || num != responseHalts || typ != protowire.BytesType {
		return nil, false
	}
	halts, n := protowire.ConsumeBytes(msg[tag:])
	return halts, n == len(msg)-tag
}
