package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge means that a message exceeds its limit after decompression.
var ErrTooLarge = errors.New("message too large once decompressed")

// gzipMagic is the prefix of gzip streams. No protobuf message begins with it: it would be a field of an undefined wire
// type.
const gzipMagic = "\x1f\x8b"

// Compressed reports whether a message is compressed with gzip.
func Compressed(msg []byte) bool { return bytes.HasPrefix(msg, []byte(gzipMagic)) }

// Inflate returns the decompressed message, which may have at most most bytes. A message that is not compressed is
// returned unchanged. Memory is charged before it is allocated. Errors: [ErrTooLarge], [ErrMalformed], those of memory.
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

// firstBuffer is the size of the first buffer of ReadAll, in bytes.
const firstBuffer = 4 << 10

// ReadAll reads until EOF, at most most bytes. Memory is charged before it is allocated.
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

// Memory is a limit on memory.
type Memory interface {
	// Hold charges the bytes, or returns an error that explains why they may not be allocated.
	Hold(bytes int) error
}
