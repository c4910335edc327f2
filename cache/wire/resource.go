package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Field numbers of envoy.service.discovery.v3.Resource and google.protobuf.Any.
const (
	resourceVersion protowire.Number = 1
	resourceBody    protowire.Number = 2
	resourceName    protowire.Number = 3
	resourceAliases protowire.Number = 4
	resourceTTL     protowire.Number = 6
	resourceFull    protowire.Number = 8 // resource_name: name and constraints

	anyTypeURL protowire.Number = 1
	anyValue   protowire.Number = 2

	// responseResources is the field that holds resources, in a
	// DeltaDiscoveryResponse and in a DiscoveryResponse. Resource.resource has the
	// same number, so a SotW response can use bytes of the Delta field unchanged.
	responseResources protowire.Number = 2
)

// A Digest identifies content: SHA-256 of Any.type_url, a zero byte, Any.value
// (B.2).
type Digest [sha256.Size]byte

// A Resource is one named resource as its origin sent it. It is immutable.
type Resource struct {
	// Name is the name of the resource in canonical form (B.23). It is empty only
	// for types that the protocol does not define (B.22).
	Name string

	// Version is the version that clients receive: the origin's version, or a version
	// made from the content if the origin sent none (R090).
	Version string

	// Aliases are further names under which clients can subscribe to the resource
	// (R092), in canonical form.
	Aliases []string

	// TypeURL is the type URL of the body, empty if there is no body.
	TypeURL string

	// Digest is the digest of the body.
	Digest Digest

	// OriginVersion is the origin's version, verbatim; it may be empty.
	OriginVersion string

	// TTL is the time after which the resource expires unless the origin renews it;
	// zero means that it does not expire (R107).
	TTL time.Duration

	// DoNotCache reports that the content may be relayed but not stored (R125).
	DoNotCache bool

	// Constraints are the constraints on a client's dynamic parameters that select
	// this variant of the resource, as an encoded DynamicParameterConstraints; nil if
	// the resource has no variants (R122).
	Constraints []byte

	// Refusal is the reason why the content is refused, normally nil: the content is
	// larger than the decoder allows. The cache then keeps the earlier content (B.9).
	Refusal *ResourceError

	wrapper        Digest     // of the fields of the Resource message other than name, version, TTL and body
	field          mem.Buffer // the field of a DeltaDiscoveryResponse, without the TTL; nil if the content was dropped
	body           mem.Buffer // the part of field that is field 2 of a DiscoveryResponse; nil if there is no body
	substitute     bool       // the body has another type than the response
	contentDropped bool       // field and body were dropped

	sensitivity atomic.Int32                // result of MayBeSensitive
	json        atomic.Pointer[[]byte]      // result of JSON
	references  atomic.Pointer[[]Reference] // result of References
}

// A Reference names a resource that a client requests on the stream on which it was sent the reference.
type Reference struct{ TypeURL, Name string }

// HasBody reports whether the resource has content. A resource without content is a
// heartbeat (R106) or an alias that the origin could not resolve (R095).
func (r *Resource) HasBody() bool { return r.body != nil || r.contentDropped && r.TypeURL != "" }

// Heartbeat reports whether the message only renews the TTL of a resource that the
// client already has (R106). It may repeat the aliases of the resource.
func (r *Resource) Heartbeat() bool { return !r.HasBody() && r.TTL > 0 }

// Unresolved reports whether the message means that the aliases name no resource (R095).
func (r *Resource) Unresolved() bool { return !r.HasBody() && r.TTL == 0 && len(r.Aliases) > 0 }

// ContentDropped reports whether the content was dropped: the name, version and digest of the resource
// are kept, but it cannot be sent (R125). This also applies to aliases that name no resource (B.20).
func (r *Resource) ContentDropped() bool { return r.contentDropped }

// DropContent returns the resource without its content.
func (r *Resource) DropContent() *Resource {
	c := r.clone()
	c.field, c.body, c.contentDropped = nil, nil, true
	return c
}

