package wire

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"unicode/utf8"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

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
