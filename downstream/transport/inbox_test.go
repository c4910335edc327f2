package transport

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A keeper is a Receiver that records requests and how they came.
type keeper struct {
	s        *Stream
	leaves   bool // it leaves each third request that is offered
	offers   int
	left     []byte
	requests chan kept
}

// kept is a request as a Receiver got it.
type kept struct {
	stream  uint32
	content []byte
	offered bool
}

func (k *keeper) Offer(request []byte) bool {
	if k.offers++; k.leaves && k.offers%3 == 0 {
		k.left = bytes.Clone(request)
		return false
	}
	k.keep(request, true)
	return true
}

func (k *keeper) Continue()              { k.keep(k.left, true) }
func (k *keeper) Receive(request []byte) { k.keep(request, false) }
func (k *keeper) Closed(err error)       { k.s.End(err) }

func (k *keeper) keep(request []byte, offered bool) {
	guard.AccountOf(k.s.Context()).Release(wire.Framed(len(request)))
	k.requests <- kept{k.s.id, bytes.Clone(request), offered}
}

// TestRequestsInPieces verifies that requests which come in frames of any size, between those of another stream, arrive
// unchanged and in order, and that the reading goroutine offers all that are not too long, without one goroutine each.
func TestRequestsInPieces(t *testing.T) {
	requests := make(chan kept, 100)
	f := start(t, options{change: func(c *Config) {
		c.Streams[path] = func(s *Stream) Receiver { return &keeper{s: s, leaves: true, requests: requests} }
	}})
	p := ready(t, f.address)
	p.open(1)
	p.open(3)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		want, left := map[uint32][][]byte{}, map[uint32][]byte{}
		for _, id := range []uint32{1, 3} {
			for range 1 + random.IntN(3) {
				request := make([]byte, random.IntN(1<<(4+random.IntN(14)))) // most are short, and some are longer than offeredBytes
				for i := range request {
					request[i] = byte(random.Uint32())
				}
				want[id] = append(want[id], request)
				left[id] = append(append(left[id], prefix(0, len(request))...), request...)
			}
		}
		for len(left[1])+len(left[3]) > 0 {
			id := 1 + 2*uint32(random.IntN(2))
			n := min(len(left[id]), random.IntN(maxFrame+1))
			p.data(id, left[id][:n])
			left[id] = left[id][n:]
		}
		for len(want[1])+len(want[3]) > 0 {
			var got kept
			select {
			case got = <-requests:
			case <-time.After(patience):
				t.Fatalf("round %d: requests %d and %d did not arrive", round, len(want[1]), len(want[3]))
			}
			if !bytes.Equal(got.content, want[got.stream][0]) {
				t.Fatalf("round %d: a request of %d bytes on stream %d differs from the one that was sent", round, len(got.content), got.stream)
			}
			want[got.stream] = want[got.stream][1:]
		}
	}
}

// TestLongACKsAreOffered verifies that an ACK that repeats many names, and so comes in several frames, is handled by the
// reading goroutine, and leaves no memory behind.
func TestLongACKsAreOffered(t *testing.T) {
	requests := make(chan kept, 1)
	var stream *Stream // set before the first request
	f := start(t, options{change: func(c *Config) {
		c.Streams[path] = func(s *Stream) Receiver {
			stream = s
			return &keeper{s: s, requests: requests}
		}
	}})
	p := ready(t, f.address)
	p.open(1)
	for _, tt := range []struct {
		size    int
		offered bool
	}{{100, true}, {5000, true}, {40_000, true}, {offeredBytes, true}, {offeredBytes + 1, false}} {
		message := framed(make([]byte, tt.size))
		for ; len(message) > maxFrame; message = message[maxFrame:] {
			p.data(1, message[:maxFrame])
		}
		p.data(1, message)
		if got := <-requests; got.offered != tt.offered || len(got.content) != tt.size {
			t.Errorf("a request of %d bytes: got %d, offered: %t; want %t", tt.size, len(got.content), got.offered, tt.offered)
		}
	}
	p.ping() // the reading goroutine has handled all frames before
	stream.conn.mu.Lock()
	if in := stream.inbox; in.bytes != nil || in.buffer != nil {
		t.Errorf("the requests left an inbox %+v", in)
	}
	stream.conn.mu.Unlock()
}

// A sink is a Receiver that takes what is offered.
type sink struct{ Receiver }

func (sink) Offer([]byte) bool { return true }

// BenchmarkLongACK measures an ACK of 36 KiB from its frames of 16 KiB to the receiver.
func BenchmarkLongACK(b *testing.B) {
	c := &Conn{server: &Server{cfg: Config{MaxMessageBytes: 1 << 20, Window: 1 << 20}}}
	s := &Stream{conn: c, id: 1, receiver: sink{}}
	ack := framed(make([]byte, 36<<10))
	b.ReportAllocs()
	for b.Loop() {
		for content := range slices.Chunk(ack, maxFrame) {
			check.OK(b, c.deliver(s, content, false))
		}
		c.control = c.control[:0]
	}
	if s.inbox.bytes != nil {
		b.Fatalf("%d bytes were not taken", len(s.inbox.bytes))
	}
}
