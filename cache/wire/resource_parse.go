package wire

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire/schema"
)

// parseResource parses one Resource message and copies its bytes, so that a resource
// does not keep the whole response in memory. With nameInside, a resource without a name
// gets the name in its body (SotW).
func (d Decoder) parseResource(typeURL string, msg []byte, nameInside bool) (*Resource, error) {
	r, p := &Resource{}, wrapperParser{}
	if err := p.parse(r, msg); err != nil {
		return nil, err
	}
	originName := r.Name
	if err := p.setName(r, typeURL, nameInside); err != nil {
		return nil, err
	}
	if r.Name == "" && Known(typeURL) {
		return nil, fmt.Errorf("%w, type %.256q", ErrUnnamed, typeURL)
	}
	r.Version = r.OriginVersion
	if p.bodies > 0 && (r.Version == "" || d.ContentVersions) {
		r.Version = r.ContentVersion()
	}
	if p.rewritten || p.bodies > 1 {
		msg = p.rewrite(r, msg)
	}
	p.layOut(r, msg, originName)
	return r, nil
}

// setName gives a resource its canonical name, and checks that its type fits the response.
func (p *wrapperParser) setName(r *Resource, typeURL string, nameInside bool) (err error) {
	if nameInside && p.bodies > 0 && r.Name == "" && !p.fullName && hasOwnName(typeURL) {
		if r.Name, err = readName(typeURL, r.TypeURL, p.value); err != nil {
			return err
		}
	}
	if r.Name, err = CanonicalName(r.Name); err != nil {
		return err
	}
	if r.substitute = p.bodies > 0 && r.TypeURL != typeURL; r.substitute && !r.maySubstitute(typeURL) {
		return fmt.Errorf("%w: %.256q in a response of type %.256q, name %.256q", ErrTypeMismatch, r.TypeURL, typeURL, r.Name)
	}
	return nil
}

// A span is the position of the body field in a Resource message; n is 0 if there is
// no body.
type span struct{ at, n int }

// A wrapperParser collects the fields of a Resource message.
type wrapperParser struct {
	bodies    int
	at        span   // of the first body
	body      []byte // the Any
	value     []byte // of the Any
	rest      []byte // fields other than name, version, TTL and body, with canonical aliases
	checked   []byte // fields that the generated decoder has to check
	fullName  bool   // there is a resource_name
	named     bool   // the resource_name has a name
	rewritten bool   // the message has to be rewritten
}

// parse reads a Resource message.
func (p *wrapperParser) parse(r *Resource, msg []byte) error {
	f := fieldReader{msg: msg}
	for f.next() {
		if err := p.field(r, &f); err != nil {
			return err
		}
	}
	if f.malformed {
		return f.err("resource")
	}
	if len(p.rest) > 0 {
		r.wrapper = sha256.Sum256(p.rest)
	}
	err := p.checkedFields(r)
	if err != nil || p.bodies == 0 {
		return err
	}
	if r.TypeURL, p.value, err = parseAny(p.body); err == nil {
		r.Digest = digest(r.TypeURL, p.value)
	}
	return err
}

func (p *wrapperParser) field(r *Resource, f *fieldReader) (err error) {
	switch {
	case f.isBytes(resourceBody):
		return p.addBody(f)
	case f.isBytes(resourceName):
		r.Name, err = text(f.value, "resource name")
		return err
	case f.isBytes(resourceVersion):
		r.OriginVersion, err = text(f.value, "resource version")
		return err
	case f.isBytes(resourceAliases):
		return p.addAlias(r, f)
	case f.isBytes(resourceTTL):
		p.checked = append(p.checked, f.raw()...)
		return nil
	}
	p.fullName = p.fullName || f.isBytes(resourceFull)
	p.checked = append(p.checked, f.raw()...)
	p.rest = append(p.rest, f.raw()...)
	return nil
}

// addBody reads a body. Protobuf merges several occurrences, and since all fields of an Any are singular, concatenation
// does the same. Each occurrence must be well formed by itself. No known origin sends several bodies.
func (p *wrapperParser) addBody(f *fieldReader) error {
	p.bodies++
	if p.bodies == 1 {
		p.at, p.body = span{f.start, len(f.raw())}, f.value
		return nil
	}
	if !wellFormed(p.body) || !wellFormed(f.value) {
		return fmt.Errorf("%w: one of several bodies is incomplete", ErrMalformed)
	}
	p.body = slices.Concat(p.body, f.value)
	return nil
}

// addAlias reads an alias. Clients subscribe to its canonical form (B.23).
func (p *wrapperParser) addAlias(r *Resource, f *fieldReader) error {
	name, err := text(f.value, "resource name")
	if err != nil {
		return err
	}
	alias, err := CanonicalName(name)
	if err != nil {
		return err
	}
	raw := f.raw()
	if alias != name {
		p.rewritten, raw = true, appendString(nil, resourceAliases, alias)
	}
	r.Aliases, p.rest = append(r.Aliases, alias), append(p.rest, raw...)
	return nil
}

// rewrite returns a valid Resource message with canonical aliases and one body, without its TTL and resource_name.
func (p *wrapperParser) rewrite(r *Resource, msg []byte) []byte {
	out, aliases := make([]byte, 0, len(msg)), r.Aliases
	f := fieldReader{msg: msg}
	for f.next() {
		switch {
		case f.isBytes(resourceTTL), f.isBytes(resourceFull) && p.named, f.isBytes(resourceBody) && p.bodies > 1:
			continue
		case f.isBytes(resourceAliases):
			out, aliases = appendBytes(out, resourceAliases, aliases[0]), aliases[1:]
			continue
		case f.isBytes(resourceBody):
			p.at.at = len(out)
		}
		out = append(out, f.raw()...)
	}
	if p.bodies > 1 {
		p.at.at = len(out)
		out = appendBytes(out, resourceBody, p.body)
		p.at.n = len(out) - p.at.at
	}
	return out
}