// WithoutTTL returns a copy of the resource that does not expire.
func (r *Resource) WithoutTTL() *Resource {
	c := r.clone()
	c.TTL = 0
	return c
}

// clone returns a copy that the caller may change.
func (r *Resource) clone() *Resource {
	return &Resource{
		Name: r.Name, Version: r.Version, Aliases: r.Aliases, TypeURL: r.TypeURL, Digest: r.Digest,
		OriginVersion: r.OriginVersion, TTL: r.TTL, DoNotCache: r.DoNotCache, Constraints: r.Constraints,
		wrapper: r.wrapper, field: r.field, body: r.body, contentDropped: r.contentDropped,
	}
}

// Key returns the key that is unique among the resources of the type: the name and,
// for a variant, the constraints.
func (r *Resource) Key() string { return r.Variant().Key() }

// Size returns the size of the resource in a response, in bytes.
func (r *Resource) Size() int { return len(r.Field()) }

// Field returns the resource as the field of a DeltaDiscoveryResponse, without its
// TTL. Callers must not modify it.
func (r *Resource) Field() []byte { return contents(r.field) }

// Body returns the resource as field 2 of a DiscoveryResponse, nil if it has
// none. Callers must not modify it.
func (r *Resource) Body() []byte { return contents(r.body) }

// contents returns the bytes of a buffer; a nil buffer is empty.
func contents(b mem.Buffer) []byte {
	if b == nil {
		return nil
	}
	return b.ReadOnlyData()
}

// any returns the encoded Any of a resource with a body.
func (r *Resource) any() []byte {
	_, _, any, _ := consumeField(r.Body())
	return any
}

// Value returns the bytes of the resource itself (Any.value). It allocates nothing.
func (r *Resource) Value() (value []byte) {
	if r.body == nil {
		return nil
	}
	for f := (fieldReader{msg: r.any()}); f.next(); {
		if f.isBytes(anyValue) {
			value = f.value
		}
	}
	return value
}

// Intact reports whether the body still has its digest. All streams send the same
// bytes, so no code may write to them.
func (r *Resource) Intact() bool {
	if r.body == nil {
		return true
	}
	typeURL, value, err := parseAny(r.any())
	return err == nil && digest(typeURL, value) == r.Digest
}

// SameContent reports whether r and o differ at most in their version and TTL.
func (r *Resource) SameContent(o *Resource) bool {
	return r.Digest == o.Digest && r.wrapper == o.wrapper && r.HasBody() == o.HasBody()
}

// ContentVersion returns a version made from the content: "h1." and 22 characters of
// the digest.
func (r *Resource) ContentVersion() string {
	return "h1." + base64.RawURLEncoding.EncodeToString(r.Digest[:16])
}

func digest(typeURL string, value []byte) (d Digest) {
	h := sha256.New()
	h.Write([]byte(typeURL))
	h.Write([]byte{0})
	h.Write(value)
	h.Sum(d[:0])
	return d
}

// nestedOptions decodes messages that become a field of a response. Clients decode them one
// level deeper, and reject the response if they exceed the recursion limit there.
var nestedOptions = proto.UnmarshalOptions{RecursionLimit: protowire.DefaultRecursionLimit - 1}

// Variant returns the name and the constraints of the resource.
func (r *Resource) Variant() Variant { return Variant{r.Name, r.Constraints} }

func parseAny(any []byte) (typeURL string, value []byte, err error) {
	f := fieldReader{msg: any}
	for f.next() {
		switch {
		case f.isBytes(anyTypeURL):
			if typeURL, err = text(f.value, "type URL"); err != nil {
				return "", nil, err
			}
		case f.isBytes(anyValue):
			value = f.value
		}
	}
	return typeURL, value, f.err("body")
}

// resourceWrapper is the type URL of the message that wraps resources.
const resourceWrapper = typePrefix + "envoy.service.discovery.v3.Resource"
