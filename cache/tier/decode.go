package tier

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// ErrReport is returned for a report that a relay of this release or a later one does not send.
var ErrReport = errors.New("invalid report of clients")

// maxNonce is the maximum size of a nonce in bytes. A relay numbers its responses.
const maxNonce = 20

// Decode decodes a report. It shares no memory with b. It ignores unknown fields.
//
// Errors: [ErrReport].
func Decode(b []byte) (*Report, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes: want at most %d", ErrReport, len(b), MaxBytes)
	}
	r := new(Report)
	hasAll := false
	err := eachField(b, func(f field) (err error) {
		switch f.num {
		case reportNonce:
			r.Nonce, err = f.text(maxNonce)
		case reportCounts:
			var c Counts
			if c, err = decodeCounts(f.value); err != nil {
				return err
			}
			switch {
			case c.TypeURL != "":
				r.Types = append(r.Types, c)
				err = r.checkTypes()
			case hasAll:
				err = fmt.Errorf("%w: two counts of all types", ErrReport)
			default:
				r.All, hasAll = c, true
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// checkTypes returns an error if the last type is unknown, or another one equal to it.
func (r *Report) checkTypes() error {
	last := len(r.Types) - 1
	typeURL := r.Types[last].TypeURL
	if !wire.Known(typeURL) || slices.ContainsFunc(r.Types[:last], func(c Counts) bool { return c.TypeURL == typeURL }) {
		return fmt.Errorf("%w: type %.64q is unknown, or has two counts", ErrReport, typeURL)
	}
	return nil
}

func decodeCounts(b []byte) (c Counts, err error) {
	err = eachField(b, func(f field) (err error) {
		switch f.num {
		case countsType:
			c.TypeURL, err = f.text(maxText)
		case countsInSync:
			c.InSync, err = f.number(maxCount)
		case countsBehind:
			c.Behind, err = f.number(maxCount)
		case countsRejecting:
			c.Rejecting, err = f.number(maxCount)
		case countsUnknown:
			c.Unknown, err = f.number(maxCount)
		case countsPending:
			c.Pending, err = f.number(maxCount)
		case countsClient:
			var client Client
			if client, err = decodeClient(f.value); err != nil {
				return err
			}
			c.Worst = append(c.Worst, client)
		}
		return err
	})
	if err == nil {
		err = c.check()
	}
	return c, err
}

// check returns an error if the counts have more clients by name than the report counts.
func (c *Counts) check() error {
	named := make(map[Sync]int)
	for i := range c.Worst {
		client := &c.Worst[i]
		if client.TypeURL == "" {
			client.TypeURL = c.TypeURL
		}
		if wire.IsSecret(client.TypeURL) {
			client.Detail = ""
		}
		named[client.Sync]++
	}
	if len(c.Worst) > MaxWorst || named[Rejecting] > c.Rejecting || named[Behind] > c.Behind ||
		named[Unknown] > c.Unknown || named[InSync] > 0 {
		return fmt.Errorf("%w: more clients by name than counted", ErrReport)
	}
	return nil
}

func decodeClient(b []byte) (c Client, err error) {
	err = eachField(b, func(f field) (err error) {
		switch f.num {
		case clientNode:
			c.Node, err = f.text(maxText)
		case clientVia:
			var relay string
			relay, err = f.text(maxText)
			if c.Via = append(c.Via, relay); len(c.Via) > maxVia {
				err = fmt.Errorf("%w: more than %d relays above a client", ErrReport, maxVia)
			}
		case clientType:
			c.TypeURL, err = f.text(maxText)
		case clientSync:
			var n int
			if n, err = f.number(len(severity) - 1); err == nil {
				c.Sync = severity[n]
			}
		case clientLag:
			var n int
			n, err = f.number(int(maxLag / time.Millisecond))
			c.Lag = time.Duration(n) * time.Millisecond
		case clientDetail:
			c.Detail, err = f.text(maxText)
		}
		return err
	})
	if c.Sync == "" {
		c.Sync = severity[0] // the index 0 is not encoded
	}
	return c, err
}

// A field is a field of an encoded message.
type field struct {
	num    protowire.Number
	typ    protowire.Type
	value  []byte // of a length-delimited field
	varint uint64
}

// eachField calls do for each field of a message until it returns an error.
func eachField(b []byte, do func(field) error) error {
	for f, err := range fields(b) {
		if err != nil {
			return err
		}
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

// fields yields the fields of a message that are varints or length-delimited, and an error if it is malformed.
func fields(b []byte) iter.Seq2[field, error] {
	return func(yield func(field, error) bool) {
		for len(b) > 0 {
			var f field
			n, size := 0, 0
			if f.num, f.typ, n = protowire.ConsumeTag(b); n < 0 {
				yield(f, fmt.Errorf("%w: %w", ErrReport, protowire.ParseError(n)))
				return
			}
			switch b = b[n:]; f.typ {
			case protowire.VarintType:
				f.varint, size = protowire.ConsumeVarint(b)
			case protowire.BytesType:
				f.value, size = protowire.ConsumeBytes(b)
			default:
				size = protowire.ConsumeFieldValue(f.num, f.typ, b)
			}
			if size < 0 {
				yield(f, fmt.Errorf("%w: %w", ErrReport, protowire.ParseError(size)))
				return
			}
			if b = b[size:]; !yield(f, nil) {
				return
			}
		}
	}
}

// text returns the value of a field as text of at most so many bytes.
func (f *field) text(most int) (string, error) {
	if f.typ != protowire.BytesType || len(f.value) > most || !utf8.Valid(f.value) {
		return "", fmt.Errorf("%w: field %d is not text of at most %d bytes", ErrReport, f.num, most)
	}
	return string(f.value), nil
}

// number returns the value of a field as a number that is not larger than most.
func (f *field) number(most int) (int, error) {
	if f.typ != protowire.VarintType || f.varint > uint64(most) {
		return 0, fmt.Errorf("%w: field %d is not a number up to %d", ErrReport, f.num, most)
	}
	return int(f.varint), nil
}