// checkedFields decodes the rare fields with the generated decoder, and returns an error if that fails. If the relay
// forwarded such bytes, the decoders of all clients would fail, and the clients would close their streams.
func (p *wrapperParser) checkedFields(r *Resource) error {
	if len(p.checked) == 0 {
		return nil
	}
	w := new(discoverypb.Resource)
	if err := nestedOptions.Unmarshal(p.checked, w); err != nil {
		return fmt.Errorf("%w: resource: %w", ErrMalformed, err)
	}
	r.TTL, p.rewritten = max(w.GetTtl().AsDuration(), 0), p.rewritten || w.GetTtl() != nil
	r.DoNotCache = w.GetCacheControl().GetDoNotCache()
	full := w.GetResourceName()
	if full.GetName() == "" {
		return nil
	}
	if r.Name != "" {
		return fmt.Errorf("%w: resource with both name %.256q and resource_name %.256q", ErrMalformed, r.Name, full.GetName())
	}
	r.Name, p.named, p.rewritten = full.GetName(), true, true
	r.Constraints = constraintBytes(full.GetDynamicParameterConstraints())
	return nil
}

// layOut copies the message to a new buffer as a field of a response. If the version or the name that clients receive
// differs from the origin's, it is appended, because decoders use the last value of a scalar field. The resource_name
// of a resource without variants becomes a plain name, since not every client supports resource_name.
func (p *wrapperParser) layOut(r *Resource, msg []byte, originName string) {
	var sent []byte
	if r.Version != r.OriginVersion {
		sent = appendString(sent, resourceVersion, r.Version)
	}
	switch {
	case r.Constraints != nil:
		sent = appendFullName(sent, resourceFull, Variant{r.Name, r.Constraints})
	case r.Name != originName || p.named:
		sent = appendString(sent, resourceName, r.Name)
	}
	size := uint64(len(msg) + len(sent))
	field := make([]byte, 0, int(size)+protowire.SizeTag(responseResources)+protowire.SizeVarint(size))
	field = protowire.AppendTag(field, responseResources, protowire.BytesType)
	field = protowire.AppendVarint(field, size)
	p.at.at += len(field)
	r.setField(append(append(field, msg...), sent...), p.at)
}

// setField sets the bytes of the resource: its field in a response, and the position of the body in that field.
func (r *Resource) setField(field []byte, body span) {
	r.field = &shared{SliceBuffer: field}
	if body.n > 0 {
		end := body.at + body.n
		r.body = &shared{SliceBuffer: field[body.at:end:end]}
	}
}

// appendFullName appends a ResourceName as a field: name=1, dynamic_parameter_constraints=2.
func appendFullName(b []byte, num protowire.Number, v Variant) []byte {
	return appendBytes(b, num, appendBytes(appendString(nil, 1, v.Name), 2, v.Constraints))
}

// A Decoder decodes the responses of an origin. Its zero value is ready to use.
type Decoder struct {
	// ContentVersions gives resources versions made from their content instead of the
	// origin's versions (B.2).
	ContentVersions bool

	// MaxResourceBytes limits the size of a resource as the origin sent it; zero means
	// no limit. A larger resource is decoded and has a [Resource.Refusal].
	MaxResourceBytes int
}

// hasOwnName reports whether resources of a type contain their name.
func hasOwnName(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.URL != "" && !t.Nameless
}

// readName returns the name in the body of a resource of a type for which hasOwnName is true. bodyType is the type
// of the body.
func readName(typeURL, bodyType string, value []byte) (string, error) {
	if bodyType != typeURL {
		return "", fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, bodyType, typeURL)
	}
	if !wellFormed(value) {
		return "", fmt.Errorf("%w: resource of type %q", ErrMalformed, typeURL)
	}
	name := ""
	for rest := value; len(rest) > 0; {
		num, typ, val, n := consumeField(rest)
		if num == ownName && typ == protowire.BytesType { // the last value counts, and each has to be UTF-8
			var err error
			if name, err = text(val, "resource name"); err != nil {
				return "", err
			}
		}
		rest = rest[n:]
	}
	if name == "" {
		return "", fmt.Errorf("%w, type %q", ErrUnnamed, typeURL)
	}
	return name, nil
}

// ownName is the field that holds the name in every known type whose resources contain
// their name.
const ownName protowire.Number = 1

// NewResource returns a resource that is not part of a response, such as one read from
// a file. Value is the encoded message of the type. With an empty version, the version
// is made from the content.
func NewResource(typeURL, name, version string, value []byte, aliases ...string) (*Resource, error) {
	any := appendBytes(appendBytes(nil, anyTypeURL, typeURL), anyValue, value)
	msg := appendBytes(appendString(nil, resourceVersion, version), resourceBody, any)
	msg = appendString(msg, resourceName, name)
	for _, a := range aliases {
		msg = appendBytes(msg, resourceAliases, a)
	}
	return Decoder{}.parseResource(typeURL, msg, false)
}

// maySubstitute reports whether the resource may be sent in a response of the type although
// its body has another type: an xdstp name may refer to a redirect or to a collection
// (R133). The relay decodes neither.
func (r *Resource) maySubstitute(typeURL string) bool {
	return strings.HasPrefix(r.Name, xdstpScheme) && (r.TypeURL == redirectType || r.TypeURL == typeURL+"Collection")
}

// redirectType is the type of a redirect to another name.
const redirectType = typePrefix + "xds.core.v3.ResourceLocator"
