package wire

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// B.35: a client is charged for the bytes of its request, so the buffer of a large one has no more.
func TestB35_BuffersOfRequests(t *testing.T) {
	buffers := requestBuffers{mem.DefaultBufferPool()}
	for _, n := range []int{pooledRequest + 1, 100_000, 1 << 20} {
		b := buffers.Get(n)
		if len(*b) != n || cap(*b) > n+n/8 {
			t.Errorf("a buffer for %d bytes has %d, and room for %d", n, len(*b), cap(*b))
		}
		buffers.Put(b)
	}
	if b := buffers.Get(100); len(*b) != 100 || cap(*b) > 4<<10 {
		t.Errorf("a buffer for 100 bytes has %d, and room for %d", len(*b), cap(*b))
	}
}
