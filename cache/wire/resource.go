package wire

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
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

// Errors from [Decoder.Decode] and [Decoder.DecodeSotW], with [ErrXDSTP]. Each means
// that the origin broke the protocol: the session refuses the response and the
// cache keeps what it had (B.9).
var (
	ErrMalformed    = errors.New("malformed message")
	ErrUnnamed      = errors.New("resource without a name")
	ErrDuplicate    = errors.New("duplicate resource name")
	ErrTypeMismatch = errors.New("resource of another type")
)

// errSplitBody is how parse says that a body came in several fields.
var errSplitBody = errors.New("body in several fields")

// A Digest identifies content: SHA-256 of Any.type_url, a zero byte, Any.value
// (B.2).
type Digest [sha256.Size]byte

// A Resource is one named resource as its origin sent it. It is immutable.
type Resource struct {
	// Name is the resource's own name, in canonical form (B.23). It is empty only
	// for types that the protocol does not define (B.22).
	Name string

	// Version is what clients are told: the origin's version, or one made from
	// the content where the origin gave none (R090).
	Version string

	// Aliases are further names that subscribe to this resource (R092), in
	// canonical form.
	Aliases []string

	// TypeURL is that of the resource's body, empty if it has none.
	TypeURL string

	// Digest is that of the body.
	Digest Digest

	// OriginVersion is what the origin said, verbatim; it may be empty.
	OriginVersion string

	// EDSName is, for a Cluster that takes its endpoints from EDS, the name of
	// its ClusterLoadAssignment (B.16).
	EDSName string

	// TTL is how long the resource lives unless the origin says it again; zero is
	// without end (R107).
	TTL time.Duration

	// DoNotCache reports that the content may be passed on, but not kept (R125).
	DoNotCache bool

	// Constraints say which dynamic parameters a client must have for this variant
	// of the resource, as an encoded DynamicParameterConstraints; nil if there are
	// no variants (R122).
	Constraints []byte

	// Refusal says why the content is not to be taken: it is larger than the decoder
	// allows. What was there before stays (B.9). It is nil as a rule.
	Refusal *ResourceError

	wrapper        Digest     // of what the wrapper holds besides name, version, TTL and body
	field          mem.Buffer // the whole field, as it stands in a DeltaDiscoveryResponse, but for the TTL; nil if given up
	body           mem.Buffer // the part of field that is field 2 of a DiscoveryResponse; nil if there is none
	limited        bool       // the origin's message has a TTL, if only a zero one
	full           bool       // it has a resource_name
	standsIn       bool       // its type is not the one that was asked for
	contentDropped bool       // field and body were given up

	sensitive atomic.Int32           // what MayBeSensitive found, by judgement
	json      atomic.Pointer[[]byte] // what JSON made
}

// NewResource returns a resource that did not come from an origin's response: a
// file, or a generated set. Value is the encoded message of that type; an empty
// version means one made from the content.
func NewResource(typeURL, name, version string, value []byte, aliases ...string) (*Resource, error) {
	var any []byte
	any = protowire.AppendTag(any, anyTypeURL, protowire.BytesType)
	any = protowire.AppendString(any, typeURL)
	any = protowire.AppendTag(any, anyValue, protowire.BytesType)
	any = protowire.AppendBytes(any, value)

	var msg []byte
	msg = appendString(msg, resourceVersion, version)
	msg = protowire.AppendTag(msg, resourceBody, protowire.BytesType)
	msg = protowire.AppendBytes(msg, any)
	msg = appendString(msg, resourceName, name)
	for _, a := range aliases {
		msg = protowire.AppendTag(msg, resourceAliases, protowire.BytesType)
		msg = protowire.AppendString(msg, a)
	}
	return Decoder{}.resource(typeURL, msg)
}

// HasBody reports whether the resource has content. One without is a heartbeat
// (R106) or an alias that the origin could not resolve (R095).
func (r *Resource) HasBody() bool { return r.body != nil || r.contentDropped && r.TypeURL != "" }

// Heartbeat reports that the resource has nothing but a new TTL for what the
// client has already (R106). It may repeat the resource's aliases.
func (r *Resource) Heartbeat() bool { return !r.HasBody() && r.TTL > 0 }

