package wire_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// words returns n bytes that compress well, and noise n bytes that do not.
func words(n int) []byte { return bytes.Repeat([]byte("outbound|80||reviews.shop "), n/26+1)[:n] }

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b) // never fails
	return b
}

// sendGzip returns the compressed response.
func sendGzip(t testing.TB, r *wire.Response) []byte {
	t.Helper()
	return r.AppendGzip(nil).Materialize()
}

// gunzip returns the content of exactly one gzip member, as C-core reads it: nothing may follow.
func gunzip(t testing.TB, b []byte) []byte {
	t.Helper()
	in := bytes.NewReader(b)
	z := check.Must(gzip.NewReader(in))
	z.Multistream(false)
	out := check.Must(io.ReadAll(z)) // verifies the CRC and the size
	if in.Len() > 0 {
		t.Errorf("%d bytes follow the first gzip member of %d", in.Len(), len(b))
	}
	return out
}

// bodiesOf returns bodies of both variants with resources that have some values, and with further pieces.
func bodiesOf(t testing.TB, values [][]byte) map[string]*wire.Body {
	t.Helper()
	bodies := map[string]*wire.Body{
		"delta": wire.NewDeltaBody(acme, "7"), "sotw": wire.NewSotWBody(acme, "7", wire.Unwrapped),
		"wrapped": wire.NewSotWBody(acme, "7", wire.WrapAll), "delta with TTL": wire.NewDeltaBody(acme, "7"),
	}
	for i, value := range values {
		r := check.Must(wire.NewResource(acme, fmt.Sprintf("resource-%04d", i), "1", value))
		for name, b := range bodies {
			ttl := time.Duration(0)
			if name == "delta with TTL" {
				ttl = time.Minute
			}
			b.Add(r, ttl)
			if i%2 == 0 && name == "delta" {
				b.Remove(fmt.Sprintf("gone-%d", i))
			}
		}
	}
	return bodies
}

// B.32: a compressed response has the bytes of the response, in one gzip member.
func TestB32_CompressedResponseHasTheSameBytes(t *testing.T) {
	const mib = 1 << 20
	for name, values := range map[string][][]byte{
		"none": nil, "small": {words(10), noise(20)}, "one large": {words(5000)}, "one that grows": {noise(5000)},
		"large and small": {words(600), words(20), words(700), noise(900), words(mib), noise(70_000), words(3)},
		"many small":      slicesOf(1000, func(i int) []byte { return words(i % 500) }),
	} {
		for form, body := range bodiesOf(t, values) {
			for _, joined := range []bool{false, true} {
				if joined {
					body.Join()
				}
				for _, secret := range []bool{false, true} {
					r := wire.Response{Body: body, Nonce: "0123456789abcdef", ControlPlane: "tender-1"}
					want := send(t, &r)
					r.Secret = secret
					sent := sendGzip(t, &r)
					if got := gunzip(t, sent); !bytes.Equal(got, want) {
						t.Errorf("%s, %s, joined %t, secret %t: got other bytes than without compression", name, form, joined, secret)
					}
					if int(r.Saved) != len(want)-len(sent) {
						t.Errorf("%s, %s, joined %t: Saved is %d of %d bytes, of which %d were sent", name, form, joined, r.Saved,
							len(want), len(sent))
					}
					const blocks = 128 // bytes for the header, the trailer, and the lengths of 20 blocks
					if longer := len(sent) - len(want); longer > blocks {
						t.Errorf("%s, %s, joined %t, secret %t: compression adds %d bytes", name, form, joined, secret, longer)
					}
				}
			}
		}
	}
}

func slicesOf(n int, f func(int) []byte) (all [][]byte) {
	for i := range n {
		all = append(all, f(i))
	}
	return all
}

// B.32: compression makes large resources and shared sets of small ones smaller, unless they are secret.
func TestB32_CompressionMakesResponsesSmaller(t *testing.T) {
	share := func(body *wire.Body, secret bool) float64 {
		r := wire.Response{Body: body, Nonce: "1", Secret: secret}
		return float64(len(sendGzip(t, &r))) / float64(body.Size())
	}
	large := bodiesOf(t, [][]byte{words(5000)})
	small := bodiesOf(t, slicesOf(100, func(int) []byte { return words(100) }))
	for _, form := range []string{"delta", "sotw"} {
		if got := share(large[form], false); got > 0.2 {
			t.Errorf("%s: a large resource is sent with %.2f of its bytes, want less than 0.2", form, got)
		}
		if got := share(large[form], true); got < 1 {
			t.Errorf("%s: a secret is sent with %.2f of its bytes, want all", form, got)
		}
		if got := share(small[form], false); got < 1 {
			t.Errorf("%s: small resources of one client are sent with %.2f of their bytes, want all", form, got)
		}
		if got := share(small[form].Join(), false); got > 0.2 {
			t.Errorf("%s: a shared set is sent with %.2f of its bytes, want less than 0.2", form, got)
		}
	}
}

