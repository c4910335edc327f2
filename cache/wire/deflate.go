package wire

import (
	"bytes"
	"compress/flate"
	"hash/crc32"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// minCompressed is the size in bytes from which a piece of a response is compressed. It takes 15 µs however small the
// piece is, half as long as a delivery, and saves less than 300 bytes of a smaller one.
const minCompressed = 512

// gzipHeader begins each compressed response: DEFLATE, no name, no time, an unknown system.
const gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

// A shared is a piece of responses to many streams. It is compressed at most once, for the first stream that needs it.
type shared struct {
	mem.SliceBuffer
	compressed atomic.Pointer[compressed]
}

// A compressed has the compressed form of a piece.
type compressed struct {
	once   sync.Once
	blocks mem.Buffer // of DEFLATE, complete and none of them the last; nil if they are not smaller
	first  mem.Buffer // the same after gzipHeader
	crc    uint32     // of the uncompressed piece
	shift  uint32     // see shiftOf
}

// compress returns the compressed form of the piece, nil if it is too small or does not become smaller. Concurrent
// callers wait for the first.
func (s *shared) compress() *compressed {
	if s.Len() < minCompressed {
		return nil
	}
	c := s.compressed.Load()
	if c == nil {
		s.compressed.CompareAndSwap(nil, new(compressed))
		c = s.compressed.Load()
	}
	c.once.Do(func() { c.fill(s.ReadOnlyData()) })
	if c.blocks == nil {
		return nil
	}
	return c
}

// fill compresses a piece. The blocks refer to nothing before them, so that they can follow any other ones.
func (c *compressed) fill(piece []byte) {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.out.Reset()
	d.out.WriteString(gzipHeader)
	d.Reset(&d.out)
	_, _ = d.Write(piece) // a write to a buffer does not fail
	_ = d.Flush()         // ends the last block at a byte
	if d.out.Len() < len(piece) {
		first := bytes.Clone(d.out.Bytes())
		c.first, c.blocks = mem.SliceBuffer(first), mem.SliceBuffer(first[len(gzipHeader):])
		c.crc, c.shift = crc32.ChecksumIEEE(piece), shiftOf(len(piece))
	}
}

// A deflater compresses one piece after another.
type deflater struct {
	*flate.Writer
	out bytes.Buffer
}

// deflaters are kept for the next pieces, since each has tables of hundreds of KiB.
var deflaters = sync.Pool{New: func() any {
	// All clients wait for the first one's turn. The default level saves a tenth more and takes up to ten times as long.
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is valid
	return &deflater{Writer: w}
}}

// crcPolynomial is the polynomial of the CRC-32 of gzip, without x³². The highest bit is the coefficient of x⁰.
const crcPolynomial = crc32.IEEE

// multiply returns the product of two polynomials modulo crcPolynomial. a is not zero.
func multiply(a, b uint32) (product uint32) {
	for bit := uint32(1) << 31; ; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
			if a&(bit-1) == 0 {
				return product
			}
		}
		b = b>>1 ^ crcPolynomial&-(b&1)
	}
}

// powers has the polynomials x^(2^n).
var powers = func() (p [32]uint32) {
	p[0] = 1 << 30 // x
	for n := range len(p) - 1 {
		p[n+1] = multiply(p[n], p[n])
	}
	return p
}()

// shiftOf returns the polynomial by which n bytes multiply the CRC of the bytes before them.
func shiftOf(n int) uint32 {
	shift := uint32(1) << 31 // 1
	for power, bits := 3, n; bits > 0; power, bits = power+1, bits>>1 {
		if bits&1 != 0 {
			shift = multiply(powers[power%len(powers)], shift)
		}
	}
	return shift
}

// crcAfter returns the CRC of a piece and of bytes before it, which have the CRC before.
func (c *compressed) crcAfter(before uint32) uint32 { return multiply(c.shift, before) ^ c.crc }
