package conformance_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// A client that does not read has no effect on other clients, and its cost does not grow with the number of
// updates (D.4, 11). When it reads again, it gets only the newest state. This holds while its first response is
// unacknowledged, and when the transport's buffers are full.
func TestC11_BlockedClientDoesNotDelayOthers(t *testing.T) {
	const updates, most = 150, 1 << 20
	for _, tc := range []struct {
		name, ackWait string
		pause         time.Duration // after each update
		payload       int
		responses     int // most responses for the blocked client
	}{
		{"unanswered", "10m", 0, 16 << 10, 3},                   // the first one, one in flight, and the newest
		{"full", "100ms", 110 * time.Millisecond, 32 << 10, 12}, // and the ones in the transport's buffers
	} {
		for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
			t.Run(tc.name+" "+v.String(), func(t *testing.T) {
				originBubble(t, func(t *testing.T, o *relaytest.Origin) {
					put := func(i int) {
						body := relaytest.Opaque(acmeType, "a", bytes.Repeat([]byte{byte(i), byte(i >> 8)}, tc.payload/2))
						o.Set(acmeType, "a", body, fmt.Sprint(i))
					}
					put(0)
					r := startMuted(t, o, "TENDER_ACK_WAIT="+tc.ackWait)
					r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10),
						grpc.WithStaticConnWindowSize(1<<20))
					conn := r.Conn() // one for both clients: the blocked stream must not block the connection
					blocked := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
					blocked.Subscribe(acmeType)
					blocked.Recv(t.Context())
					blocked.Pause()
					other := relaytest.NewLightClient(t, conn, relaytest.LightOptions{Variant: v})
					other.Subscribe(acmeType)
					reached := func(i int) {
						put(i)
						want := o.Resources().Digest(acmeType, "a")
						other.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(acmeType, "a") == want })
						sleep(tc.pause)
					}
					for i := 1; i <= updates/10; i++ { // until buffers have their final size
						reached(i)
					}
					heap, goroutines := heapBytes(), runtime.NumGoroutine()
					for i := updates/10 + 1; i <= updates; i++ {
						reached(i)
					}
					if grown := heapBytes() - heap; grown > most {
						t.Errorf("memory grew by %d bytes after %d updates of %d bytes, want at most %d", grown, updates, tc.payload,
							most)
					}
					if n := runtime.NumGoroutine(); n > goroutines+10 {
						t.Errorf("got %d goroutines after %d updates, want %d as before", n, updates, goroutines)
					}
					blocked.Resume()
					want := o.Resources().Digest(acmeType, "a")
					blocked.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(acmeType, "a") == want })
					if n := len(blocked.Responses()); n > tc.responses {
						t.Errorf("the blocked client got %d responses, want at most %d", n, tc.responses)
					}
				})
			})
		}
	}
}

// heapBytes returns the size of live heap objects in bytes.
func heapBytes() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // sync.Pool needs two collections
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A stream ends once a send has been blocked for TENDER_SEND_TIMEOUT, with small and with large responses (B.12).
func TestC27_AClientThatNeverReadsIsEnded(t *testing.T) {
	t.Parallel()
	for _, payload := range []int{2 << 10, 20 << 10, 100 << 10} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				put := func(i int) {
					o.Set(acmeType, "a", relaytest.Opaque(acmeType, "a", bytes.Repeat([]byte{byte(i)}, payload)), fmt.Sprint(i))
				}
				put(0)
				r := start(t, o, "TENDER_SEND_TIMEOUT=30s", "TENDER_ACK_WAIT=1s")
				r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
				conn := r.Conn()
				c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v})
				c.Subscribe(acmeType)
				c.Recv(t.Context())
				c.Pause()
				other := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
				other.Subscribe(acmeType)
				for i := range 400<<10/payload + 1 { // more than the transport buffers
					put(i + 1)
					expectNames(t, other.Recv(t.Context()), acmeType, "a")
					time.Sleep(1100 * time.Millisecond) // longer than the ACK timeout
				}
				sleep(30 * time.Second)
				if n := r.Streams(); n != 1 {
					t.Errorf("%d streams are open, want 1, the other client's", n)
				}
				if got := r.Stats().Ended; got[guard.EndedStalled] != 1 || got[guard.EndedByClient] != 0 {
					t.Errorf("got the ended streams %v, want one stalled", got)
				}
				put(-1)
				expectNames(t, other.Recv(t.Context()), acmeType, "a")
				c.Resume()
				expectStatus(t, c, codes.Unavailable)
			})
		})
	}
}

// A slow client that reads within the limit keeps its stream.
func TestC27_ASlowClientIsNotEnded(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put := func(i int) {
			o.Set(acmeType, "a", relaytest.Opaque(acmeType, "a", bytes.Repeat([]byte{byte(i)}, 100<<10)), fmt.Sprint(i))
		}
		put(0)
		r := start(t, o, "TENDER_SEND_TIMEOUT=30s", "TENDER_ACK_WAIT=1s")
		r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(acmeType)
		c.Recv(t.Context())
		for i := range 10 {
			c.Pause()
			for range 3 {
				put(3*i + 1)
				time.Sleep(8 * time.Second)
			}
			c.Resume()
			time.Sleep(time.Second)
		}
		put(100)
		want := o.Resources().Digest(acmeType, "a")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(acmeType, "a") == want })
	})
}
