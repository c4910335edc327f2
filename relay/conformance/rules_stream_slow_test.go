package conformance_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// A client that does not read holds up nobody, costs nothing that grows with the
// number of updates (D.4, 11), and gets only what is newest when it reads on:
// while its first response is unanswered, and where the relay goes on sending
// until the transport takes no more.
func TestC11_ABlockedClientHoldsUpNobody(t *testing.T) {
	const updates, most = 500, 4 << 20
	for _, tc := range []struct {
		name, ackWait string
		payload       int
		responses     int // most of them that the blocked client may be sent
	}{
		{"unanswered", "10m", 16 << 10, 3}, // the first, one on its way, the newest
		{"full", "100ms", 32 << 10, 12},    // and what the transport took
	} {
		for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
			t.Run(tc.name+" "+v.String(), func(t *testing.T) {
				o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
				put := func(i int) {
					body := relaytest.Opaque(streamAcmeType, "a", bytes.Repeat([]byte{byte(i), byte(i >> 8)}, tc.payload/2))
					o.Set(streamAcmeType, "a", body, fmt.Sprint(i))
				}
				put(0)
				r := startMuted(t, o, "TENDER_ACK_WAIT="+tc.ackWait)
				r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
				conn := r.Conn() // one for both: the blocked stream must not block the connection
				blocked := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
				blocked.Subscribe(streamAcmeType)
				blocked.Recv(t.Context())
				blocked.Pause()
				other := relaytest.NewLightClient(t, conn, relaytest.LightOptions{Variant: v})
				other.Subscribe(streamAcmeType)
				reached := func(i int) {
					put(i)
					want := o.Resources().Digest(streamAcmeType, "a")
					other.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(streamAcmeType, "a") == want })
				}
				for i := 1; i <= updates/10; i++ { // until everything is as large as it gets
					reached(i)
				}
				heap, goroutines := streamHeap(), runtime.NumGoroutine()
				for i := updates/10 + 1; i <= updates; i++ {
					reached(i)
				}
				if grown := streamHeap() - heap; grown > most {
					t.Errorf("%d bytes more are held after %d updates of %d bytes, want at most %d", grown, updates, tc.payload, most)
				}
				if n := runtime.NumGoroutine(); n > goroutines+10 {
					t.Errorf("%d goroutines after %d updates, %d before", n, updates, goroutines)
				}
				blocked.Resume()
				want := o.Resources().Digest(streamAcmeType, "a")
				blocked.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(streamAcmeType, "a") == want })
				if n := len(blocked.Responses()); n > tc.responses {
					t.Errorf("the blocked client was sent %d responses, want %d at most", n, tc.responses)
				}
			})
		}
	}
}

// streamHeap returns how many bytes are in use.
func streamHeap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools hold goes in two steps
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A client that never reads is ended once a send to it has been blocked for
// TENDER_SEND_TIMEOUT, whether few bytes fill the stream or many (B.12).
func TestC27_AClientThatNeverReadsIsEnded(t *testing.T) {
	t.Parallel()
	for _, payload := range []int{500, 20 << 10, 100 << 10} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				put := func(i int) {
					o.Set(streamAcmeType, "a", relaytest.Opaque(streamAcmeType, "a", bytes.Repeat([]byte{byte(i)}, payload)), fmt.Sprint(i))
				}
				put(0)
				r := start(t, o, "TENDER_SEND_TIMEOUT=30s", "TENDER_ACK_WAIT=1s")
				r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
				conn := r.Conn()
				c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v})
				c.Subscribe(streamAcmeType)
				c.Recv(t.Context())
				c.Pause()
				other := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
				other.Subscribe(streamAcmeType)
				for i := range 400<<10/payload + 1 { // more than the transport takes
					put(i + 1)
					expectNames(t, other.Recv(t.Context()), streamAcmeType, "a")
					time.Sleep(1100 * time.Millisecond) // past the ACK wait
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if n := r.Streams(); n != 1 {
					t.Errorf("%d streams are open, want the other client's alone", n)
				}
				if got := r.Stats().Ended; got[guard.EndedStalled] != 1 || got[guard.EndedByClient] != 0 {
					t.Errorf("streams that ended, by why: %v, want one as stalled", got)
				}
				put(-1)
				expectNames(t, other.Recv(t.Context()), streamAcmeType, "a")
				c.Resume()
				expectStatus(t, c, codes.Unavailable)
			})
		})
	}
}

// A client that is slow, and reads within the limit, is not ended.
func TestC27_ASlowClientIsNotEnded(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put := func(i int) {
			o.Set(streamAcmeType, "a", relaytest.Opaque(streamAcmeType, "a", bytes.Repeat([]byte{byte(i)}, 100<<10)), fmt.Sprint(i))
		}
		put(0)
		r := start(t, o, "TENDER_SEND_TIMEOUT=30s", "TENDER_ACK_WAIT=1s")
		r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(streamAcmeType)
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
		want := o.Resources().Digest(streamAcmeType, "a")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(streamAcmeType, "a") == want })
	})
}
