package wire

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of a stored resource.
const (
	storedField         protowire.Number = 1 // Resource.Field, which does not include the fields below
	storedOriginVersion protowire.Number = 2
	storedTTL           protowire.Number = 3 // nanoseconds
	storedWrapper       protowire.Number = 4

	// For a resource whose content was dropped, instead of storedField.
	storedName        protowire.Number = 5
	storedVersion     protowire.Number = 6
	storedAlias       protowire.Number = 7
	storedTypeURL     protowire.Number = 8
	storedDigest      protowire.Number = 9
	storedConstraints protowire.Number = 10
	storedDoNotCache  protowire.Number = 12 // 11 was the name of the endpoints of a cluster
)

// AppendStored appends an encoding of a resource with a body, from which [ReadStored] returns
// an equal resource, also in another process. Dropped content is not part of it.
func (r *Resource) AppendStored(b []byte) []byte {
	if r.contentDropped {
		b = r.appendDropped(b)
	} else {
		b = appendBytes(b, storedField, r.Field())
	}
	b = appendString(b, storedOriginVersion, r.OriginVersion)
	b = appendNumber(b, storedTTL, uint64(r.TTL))
	if r.wrapper != (Digest{}) {
		b = appendBytes(b, storedWrapper, r.wrapper[:])
	}
	return b
}

func (r *Resource) appendDropped(b []byte) []byte {
	b = appendBytes(b, storedName, r.Name) // even if it is empty
	b = appendString(b, storedVersion, r.Version)
	for _, alias := range r.Aliases {
		b = appendBytes(b, storedAlias, alias)
	}
	b = appendString(b, storedTypeURL, r.TypeURL)
	b = appendBytes(b, storedDigest, r.Digest[:])
	if r.Constraints != nil {
		b = appendBytes(b, storedConstraints, r.Constraints)
	}
	if r.DoNotCache {
		b = appendNumber(b, storedDoNotCache, 1)
	}
	return b
}

// ReadStored decodes a resource that AppendStored encoded. The resource shares no memory with b.
//
// Errors: [ErrMalformed], [ErrUnnamed].
func ReadStored(b []byte) (*Resource, error) {
	r := &Resource{}
	var s stored
	f := fieldReader{msg: b}
	for f.next() {
		if err := s.readField(r, &f); err != nil {
			return nil, err
		}
	}
	if f.malformed {
		return nil, f.err("stored resource")
	}
	return s.finish(r)
}

// stored holds the decoded fields of a stored resource that are not fields of a Resource.
type stored struct {
	field         []byte
	originVersion string
	wrapper       Digest
	ttl           time.Duration
	named         bool // there is a storedName, which only a resource whose content was dropped has
}

// readField reads one field.
func (s *stored) readField(r *Resource, f *fieldReader) (err error) {
	switch {
	case f.isBytes(storedField):
		s.field = f.value
	case f.isBytes(storedOriginVersion):
		s.originVersion, err = text(f.value, "resource version")
	case f.isVarint(storedTTL):
		s.ttl = max(time.Duration(f.varint()), 0)
	case f.isBytes(storedWrapper):
		return s.wrapper.read(f.value)
	default:
		return s.readDroppedField(r, f)
	}
	return err
}

// readDroppedField reads a field that only a resource whose content was dropped has.
func (s *stored) readDroppedField(r *Resource, f *fieldReader) (err error) {
	switch {
	case f.isBytes(storedName):
		s.named = true
		r.Name, err = text(f.value, "resource name")
	case f.isBytes(storedVersion):
		r.Version, err = text(f.value, "resource version")
	case f.isBytes(storedAlias):
		var alias string
		alias, err = text(f.value, "resource name")
		r.Aliases = append(r.Aliases, alias)
	case f.isBytes(storedTypeURL):
		r.TypeURL, err = text(f.value, "type URL")
	case f.isBytes(storedDigest):
		return r.Digest.read(f.value)
	case f.isBytes(storedConstraints):
		r.Constraints = append([]byte{}, f.value...)
	case f.isVarint(storedDoNotCache):
		r.DoNotCache = f.varint() != 0
	}
	return err
}

func (d *Digest) read(val []byte) error {
	if len(val) != len(d) {
		return fmt.Errorf("%w: the digest has %d bytes instead of 32", ErrMalformed, len(val))
	}
	copy(d[:], val)
	return nil
}

// finish returns the resource with the fields that were read.
func (s *stored) finish(r *Resource) (*Resource, error) {
	switch {
	case s.named == (s.field != nil):
		return nil, fmt.Errorf("%w: the stored resource must have either content or a name", ErrMalformed)
	case s.named && r.TypeURL == "":
		return nil, fmt.Errorf("%w: the stored resource has no type", ErrMalformed)
	case s.named:
		r.contentDropped = true
	default:
		var err error
		if r, err = resourceOf(s.field); err != nil {
			return nil, err
		}
	}
	if r.Name == "" && Known(r.TypeURL) {
		return nil, fmt.Errorf("%w, type %.256q", ErrUnnamed, r.TypeURL)
	}
	r.OriginVersion, r.wrapper, r.TTL = s.originVersion, s.wrapper, s.ttl
	return r, nil
}

// resourceOf returns the resource whose Field returned these bytes.
func resourceOf(field []byte) (*Resource, error) {
	num, typ, msg, n := consumeField(field)
	if n != len(field) || num != responseResources || typ != protowire.BytesType {
		return nil, fmt.Errorf("%w: the stored resource is not a field of a response", ErrMalformed)
	}
	r, p := &Resource{}, wrapperParser{}
	if err := p.parse(r, msg); err != nil {
		return nil, err
	}
	if p.bodies != 1 {
		return nil, fmt.Errorf("%w: the stored resource has %d bodies instead of 1", ErrMalformed, p.bodies)
	}
	r.Version = r.OriginVersion // the bytes contain the version that clients receive
	p.at.at += len(field) - len(msg)
	r.setField(slices.Clone(field), p.at)
	return r, nil
}
