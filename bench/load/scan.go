package load

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/h2"
)

// A response holds the fields of a discovery response that an ACK repeats, and counters.
// Its slices are valid only during the call of sink.end.
type response struct {
	typeURL, nonce, version []byte
	removed                 int // removed resources
	bytes                   int // length of the message
}

// A resource holds the fields of a resource that the load generator reads. Its slices
// refer to the input.
type resource struct {
	typeURL, version []byte
	stamp            content.Stamp
}

var (
	errMalformed  = errors.New("malformed response")
	errCompressed = errors.New("malformed compressed response")
)

// DiscoveryResponse and DeltaDiscoveryResponse have the same field numbers, except for
// removed resources, which only the latter has.
const (
	fieldVersion   = 1
	fieldResources = 2
	fieldTypeURL   = 4
	fieldNonce     = 5
	fieldRemoved   = 6
	fieldRemoved2  = 8 // removed_resource_names, the form with dynamic parameters
)

// A scanner reads discovery responses from a stream of gRPC messages in pieces of any
// size. It buffers at most one resource, not a whole response unless it is compressed. The zero value is ready.
type scanner struct {
	part   []byte // the start of an incomplete message header or field
	left   int    // unread bytes of the message; 0 between messages
	packed bool   // the message is compressed
	response
}

// A sink receives the output of a scanner. Arguments are valid until the function returns.
type sink struct {
	resource func(resource) error
	end      func(response) error // called after all resources of a response
}

// read scans the next bytes of the stream. It does not keep data.
func (s *scanner) read(data []byte, sotw bool, to sink) error {
	for len(data) > 0 {
		if len(s.part) == 0 {
			n, err := s.unit(data)
			if err != nil {
				return err
			}
			if n == 0 || n > len(data) {
				s.part = append(s.part, data...)
				return nil
			}
			if err := s.take(data[:n], sotw, to); err != nil {
				return err
			}
			data = data[n:]
			continue
		}
		rest, whole, err := s.goOn(data)
		if err != nil {
			return err
		}
		if data = rest; !whole {
			continue
		}
		if err := s.take(s.part, sotw, to); err != nil {
			return err
		}
		s.part = s.part[:0]
	}
	return nil
}

// goOn appends data to the incomplete unit in s.part, at most up to the end of the unit.
// whole reports whether the unit is complete.
func (s *scanner) goOn(data []byte) (rest []byte, whole bool, err error) {
	n, err := s.unit(s.part)
	if err != nil {
		return nil, false, err
	}
	more := 1 // one byte at a time until the length is known
	if n > 0 {
		more = min(n-len(s.part), len(data))
	}
	s.part = append(s.part, data[:more]...)
	if n, err = s.unit(s.part); err != nil {
		return nil, false, err
	}
	return data[more:], n == len(s.part), nil
}

// unit returns the length of the message header or field that b starts with, or 0
// if b is too short to determine it.
func (s *scanner) unit(b []byte) (int, error) {
	if s.left == 0 {
		return h2.MessageHeaderBytes, nil
	}
	if s.packed {
		return s.left, nil
	}
	_, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, s.short(b)
	}
	if kind != protowire.BytesType {
		m := protowire.ConsumeFieldValue(1, kind, b[n:])
		if m < 0 {
			return 0, s.short(b)
		}
		return n + m, s.fits(n + m)
	}
	length, m := protowire.ConsumeVarint(b[n:])
	if m < 0 {
		return 0, s.short(b)
	}
	if length > uint64(s.left) {
		return 0, errMalformed
	}
	return n + m + int(length), s.fits(n + m + int(length))
}

// short returns nil if b may be the start of a longer tag and length, and else errMalformed.
func (s *scanner) short(b []byte) error {
	if len(b) >= min(s.left, 2*binary.MaxVarintLen64) {
		return errMalformed
	}
	return nil
}

// fits returns errMalformed if n bytes exceed the rest of the message.
func (s *scanner) fits(n int) error {
	if n > s.left {
		return errMalformed
	}
	return nil
}

// take handles a complete message header or field.
func (s *scanner) take(b []byte, sotw bool, to sink) error {
	if s.left == 0 {
		if b[0] > 1 {
			return errMalformed
		}
		s.packed = b[0] == 1
		s.left = int(binary.BigEndian.Uint32(b[1:]))
		s.response = response{typeURL: s.typeURL[:0], nonce: s.nonce[:0], version: s.version[:0], bytes: s.left}
	} else {
		s.left -= len(b)
		if s.packed {
			plain, err := gunzip(b)
			if err != nil {
				return err
			}
			b = plain
		}
		err := fields(b, func(field protowire.Number, value []byte) error { return s.field(field, value, sotw, to) })
		if err != nil {
			return err
		}
	}
	if s.left > 0 {
		return nil
	}
	return to.end(s.response)
}

// unpacked has the content of compressed messages, without their last blocks, by the bytes before these blocks. Clients are
// sent equal bytes, and the load generator must not spend the CPU of a client on each. The goroutine that reads responses
// uses it.
var unpacked = map[string][]byte{}

// gunzip returns the content of a compressed message.
func gunzip(b []byte) ([]byte, error) {
	at, tail := lastBlock(b)
	if known, ok := unpacked[string(b[:at])]; ok {
		return append(known, tail...), nil
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, errors.Join(errCompressed, err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return nil, errors.Join(errCompressed, err)
	}
	if len(unpacked) == 256 {
		clear(unpacked)
	}
	n := len(plain) - len(tail)
	unpacked[string(b[:at])] = plain[:n:n]
	return plain, nil
}

// lastBlock returns where the last block of a compressed message begins, and its content. If it cannot be told, it is the end
// of the message, without a content.
func lastBlock(b []byte) (at int, content []byte) {
	const trailer, header, longest = 8, 5, 200
	end := len(b) - trailer
	for n := range longest {
		at = end - n - header
		if at < 0 {
			break
		}
		if b[at] == 1 && int(b[at+1]) == n && b[at+2] == 0 && b[at+3] == ^b[at+1] && b[at+4] == 0xff {
			return at, b[at+header : end]
		}
	}
	return len(b), nil
}

// field handles a length-delimited field of a response.
func (s *scanner) field(field protowire.Number, value []byte, sotw bool, to sink) error {
	switch field {
	case fieldResources:
		r, err := readResource(value, sotw)
		if err != nil {
			return err
		}
		return to.resource(r)
	case fieldVersion:
		s.version = append(s.version[:0], value...)
	case fieldTypeURL:
		s.typeURL = append(s.typeURL[:0], value...)
	case fieldNonce:
		s.nonce = append(s.nonce[:0], value...)
	case fieldRemoved, fieldRemoved2:
		if !sotw { // in DiscoveryResponse, field 6 is control_plane
			s.removed++
		}
	}
	return nil
}

// readResource reads a Resource of Delta, or an Any of SotW, which has no version. Errors: the resource has no stamp.
func readResource(b []byte, sotw bool) (r resource, err error) {
	payload := b
	if !sotw {
		payload = nil
		err = fields(b, func(field protowire.Number, value []byte) error {
			switch field {
			case 1:
				r.version = value
			case 2:
				payload = value
			}
			return nil
		})
		if err != nil {
			return r, err
		}
	}
	found := false
	err = fields(payload, func(field protowire.Number, value []byte) error {
		switch field {
		case 1:
			r.typeURL = value
		case 2:
			r.stamp, found = content.ReadStamp(value)
		}
		return nil
	})
	if err == nil && !found {
		err = errMalformed
	}
	return r, err
}

// fields calls field for each length-delimited field of a message, and skips other fields.
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
