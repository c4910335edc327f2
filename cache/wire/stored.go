package wire

import (
	"fmt"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of a stored resource.
const (
	storedField         protowire.Number = 1 // what Field returns; the others are what that does not say
	storedOriginVersion protowire.Number = 2
	storedTTL           protowire.Number = 3 // nanoseconds
	storedWrapper       protowire.Number = 4

	// Of a resource whose content was given up, in the place of storedField.
	storedName        protowire.Number = 5
	storedVersion     protowire.Number = 6
	storedAlias       protowire.Number = 7
	storedTypeURL     protowire.Number = 8
	storedDigest      protowire.Number = 9
	storedConstraints protowire.Number = 10
	storedEDSName     protowire.Number = 11
	storedDoNotCache  protowire.Number = 12
)

// AppendStored appends a form of a resource with a body from which [ReadStored] makes an
// equal one, in another process too. Of one that was given up, it has all but the content.
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
	b = appendBytes(b, storedName, []byte(r.Name)) // even if it is empty
	b = appendString(b, storedVersion, r.Version)
	for _, alias := range r.Aliases {
		b = appendBytes(b, storedAlias, []byte(alias))
	}
	b = appendString(b, storedTypeURL, r.TypeURL)
	b = appendBytes(b, storedDigest, r.Digest[:])
	if r.Constraints != nil {
		b = appendBytes(b, storedConstraints, r.Constraints)
	}
	b = appendString(b, storedEDSName, r.EDSName)
	if r.DoNotCache {
		b = appendNumber(b, storedDoNotCache, 1)
	}
	return b
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// ReadStored reads what AppendStored wrote. The resource shares no memory with b.
//
// Errors: [ErrMalformed], [ErrUnnamed].
func ReadStored(b []byte) (*Resource, error) {
	r := &Resource{}
	var s stored
	for at := 0; at < len(b); {
		num, typ, val, n := consumeField(b[at:])
		if n < 0 {
			return nil, fmt.Errorf("%w: stored resource at byte %d of %d", ErrMalformed, at, len(b))
		}
		at += n
		var err error
		if typ == protowire.BytesType {
			err = s.bytes(r, num, val)
		} else if v, m := protowire.ConsumeVarint(val); m > 0 {
			s.number(r, num, v)
		}
		if err != nil {
			return nil, err
		}
	}
	return s.finish(r)
}

// stored is what is read of a stored resource that a Resource does not hold as such.
type stored struct {
	field         []byte
	originVersion string
	wrapper       Digest
	ttl           time.Duration
	named         bool // as only what was given up is
}

func (s *stored) bytes(r *Resource, num protowire.Number, val []byte) (err error) {
	switch num {
	case storedField:
		s.field = val
	case storedOriginVersion:
		s.originVersion, err = text(val, "resource version")
	case storedWrapper:
		return s.wrapper.set(val)
	case storedName:
		s.named = true
		r.Name, err = text(val, "resource name")
	case storedVersion:
		r.Version, err = text(val, "resource version")
	case storedAlias:
		r.Aliases, err = appendText(r.Aliases, val)
	case storedTypeURL:
		r.TypeURL, err = text(val, "type URL")
	case storedDigest:
		return r.Digest.set(val)
	case storedConstraints:
		r.Constraints = append([]byte{}, val...)
	case storedEDSName:
		r.EDSName, err = text(val, "name of endpoints")
	}
	return err
}

func (s *stored) number(r *Resource, num protowire.Number, v uint64) {
	switch num {
	case storedTTL:
		s.ttl = max(time.Duration(v), 0)
	case storedDoNotCache:
		r.DoNotCache = v != 0
	}
}

func (d *Digest) set(val []byte) error {
	if len(val) != len(d) {
		return fmt.Errorf("%w: a digest of %d bytes", ErrMalformed, len(val))
	}
	copy(d[:], val)
	return nil
}

// finish makes the resource of what was read.
func (s *stored) finish(r *Resource) (*Resource, error) {
	switch {
	case s.named == (s.field != nil):
		return nil, fmt.Errorf("%w: a stored resource has either content or a name of its own", ErrMalformed)
	case s.named && r.TypeURL == "":
		return nil, fmt.Errorf("%w: a stored resource without a type", ErrMalformed)
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

// resourceOf makes a resource of what its Field returned, once.
func resourceOf(field []byte) (*Resource, error) {
	num, typ, msg, n := consumeField(field)
	if n != len(field) || num != responseResources || typ != protowire.BytesType {
		return nil, fmt.Errorf("%w: no field of a response", ErrMalformed)
	}
	r := &Resource{}
	body, err := r.parse(msg)
	switch {
	case err != nil:
		return nil, err
	case body.n == 0:
		return nil, fmt.Errorf("%w: a stored resource without a body", ErrMalformed)
	}
	r.Version = r.OriginVersion // which is what clients are told
	kept := append(make([]byte, 0, len(field)), field...)
	from := len(field) - len(msg) + body.at
	r.field, r.body = mem.SliceBuffer(kept), mem.SliceBuffer(kept[from:from+body.n:from+body.n])
	if r.TypeURL == ClusterType {
		r.EDSName, _ = CanonicalName(edsName(r.Value(), r.Name))
	}
	return r, nil
}
