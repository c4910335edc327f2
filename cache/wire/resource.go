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
	// DeltaDiscoveryResponse and in a DiscoveryResponse. That it is also the
	// number of Resource.resource is what lets a SotW response use the bytes of a
	// Delta one as they are.
	responseResources protowire.Number = 2
)

// A Digest identifies content: SHA-256 of Any.type_url, a zero byte, Any.value
// (B.2).
type Digest [sha256.Size]byte

// A Resource is one named resource as its origin sent it. It is immutable.
type Resource struct {
	// Name is the resource's own name, in canonical form (B.23). It is empty only
	// for types that the protocol does not define (B.22).
	Name string

	// Version is what clients receive: the origin's version, or one made from
	// the content where the origin gave none (R090).
	Version string

	// Aliases are further names that subscribe to this resource (R092), in
	// canonical form.
	Aliases []string

	// TypeURL is that of the resource's body, empty if it has none.
	TypeURL string

	// Digest is that of the body.
	Digest Digest

	// OriginVersion is the origin's version, verbatim; it may be empty.
	OriginVersion string

	// EDSName is, for a Cluster that takes its endpoints from EDS, the name of
	// its ClusterLoadAssignment (B.16).
	EDSName string

	// TTL is how long the resource lives unless the origin renews it; zero is
	// without end (R107).
	TTL time.Duration

	// DoNotCache reports that the content may be passed on, but not kept (R125).
	DoNotCache bool

	// Constraints say which dynamic parameters a client must have for this variant
	// of the resource, as an encoded DynamicParameterConstraints; nil if there are
	// no variants (R122).
	Constraints []byte

	// Refusal is why the content is rejected: it is larger than the decoder
	// allows. What was there before stays (B.9). It is nil as a rule.
	Refusal *ResourceError

	wrapper        Digest     // of what the wrapper holds besides name, version, TTL and body
	field          mem.Buffer // the whole field, as it stands in a DeltaDiscoveryResponse, but for the TTL; nil if dropped
	body           mem.Buffer // the part of field that is field 2 of a DiscoveryResponse; nil if there is none
	standsIn       bool       // its type is not the one that was asked for
	contentDropped bool       // field and body were dropped

	sensitive atomic.Int32           // what MayBeSensitive found, by judgement
	json      atomic.Pointer[[]byte] // what JSON made
}

// HasBody reports whether the resource has content. One without is a heartbeat
// (R106) or an alias that the origin could not resolve (R095).
func (r *Resource) HasBody() bool { return r.body != nil || r.contentDropped && r.TypeURL != "" }

// Heartbeat reports that the resource has nothing but a new TTL for what the
// client has already (R106). It may repeat the resource's aliases.
func (r *Resource) Heartbeat() bool { return !r.HasBody() && r.TTL > 0 }

// Unresolved reports that the origin has no resource by these aliases (R095).
func (r *Resource) Unresolved() bool { return !r.HasBody() && r.TTL == 0 && len(r.Aliases) > 0 }

// ContentDropped reports that the content was dropped: the name, version and digest of the resource
// are kept, but it cannot be sent (R125). The answer that an alias stands for nothing is dropped the same way (B.20).
func (r *Resource) ContentDropped() bool { return r.contentDropped }

// DropContent returns the resource without its content.
func (r *Resource) DropContent() *Resource {
	c := r.clone()
	c.field, c.body, c.contentDropped = nil, nil, true
	return c
}

// WithoutTTL returns the resource as one that does not expire.
func (r *Resource) WithoutTTL() *Resource {
	c := r.clone()
	c.TTL = 0
	return c
}

// clone returns a copy that may still be changed.
func (r *Resource) clone() *Resource {
	return &Resource{
		Name: r.Name, Version: r.Version, Aliases: r.Aliases, TypeURL: r.TypeURL, Digest: r.Digest,
		OriginVersion: r.OriginVersion, EDSName: r.EDSName, TTL: r.TTL, DoNotCache: r.DoNotCache, Constraints: r.Constraints,
		wrapper: r.wrapper, field: r.field, body: r.body, contentDropped: r.contentDropped,
	}
}

// Key returns what tells the resource apart from all others of its type: its
// name, and for a variant its constraints too.
func (r *Resource) Key() string { return r.Variant().Key() }

// Size returns the bytes that the resource takes in a response.
func (r *Resource) Size() int { return len(r.Field()) }

// Field returns the resource as the field of a DeltaDiscoveryResponse, without its
// TTL. Callers must not modify it.
func (r *Resource) Field() []byte { return contents(r.field) }

// Body returns the resource as field 2 of a DiscoveryResponse, nil if it has
// none. Callers must not modify it.
func (r *Resource) Body() []byte { return contents(r.body) }

// contents returns what is in a buffer, of which nil is an empty one.
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
		if f.is(anyValue) {
			value = f.val
		}
	}
	return value
}

// Intact reports whether the digest is still that of the body. All streams send
// the same bytes, so nobody may ever write to them.
func (r *Resource) Intact() bool {
	if r.body == nil {
		return true
	}
	typeURL, value, err := parseAny(r.any())
	return err == nil && digest(typeURL, value) == r.Digest
}

// SameContent reports whether a client that has o would learn nothing from r
// but another version or TTL.
func (r *Resource) SameContent(o *Resource) bool {
	return r.Digest == o.Digest && r.wrapper == o.wrapper && r.HasBody() == o.HasBody()
}

// ContentVersion returns the version made from the content, "h1." and 22
// characters of its digest.
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

// nested decodes what is passed on as a field of a response: a client finds it one
// level down, and refuses the response where that is too deep.
var nested = proto.UnmarshalOptions{RecursionLimit: protowire.DefaultRecursionLimit - 1}

// Variant returns which variant of its name the resource is.
func (r *Resource) Variant() Variant { return Variant{r.Name, r.Constraints} }

func parseAny(any []byte) (typeURL string, value []byte, err error) {
	f := fieldReader{msg: any}
	for f.next() {
		switch {
		case f.is(anyTypeURL):
			if typeURL, err = text(f.val, "type URL"); err != nil {
				return "", nil, err
			}
		case f.is(anyValue):
			value = f.val
		}
	}
	return typeURL, value, f.err("body")
}

// resourceWrapper is the type URL of the message that wraps resources.
const resourceWrapper = typePrefix + "envoy.service.discovery.v3.Resource"