// Unresolved reports that the origin knows no resource by these aliases (R095).
func (r *Resource) Unresolved() bool { return !r.HasBody() && r.TTL == 0 && len(r.Aliases) > 0 }

// ContentDropped reports that the content was given up: what the resource is called and
// what it was are known, but it cannot be sent (R125). So is the word that an alias
// means nothing (B.20).
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
		wrapper: r.wrapper, field: r.field, body: r.body, limited: r.limited, full: r.full, contentDropped: r.contentDropped,
	}
}

// Key returns what tells the resource apart from all others of its type: its
// name, and for a variant its constraints too.
func (r *Resource) Key() string {
	if r.Constraints == nil {
		return r.Name
	}
	return r.Name + "\x00" + string(r.Constraints)
}

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

// Value returns the bytes of the resource itself (Any.value). It allocates nothing.
func (r *Resource) Value() (value []byte) {
	if r.body == nil {
		return nil
	}
	_, _, n := protowire.ConsumeTag(r.Body())
	any, _ := protowire.ConsumeBytes(r.Body()[n:])
	for len(any) > 0 {
		num, typ, val, n := consumeField(any)
		if n < 0 {
			return nil
		}
		if num == anyValue && typ == protowire.BytesType {
			value = val
		}
		any = any[n:]
	}
	return value
}

