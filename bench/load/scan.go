package load

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/bench/content"
)

// A response is what the load generator reads of a discovery response: the fields
// that an ACK repeats. They lie in the message.
type response struct {
	typeURL, nonce, version []byte
	removed                 int
}

var errMalformed = errors.New("malformed response")

// Fields of DiscoveryResponse and DeltaDiscoveryResponse have the same numbers, but
// for the removed resources, which only the latter has.
const (
	fieldVersion   = 1
	fieldResources = 2
	fieldTypeURL   = 4
	fieldNonce     = 5
	fieldRemoved   = 6
	fieldRemoved2  = 8 // removed_resource_names
)

// readResponse reads all but the resources.
func readResponse(message []byte, sotw bool) (r response, err error) {
	err = fields(message, func(field protowire.Number, value []byte) error {
		switch field {
		case fieldVersion:
			r.version = value
		case fieldTypeURL:
			r.typeURL = value
		case fieldNonce:
			r.nonce = value
		case fieldRemoved, fieldRemoved2:
			if !sotw { // there, field 6 is the control plane
				r.removed++
			}
		}
		return nil
	})
	return r, err
}

// readResources calls resource for each resource of a message.
func readResources(message []byte, sotw bool, resource func(s content.Stamp, version []byte) error) error {
	return fields(message, func(field protowire.Number, value []byte) error {
		if field != fieldResources {
			return nil
		}
		s, version, err := readResource(value, sotw)
		if err != nil {
			return err
		}
		return resource(s, version)
	})
}

// readResource returns the stamp and version of a Resource, or of an Any, which
// has no version.
func readResource(b []byte, sotw bool) (s content.Stamp, version []byte, err error) {
	payload := b
	if !sotw {
		payload = nil
		err = fields(b, func(field protowire.Number, value []byte) error {
			switch field {
			case 1:
				version = value
			case 2:
				payload = value
			}
			return nil
		})
		if err != nil {
			return s, nil, err
		}
	}
	found := false
	err = fields(payload, func(field protowire.Number, value []byte) error {
		if field == 2 {
			s, found = content.ReadStamp(value)
		}
		return nil
	})
	if err == nil && !found {
		err = errMalformed
	}
	return s, version, err
}

// fields calls field for each length-delimited field of a message.
func fields(b []byte, field func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return errMalformed
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errMalformed
		}
		if err := field(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
