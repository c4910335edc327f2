package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge is about a message that is larger decompressed than its reader allows.
var ErrTooLarge = errors.New("message too large once decompressed")

// gzipMagic begins what gzip has compressed, and no message of protobuf: it would be a field of a wire type that does not exist.
const gzipMagic = "\x1f\x8b"

// Compressed reports whether a message is compressed by gzip.
func Compressed(msg []byte) bool { return bytes.HasPrefix(msg, []byte(gzipMagic)) }

// Inflate returns a message of at most so many bytes, whether it is compressed or not. Memory is held before it is taken. Errors:
// [ErrTooLarge], [ErrMalformed], those of memory.
func Inflate(msg []byte, most int, memory Memory) ([]byte, error) {
	if !Compressed(msg) {
		return msg, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(msg))
	if err != nil {
		return nil, fmt.Errorf("%w: gzip: %w", ErrMalformed, err)
	}
	return ReadAll(r, most, memory)
}

// firstBuffer is how much ReadAll reads first, in bytes.
const firstBuffer = 4 << 10

// ReadAll reads all, which may be so many bytes. Memory is held before it is taken.
// Errors: [ErrTooLarge], [ErrMalformed], those of memory.
func ReadAll(r io.Reader, most int, memory Memory) (all []byte, err error) {
	for {
		if len(all) == cap(all) {
			size := min(max(2*cap(all), firstBuffer), most+1)
			if err := memory.Hold(size - cap(all)); err != nil {
				return nil, err
			}
			all = append(make([]byte, 0, size), all...)
		}
		n, err := r.Read(all[len(all):cap(all)])
		switch all = all[:len(all)+n]; {
		case len(all) > most:
			return nil, fmt.Errorf("%w: at most %d bytes are allowed", ErrTooLarge, most)
		case err == io.EOF:
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
}

// Memory is what somebody may use of it.
type Memory interface {
	// Hold charges for some bytes, or says why they may not be taken.
	Hold(bytes int) error
}
