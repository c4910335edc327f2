package wire

import (
	"fmt"

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
func (d Decoder) DecodeSotW(msg []byte) (Update, error) { return d.decode(msg, true) }

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

// wrapped returns the Resource message in an Any of a DiscoveryResponse, or a new one around it.
func wrapped(responseType string, body []byte) ([]byte, error) {
	typeURL, value, err := parseAny(body)
	switch {
	case err != nil:
		return nil, err
	case typeURL == resourceWrapper:
		return value, nil
	case typeURL != responseType:
		return nil, fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, typeURL, responseType)
	case !hasOwnName(typeURL):
		return nil, fmt.Errorf("%w: type %q holds none itself, so in SotW the origin must wrap it in %q",
			ErrUnnamed, typeURL, resourceWrapper)
	}
	return appendBytes(nil, resourceBody, body), nil
}

// hasOwnName reports whether resources of a type contain their name.
func hasOwnName(typeURL string) bool { return Known(typeURL) && typeURL != LocalityEndpoint }

// readName returns the name in a resource of a type that hasOwnName. Its actual type is bodyType.
func readName(typeURL, bodyType string, value []byte) (string, error) {
	if bodyType != typeURL {
		return "", fmt.Errorf("%w: %q in a response of type %q", ErrTypeMismatch, bodyType, typeURL)
	}
	if !wellFormed(value) {
		return "", fmt.Errorf("%w: resource of type %q", ErrMalformed, typeURL)
	}
	name, _ := stringField(value, ownName)
	if name == "" {
		return "", fmt.Errorf("%w, type %q", ErrUnnamed, typeURL)
	}
	return text([]byte(name), "resource name")
}
