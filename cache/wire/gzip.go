package wire

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
)

// AppendGzip appends the response in the format of gzip. Streams share the compressed forms of its pieces. Small pieces,
// and the fields that differ between streams, are encoded for each stream, without compression. It sets r.Saved.
func (r *Response) AppendGzip(out mem.BufferSlice) mem.BufferSlice {
	z := member{out: slices.Grow(out, len(r.Body.pieces)+1)}
	for _, piece := range r.Body.pieces {
		if s, ok := piece.(*shared); ok && !r.Secret {
			if c := s.compress(); c != nil {
				z.add(c, s.Len())
				continue
			}
		}
		z.store(piece.ReadOnlyData())
	}
	z.end(r)
	r.Saved = int32(z.read - z.written)
	return z.out
}

// A member is a gzip member that is being written.
type member struct {
	out           mem.BufferSlice
	read, written int    // bytes
	crc           uint32 // of the read bytes

	buf   []byte // not in out yet; its last block may be open
	block int    // where the open block begins in buf, plus one; 0 if none is open
}

// A block without compression begins with its kind and length. The member ends with a CRC and a length.
const (
	blockHeader  = 5
	largestBlock = 1<<16 - 1
	gzipTrailer  = 8
)

// add adds a compressed piece of some size.
func (z *member) add(c *compressed, size int) {
	z.closeBlock(0)
	z.pass()
	piece := c.blocks
	if z.written == 0 {
		piece = c.first
	}
	z.out = append(z.out, piece)
	z.written += piece.Len()
	z.crc = c.crcAfter(z.crc)
	z.read += size
}

// store adds bytes without compression.
func (z *member) store(b []byte) {
	z.crc = crc32.Update(z.crc, crc32.IEEETable, b)
	z.read += len(b)
	for len(b) > 0 {
		if z.block == 0 {
			z.open(min(len(b), largestBlock))
		}
		n := min(len(b), z.block+largestBlock-len(z.buf))
		z.buf, b = append(z.buf, b[:n]...), b[n:]
		if len(b) > 0 {
			z.closeBlock(0)
		}
	}
}

// open begins a block of about so many bytes.
func (z *member) open(size int) {
	z.buf = slices.Grow(z.buf, len(gzipHeader)+blockHeader+size+gzipTrailer)
	if z.written == 0 && len(z.buf) == 0 {
		z.buf = append(z.buf, gzipHeader...)
	}
	z.buf = append(z.buf, make([]byte, blockHeader)...)
	z.block = len(z.buf)
}

// closeBlock writes the header of the open block. final is 1 for the last block of the member.
func (z *member) closeBlock(final byte) {
	if z.block == 0 {
		return
	}
	header := z.buf[z.block-blockHeader : z.block]
	n := len(z.buf) - z.block
	header[0] = final
	binary.LittleEndian.PutUint16(header[1:], uint16(n))
	binary.LittleEndian.PutUint16(header[3:], ^uint16(n))
	z.block = 0
}

// pass adds buf to out.
func (z *member) pass() {
	if len(z.buf) > 0 {
		z.out = append(z.out, mem.SliceBuffer(z.buf))
		z.written += len(z.buf)
		z.buf = nil
	}
}

// end writes the last block, with the fields of the response that differ between streams, and the trailer.
func (z *member) end(r *Response) {
	z.closeBlock(0)
	z.open(r.tailBytes())
	z.buf = r.appendTail(z.buf)
	tail := z.buf[z.block:]
	z.crc = crc32.Update(z.crc, crc32.IEEETable, tail)
	z.read += len(tail)
	z.closeBlock(1)
	z.buf = binary.LittleEndian.AppendUint32(z.buf, z.crc)
	z.buf = binary.LittleEndian.AppendUint32(z.buf, uint32(z.read))
	z.pass()
}

// compressedMark is the first piece of a response that [Codec] has compressed. gRPC's compressor recognizes it by its
// address, and drops it.
var (
	compressedMark              = []byte{0}
	compressedMarker mem.Buffer = mem.SliceBuffer(compressedMark)
)

// A gzipCompressor is gRPC's compressor, which compresses each message. It passes on what [Codec] has compressed.
type gzipCompressor struct{ encoding.Compressor }

func init() { encoding.RegisterCompressor(gzipCompressor{encoding.GetCompressor(gzip.Name)}) }

// Compresses reports whether streams can be sent compressed responses: gRPC still has the compressor of this package.
func Compresses() bool {
	_, ok := encoding.GetCompressor(gzip.Name).(gzipCompressor)
	return ok
}

// Compress implements encoding.Compressor.
func (c gzipCompressor) Compress(w io.Writer) (io.WriteCloser, error) {
	z := gzipWriters.Get().(*gzipWriter)
	z.compressor, z.w = c.Compressor, w
	return z, nil
}

// A gzipWriter writes one message. The first piece decides what it does with the message.
type gzipWriter struct {
	compressor encoding.Compressor
	w          io.Writer
	ready      bool           // w takes the message as it is
	compress   io.WriteCloser // takes the message if it is not nil
	small      []byte         // pieces for w, since gRPC allocates memory for each
}

// maxPiece is the size in bytes of the pieces for gRPC, which copies one of more than 32 KiB into a buffer of 1 MiB.
const maxPiece = 16 << 10

var gzipWriters = sync.Pool{New: func() any { return &gzipWriter{small: make([]byte, 0, maxPiece/8)} }}

// Write implements io.Writer.
func (z *gzipWriter) Write(b []byte) (n int, err error) {
	switch {
	case z.ready:
	case z.compress == nil && len(b) == 1 && &b[0] == &compressedMark[0]:
		z.ready = true
		return len(b), nil
	default:
		if err := z.start(); err != nil {
			return 0, err
		}
		return z.compress.Write(b)
	}
	if len(z.small)+len(b) > cap(z.small) {
		if err := z.flush(); err != nil {
			return 0, err
		}
	}
	if len(b) <= cap(z.small) {
		z.small = append(z.small, b...)
		return len(b), nil
	}
	for piece := range slices.Chunk(b, maxPiece) {
		m, err := z.w.Write(piece)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// start begins to compress a message.
func (z *gzipWriter) start() (err error) {
	if z.compress == nil {
		z.compress, err = z.compressor.Compress(z.w)
	}
	return err
}

// flush passes the small pieces on.
func (z *gzipWriter) flush() (err error) {
	if len(z.small) > 0 {
		_, err = z.w.Write(z.small)
		z.small = z.small[:0]
	}
	return err
}

// Close implements io.Closer.
func (z *gzipWriter) Close() error {
	defer func() {
		*z = gzipWriter{small: z.small[:0]}
		gzipWriters.Put(z)
	}()
	if z.ready {
		return z.flush()
	}
	if err := z.start(); err != nil {
		return err
	}
	return z.compress.Close()
}