// Intact reports whether the body is still what the digest was made of. All streams send
// the same bytes, so nobody may ever write to them.
func (r *Resource) Intact() bool {
	if r.body == nil {
		return true
	}
	_, _, n := protowire.ConsumeTag(r.Body())
	any, _ := protowire.ConsumeBytes(r.Body()[max(n, 0):])
	typeURL, value, err := parseAny(any)
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

// resource parses one Resource message and lays out its field anew, so that a
// resource does not keep the whole response alive.
func (d Decoder) resource(typeURL string, msg []byte) (*Resource, error) {
	r, msg, body, err := parseResource(msg)
	if err != nil {
		return nil, err
	}
	originName := r.Name
	if r.Name, err = CanonicalName(originName); err != nil {
		return nil, err
	}
	if r.Name == "" && Known(typeURL) {
		return nil, fmt.Errorf("%w, type %.256q", ErrUnnamed, typeURL)
	}
	r.standsIn = body.n > 0 && r.TypeURL != typeURL
	if r.standsIn && !r.maySubstitute(typeURL) {
		return nil, fmt.Errorf("%w: %.256q in a response of type %.256q, name %.256q", ErrTypeMismatch, r.TypeURL, typeURL, r.Name)
	}
	r.Version = r.OriginVersion
	if body.n > 0 && (r.Version == "" || d.ContentVersions) {
		r.Version = r.ContentVersion()
	}
	r.layOut(msg, body, originName)
	if r.TypeURL == ClusterType {
		// One that cannot be canonical is asked for by nobody.
		r.EDSName, _ = CanonicalName(edsName(r.Value(), r.Name))
	}
	return r, nil
}

// parseResource parses a Resource message, and returns it as it is to be kept:
// with canonical aliases and one body, which stands at the span.
func parseResource(msg []byte) (*Resource, []byte, span, error) {
	msg, err := respellAliases(msg)
	if err != nil {
		return nil, nil, span{}, err
	}
	r := &Resource{}
	body, err := r.parse(msg)
	if errors.Is(err, errSplitBody) {
		if msg, err = mergeBodies(msg); err == nil {
			r = &Resource{}
			body, err = r.parse(msg)
		}
	}
	return r, msg, body, err
}

// A span is where the body's field stands in a Resource message; n is 0 if there
// is none.
type span struct{ at, n int }

// parse reads the fields of a Resource message, and says where its body is. Of
// several bodies it reports errSplitBody.
func (r *Resource) parse(msg []byte) (body span, err error) {
	var p wrapperParser
	for at := 0; at < len(msg); {
		num, typ, val, n := consumeField(msg[at:])
		if n < 0 {
			return span{}, fmt.Errorf("%w: resource at byte %d of %d", ErrMalformed, at, len(msg))
		}
		if typ == protowire.BytesType && num == resourceBody {
			p.bodies++
			body, p.body = span{at, n}, val
		} else if err := p.field(r, num, typ, val, msg[at:at+n]); err != nil {
			return span{}, err
		}
		at += n
	}
	if p.bodies > 1 {
		return span{}, errSplitBody
	}
	if len(p.rest) > 0 {
		r.wrapper = sha256.Sum256(p.rest)
	}
	if err := r.wrapperFields(p.checked); err != nil || body.n == 0 {
		return body, err
	}
	return body, r.parseBody(p.body)
}

// A wrapperParser collects what parse finds in a Resource message.
type wrapperParser struct {
	bodies  int
	body    []byte // the Any
	rest    []byte // fields that are neither name, version, TTL nor body
	checked []byte // of the fields, what only the generated decoder can judge
}

// field takes a field other than the body.
func (p *wrapperParser) field(r *Resource, num protowire.Number, typ protowire.Type, val, raw []byte) (err error) {
	isBytes := typ == protowire.BytesType
	switch {
	case isBytes && num == resourceName:
		r.Name, err = text(val, "resource name")
		return err
	case isBytes && num == resourceVersion:
		r.OriginVersion, err = text(val, "resource version")
		return err
	case isBytes && num == resourceAliases:
		r.Aliases, err = appendText(r.Aliases, val)
	case isBytes && num == resourceTTL:
		p.checked = append(p.checked, raw...)
		return nil
	default:
		p.checked = append(p.checked, raw...)
	}
	p.rest = append(p.rest, raw...)
	return err
}

func (r *Resource) parseBody(any []byte) error {
	typeURL, value, err := parseAny(any)
	if err != nil {
		return err
	}
	r.TypeURL, r.Digest = typeURL, digest(typeURL, value)
	return nil
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

// wrapperFields takes the fields that are rare, and refuses what a client's
// decoder would choke on: passed on as bytes, it would end the streams of every
// client.
func (r *Resource) wrapperFields(fields []byte) error {
	if len(fields) == 0 {
		return nil
	}
	w := new(discoverypb.Resource)
	if err := nested.Unmarshal(fields, w); err != nil {
		return fmt.Errorf("%w: resource: %w", ErrMalformed, err)
	}
	r.TTL, r.limited = max(w.GetTtl().AsDuration(), 0), w.GetTtl() != nil
	r.DoNotCache = w.GetCacheControl().GetDoNotCache()
	full := w.GetResourceName()
	if full.GetName() == "" {
		return nil
	}
	if r.Name != "" {
		return fmt.Errorf("%w: resource with both name %.256q and resource_name %.256q", ErrMalformed, r.Name, full.GetName())
	}
	r.Name, r.full = full.GetName(), true
	r.Constraints = constraintBytes(full.GetDynamicParameterConstraints())
	return nil
}

// constraintBytes returns constraints in the one form that equal ones have in
// common; nil if there are none.
func constraintBytes(c *discoverypb.DynamicParameterConstraints) []byte {
	// It was decoded, so it can be encoded.
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if len(b) == 0 {
		return nil
	}
	return b
}

// layOut copies the message into a field of its own, without the TTL, which is not
// for every client, and with the version and the name that clients are told at its
// end, where they are not the origin's: of a scalar field, the last value counts. A
// resource_name becomes a plain name where there are no variants: not every client
// knows it.
func (r *Resource) layOut(msg []byte, body span, originName string) {
	if r.limited || r.full {
		msg, body = r.strip(msg)
	}
	var told []byte
	if r.Version != r.OriginVersion {
		told = appendString(told, resourceVersion, r.Version)
	}
	switch {
	case r.Constraints != nil:
		told = appendFullName(told, resourceFull, Variant{r.Name, r.Constraints})
	case r.Name != originName || r.full:
		told = appendString(told, resourceName, r.Name)
	}
	size := uint64(len(msg) + len(told))
	field := make([]byte, 0, int(size)+protowire.SizeTag(responseResources)+protowire.SizeVarint(size))
	field = protowire.AppendTag(field, responseResources, protowire.BytesType)
	field = protowire.AppendVarint(field, size)
	start := len(field)
	field = append(field, msg...)
	field = append(field, told...)
	r.field = mem.SliceBuffer(field)
	if body.n > 0 {
		from, to := start+body.at, start+body.at+body.n
		r.body = mem.SliceBuffer(field[from:to:to])
	}
}

// strip returns a valid Resource message, which has at most one body, without its
// TTL and its resource_name, and says where its body is then.
func (r *Resource) strip(msg []byte) (out []byte, body span) {
	out = make([]byte, 0, len(msg))
	for len(msg) > 0 {
		num, typ, _, n := consumeField(msg)
		isBytes := typ == protowire.BytesType
		if isBytes && num == resourceBody {
			body = span{len(out), n}
		}
		if !isBytes || num != resourceTTL && (num != resourceFull || !r.full) {
			out = append(out, msg[:n]...)
		}
		msg = msg[n:]
	}
	return out, body
}

// respellAliases returns a Resource message with its aliases in canonical form,
// which is what clients ask for (B.23). A message with nothing to respell is
// returned as it is, and so is a malformed one, for parse to refuse.
func respellAliases(msg []byte) ([]byte, error) {
	var out []byte
	done := 0 // so much of msg is in out
	for at := 0; at < len(msg); {
		num, typ, val, n := consumeField(msg[at:])
		if n < 0 {
			return msg, nil
		}
		if num == resourceAliases && typ == protowire.BytesType && bytes.HasPrefix(val, []byte(xdstpScheme)) && utf8.Valid(val) {
			alias, err := CanonicalName(string(val))
			if err != nil {
				return nil, err
			}
			if alias != string(val) {
				out = append(out, msg[done:at]...)
				out = protowire.AppendString(protowire.AppendTag(out, num, typ), alias)
				done = at + n
			}
		}
		at += n
	}
	if done == 0 {
		return msg, nil
	}
	return append(out, msg[done:]...), nil
}

// mergeBodies returns a valid Resource message with its several body fields made
// one. Occurrences of a message field merge, and for an Any, whose fields are
// all singular, concatenation is the merge. Each must be whole: halves of one
// must not become a body. No known origin sends this.
func mergeBodies(msg []byte) ([]byte, error) {
	var out, body []byte
	for len(msg) > 0 {
		num, typ, val, n := consumeField(msg)
		switch {
		case num != resourceBody || typ != protowire.BytesType:
			out = append(out, msg[:n]...)
		case wellFormed(val):
			body = append(body, val...)
		default:
			return nil, fmt.Errorf("%w: one of several bodies", ErrMalformed)
		}
		msg = msg[n:]
	}
	return protowire.AppendBytes(protowire.AppendTag(out, resourceBody, protowire.BytesType), body), nil
}

func parseAny(any []byte) (typeURL string, value []byte, err error) {
	for b := any; len(b) > 0; {
		num, typ, val, n := consumeField(b)
		if n < 0 {
			return "", nil, fmt.Errorf("%w: body at byte %d of %d", ErrMalformed, len(any)-len(b), len(any))
		}
		b = b[n:]
		switch {
		case num == anyTypeURL && typ == protowire.BytesType:
			if typeURL, err = text(val, "type URL"); err != nil {
				return "", nil, err
			}
		case num == anyValue && typ == protowire.BytesType:
			value = val
		}
	}
	return typeURL, value, nil
}

// HasEndpoints reports whether the resource is a ClusterLoadAssignment with an endpoint, or with another place where its
// endpoints are. ClusterLoadAssignment: endpoints=2 {lb_endpoints=2, load_balancer_endpoints=7,
// leds_cluster_locality_config=8}.
func (r *Resource) HasEndpoints() bool {
	if r.TypeURL != EndpointType {
		return false
	}
	for msg := r.Value(); len(msg) > 0; {
		num, typ, locality, n := consumeField(msg)
		if n < 0 {
			return true // whatever it is, it is not known to be empty
		}
		for num == 2 && typ == protowire.BytesType && len(locality) > 0 {
			field, _, _, n := consumeField(locality)
			if n < 0 || field == 2 || field == 7 || field == 8 {
				return true
			}
			locality = locality[n:]
		}
		msg = msg[n:]
	}
	return false
}

// edsName returns the name of the ClusterLoadAssignment that a Cluster needs, or
// "" if it is not an EDS cluster, or not a Cluster at all, or if its eds_config names
// another source than the stream of the cluster (ADS or self). Cluster: name=1,
// type=2 (EDS=3), eds_cluster_config=3 {eds_config=1, service_name=2}, cluster_type=38
// (in a oneof with type).
func edsName(cluster []byte, name string) string {
	const eds = 3
	isEDS, elsewhere, service := false, false, ""
	for len(cluster) > 0 {
		num, typ, val, n := consumeField(cluster)
		if n < 0 {
			return ""
		}
		switch {
		case num == 2 && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(val)
			isEDS = v == eds
		case num == 38 && typ == protowire.BytesType:
			isEDS = false
		case num == 3 && typ == protowire.BytesType:
			var ok bool
			if service, ok = serviceName(val, service); !ok {
				return ""
			}
			elsewhere = otherSource(val, elsewhere)
		}
		cluster = cluster[n:]
	}
	if !isEDS || elsewhere {
		return ""
	}
	return cmp.Or(service, name)
}

// otherSource reports whether the eds_config of an eds_cluster_config is neither ADS nor
// self, or returns what an earlier occurrence said if it has none. ConfigSource: path=1,
// api_config_source=2, ads=3, self=5, path_config_source=8, all in one oneof.
func otherSource(config []byte, earlier bool) bool {
	for len(config) > 0 {
		num, typ, source, n := consumeField(config)
		if num == 1 && typ == protowire.BytesType {
			for len(source) > 0 {
				specifier, _, _, n := consumeField(source)
				if n < 0 {
					return earlier // no client can read it
				}
				switch specifier {
				case 1, 2, 8:
					earlier = true
				case 3, 5:
					earlier = false
				}
				source = source[n:]
			}
		}
		config = config[n:]
	}
	return earlier
}

// serviceName returns the service_name of an eds_cluster_config, or what an
// earlier occurrence said; ok is false if no client could read the config.
func serviceName(config []byte, earlier string) (name string, ok bool) {
	name, set := stringField(config, 2)
	if !set {
		name = earlier
	}
	return name, wellFormed(config) && utf8.ValidString(name)
}

// stringField returns the last value of a string field of a message.
func stringField(msg []byte, want protowire.Number) (s string, ok bool) {
	for len(msg) > 0 {
		num, typ, val, n := consumeField(msg)
		if n < 0 {
			return "", false
		}
		if num == want && typ == protowire.BytesType {
			s, ok = string(val), true
		}
		msg = msg[n:]
	}
	return s, ok
}

// consumeField splits the first field off b: its number, type, the bytes of its
// value (without the length prefix) and the size of the whole field, negative if
// b is malformed.
func consumeField(b []byte) (num protowire.Number, typ protowire.Type, val []byte, n int) {
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, 0, nil, tag
	}
	if num > protowire.MaxValidNumber {
		return 0, 0, nil, -1 // ConsumeTag lets it pass, the generated decoders do not
	}
	if typ == protowire.BytesType {
		val, n = protowire.ConsumeBytes(b[tag:])
		if n < 0 {
			return 0, 0, nil, n
		}
		return num, typ, val, tag + n
	}
	n = protowire.ConsumeFieldValue(num, typ, b[tag:])
	if n < 0 {
		return 0, 0, nil, n
	}
	return num, typ, b[tag : tag+n], tag + n
}

// text returns a string field's value; protobuf strings are UTF-8, and a client
// refuses a message that holds another. Errors, here and elsewhere, quote no more of
// a text than people can read: peers are told them.
func text(val []byte, what string) (string, error) {
	if !utf8.Valid(val) {
		return "", fmt.Errorf("%w: %s %.256q is not UTF-8", ErrMalformed, what, val)
	}
	return string(val), nil
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}
