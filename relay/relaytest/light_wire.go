package relaytest

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// A lightEnvelope is a response of either variant, parsed without copying. Its slices are valid until the next parse.
type lightEnvelope struct {
	typeURL   string
	version   string
	nonce     string
	resources []lightResource
	removed   [][]byte
}

type lightResource struct {
	name, version, typeURL, value []byte
	hasBody                       bool
}

// parse reads a DiscoveryResponse or a DeltaDiscoveryResponse.
func (e *lightEnvelope) parse(b []byte, variant Variant) error {
	last := e.typeURL // reused if equal, to save an allocation
	e.typeURL, e.version, e.nonce, e.resources, e.removed = "", "", "", e.resources[:0], e.removed[:0]
	return eachField(b, func(num protowire.Number, v []byte) error {
		switch {
		case num == 1:
			e.version = string(v)
		case num == 2 && variant == SotW:
			r := lightResource{}
			if err := r.parseAny(v); err != nil {
				return err
			}
			return e.addSotW(r)
		case num == 2:
			r := lightResource{}
			e.resources = append(e.resources, r)
			return e.resources[len(e.resources)-1].parse(v)
		case num == 4 && string(v) == last:
			e.typeURL = last
		case num == 4:
			e.typeURL = string(v)
		case num == 5:
			e.nonce = string(v)
		case num == 6 && variant == Delta:
			e.removed = append(e.removed, v)
		}
		return nil
	})
}

// addSotW adds a resource of a SotW response, unwrapped if necessary.
func (e *lightEnvelope) addSotW(r lightResource) error {
	if string(r.typeURL) == wrapperType {
		inner := lightResource{}
		e.resources = append(e.resources, inner)
		return e.resources[len(e.resources)-1].parse(r.value)
	}
	name, ok := field(r.value, 1)
	if !ok {
		name = []byte(nameOf(r.value))
	}
	r.name = name
	e.resources = append(e.resources, r)
	return nil
}

// parse reads a discovery Resource.
func (r *lightResource) parse(b []byte) error {
	return eachField(b, func(num protowire.Number, v []byte) error {
		switch num {
		case 1:
			r.version = v
		case 2:
			return r.parseAny(v)
		case 3:
			r.name = v
		}
		return nil
	})
}

// parseAny reads the Any of a resource.
func (r *lightResource) parseAny(b []byte) error {
	r.hasBody = true
	return eachField(b, func(num protowire.Number, v []byte) error {
		switch num {
		case 1:
			r.typeURL = v
		case 2:
			r.value = v
		}
		return nil
	})
}

// eachField calls f for every length-delimited field of a message.
func eachField(b []byte, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("parse response: %w", io.ErrUnexpectedEOF)
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(num, typ, b)
		if size < 0 {
			return fmt.Errorf("parse response: field %d: %w", num, io.ErrUnexpectedEOF)
		}
		if typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			if err := f(num, v); err != nil {
				return err
			}
		}
		b = b[size:]
	}
	return nil
}
