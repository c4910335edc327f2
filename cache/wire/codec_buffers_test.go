package wire

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// TestB35_BuffersOfRequests: the buffer of a large request has exactly the size that the client is charged for.
func TestB35_BuffersOfRequests(t *testing.T) {
	buffers := requestBuffers{mem.DefaultBufferPool()}
	for _, n := range []int{pooledRequest + 1, 100_000, 1 << 20} {
		b := buffers.Get(n)
		if len(*b) != n || cap(*b) > n+n/8 {
			t.Errorf("buffer for %d bytes: length %d, capacity %d", n, len(*b), cap(*b))
		}
		buffers.Put(b)
	}
	if b := buffers.Get(100); len(*b) != 100 || cap(*b) > 4<<10 {
		t.Errorf("buffer for 100 bytes: length %d, capacity %d", len(*b), cap(*b))
	}
}