// largest returns the longest piece of an encoded response.
func largest(pieces mem.BufferSlice) (b []byte) {
	for _, piece := range pieces {
		if piece.Len() > len(b) {
			b = piece.ReadOnlyData()
		}
	}
	return b
}

// B.32: a resource and a shared body are compressed once, for all streams and all responses with them.
func TestB32_PiecesAreCompressedOnce(t *testing.T) {
	r := check.Must(wire.NewResource(acme, "a", "1", words(100_000)))
	own := func(joined bool) func() *wire.Body {
		shared := wire.NewDeltaBody(acme, "7")
		shared.Add(r, 0)
		shared.Join()
		return func() *wire.Body {
			if joined {
				return shared
			}
			body := wire.NewDeltaBody(acme, "8") // as of a stream with its own body
			body.Add(r, 0)
			return body
		}
	}
	for name, body := range map[string]func() *wire.Body{"resource": own(false), "shared body": own(true)} {
		pieces := make([][]byte, 16)
		var wg sync.WaitGroup
		for i := range pieces { // joined by Wait below
			wg.Go(func() {
				out := check.Must(wire.Codec{}.Marshal(&wire.Response{Body: body(), Nonce: fmt.Sprint(i), Gzip: true}))
				pieces[i] = largest(out)
			})
		}
		wg.Wait()
		for i, p := range pieces {
			if len(p) == 0 || len(p) > 5000 || &p[0] != &pieces[0][0] {
				t.Errorf("%s: response %d has a compressed piece of its own of %d bytes", name, i, len(p))
			}
		}
	}
}

// gRPC passes on what the codec has compressed, in pieces that its pools have buffers for, and compresses all other messages
// of the process.
func TestGzipCompressorPassesCompressedResponsesOn(t *testing.T) {
	if !wire.Compresses() {
		t.Fatal("the compressor is not registered")
	}
	compress := func(in mem.BufferSlice) (out mem.BufferSlice) {
		w := check.Must(encoding.GetCompressor("gzip").Compress(mem.NewWriter(&out, mem.DefaultBufferPool())))
		for _, b := range in {
			check.Must(w.Write(b.ReadOnlyData()))
		}
		check.OK(t, w.Close())
		return out
	}
	body := wire.NewDeltaBody(acme, "7")
	body.Add(check.Must(wire.NewResource(acme, "a", "1", noise(100_000))), 0)
	encoded := check.Must(wire.Codec{}.Marshal(&wire.Response{Body: body, Nonce: "1", Gzip: true}))
	passed := compress(encoded)
	if !bytes.Equal(passed.Materialize(), encoded.Materialize()[1:]) {
		t.Error("a compressed response was changed")
	}
	if n := len(largest(passed)); n > 16<<10 {
		t.Errorf("a buffer of %d bytes, want at most 16 KiB", n)
	}
	looksAlike := append([]byte{0}, words(100)...)
	for name, in := range map[string]mem.BufferSlice{
		"another message": {mem.SliceBuffer(words(5000)), mem.SliceBuffer(words(10))}, "an empty message": nil,
		"a message like a response": {mem.SliceBuffer(looksAlike[:1]), mem.SliceBuffer(looksAlike[1:])},
	} {
		if got := gunzip(t, compress(in).Materialize()); !bytes.Equal(got, in.Materialize()) {
			t.Errorf("%s: got other bytes after compression: %.40q, want %.40q", name, got, in.Materialize())
		}
	}
}

// FuzzGzip compares compressed responses of random resources with uncompressed ones.
func FuzzGzip(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0, 255, 100}, true)
	f.Fuzz(func(t *testing.T, script []byte, joined bool) {
		var values [][]byte
		for ; len(script) >= 3; script = script[3:] {
			n := int(binary.LittleEndian.Uint16(script))
			values = append(values, append(noise(n%3000), words(n*int(script[2]%4))...))
		}
		for form, body := range bodiesOf(t, values) {
			if joined {
				body.Join()
			}
			want := send(t, &wire.Response{Body: body, Nonce: "1"})
			if got := gunzip(t, sendGzip(t, &wire.Response{Body: body, Nonce: "1"})); !bytes.Equal(got, want) {
				t.Errorf("%s: got other bytes than without compression", form)
			}
		}
	})
}
