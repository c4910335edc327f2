package wire

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// ownName is the field that holds the name in every known type that has a name
// of its own.
const ownName protowire.Number = 1

// DecodeSotW decodes a DiscoveryResponse. The update shares no memory with msg,
// and removes nothing: what absence says is for the subscriber to know.
//
// The name of a resource is that of the Resource message around it, if there is
// one, with all else that it holds (B.19). The types that the protocol defines
// have a name of their own, but for LbEndpoint. A resource of any other type must
// come wrapped.
//
// With an error the update still holds the type URL and the nonce, if msg had
// them, so that the response can be refused by name.
//
// Errors: [ErrMalformed], [ErrUnnamed], [ErrDuplicate], [ErrTypeMismatch],
// [ErrXDSTP].
func (d Decoder) DecodeSotW(msg []byte) (Update, error) {
	u, bodies, err := envelope(msg, (*Update).setSotW)
	if err != nil {
		return u, fmt.Errorf("decode response: %w", err)
	}
	if u.TypeURL == "" {
		return u, fmt.Errorf("decode response: %w: no type URL", ErrMalformed)
	}
	for _, body := range bodies {
		raw, err := wrapped(u.TypeURL, body)
		if err != nil {
			return u, fmt.Errorf("decode response: %w", err)
		}
		r, err := d.resource(u.TypeURL, raw)
		if err != nil {
			return u, fmt.Errorf("decode response: %w", err)
		}
		u.Resources = append(u.Resources, d.limit(r, raw))
	}
	if err := u.checkDuplicates(); err != nil {
		return u, fmt.Errorf("decode response: %w", err)
	}
	return u, nil
}

// setSotW is set for the fields of a DiscoveryResponse.
func (u *Update) setSotW(num protowire.Number, val []byte) error {
	switch num {
	case responseSystemVersion, responseTypeURL, responseNonce: // the same in both variants
		return u.set(num, val)
	case sotwControlPlane:
		return u.set(responseControlPlane, val)
	case sotwErrors:
		return u.set(responseErrors, val)
	default:
		return nil
	}
}

// wrapped returns the Resource message that an Any of a DiscoveryResponse holds,
// or one that holds the Any, under the name that the resource has itself.
func wrapped(responseType string, body []byte) ([]byte, error) {
	typeURL, value, err := parseAny(body)
	switch {
	case err != nil:
		return nil, err
	case typeURL == resourceWrapper:
		return withName(responseType, value)
	case typeURL != responseType:
		return nil, fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, typeURL, responseType)
	}
	name, err := readName(typeURL, value)
	if err != nil {
		return nil, err
	}
	msg := protowire.AppendTag(nil, resourceBody, protowire.BytesType)
	msg = protowire.AppendBytes(msg, body)
	return appendString(msg, resourceName, name), nil
}

// withName gives a Resource message of a known type that has no name the one that
// its body has.
func withName(typeURL string, msg []byte) ([]byte, error) {
	name, _ := stringField(msg, resourceName)
	if _, full := stringField(msg, resourceFull); full || name != "" || !hasOwnName(typeURL) {
		return msg, nil
	}
	body, there := bodyOf(msg)
	if !there {
		return msg, nil
	}
	bodyType, value, err := parseAny(body)
	if err != nil {
		return nil, err
	}
	if bodyType != typeURL {
		return nil, fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, bodyType, typeURL)
	}
	if name, err = readName(typeURL, value); err != nil {
		return nil, err
	}
	return appendString(msg[:len(msg):len(msg)], resourceName, name), nil
}

// bodyOf returns the Any of a Resource message: of several, what they are together.
func bodyOf(msg []byte) (body []byte, there bool) {
	for len(msg) > 0 {
		num, typ, val, n := consumeField(msg)
		if n < 0 {
			return nil, false // to be refused by whom parses it
		}
		if num == resourceBody && typ == protowire.BytesType {
			body, there = append(body, val...), true
		}
		msg = msg[n:]
	}
	return body, there
}

// hasOwnName reports whether resources of a type hold their name themselves.
func hasOwnName(typeURL string) bool { return Known(typeURL) && typeURL != LocalityEndpoint }

// readName returns the name that a resource holds itself.
func readName(typeURL string, value []byte) (string, error) {
	if !hasOwnName(typeURL) {
		return "", fmt.Errorf("%w: type %q holds none itself, so in SotW the origin must wrap it in %q",
			ErrUnnamed, typeURL, resourceWrapper)
	}
	if !wellFormed(value) {
		return "", fmt.Errorf("%w: resource of type %q", ErrMalformed, typeURL)
	}
	name, _ := stringField(value, ownName)
	switch {
	case name == "":
		return "", fmt.Errorf("%w, type %q", ErrUnnamed, typeURL)
	case !utf8.ValidString(name):
		return "", fmt.Errorf("%w: resource name %q is not UTF-8", ErrMalformed, name)
	}
	return name, nil
}
