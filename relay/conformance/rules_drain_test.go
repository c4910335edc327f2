package conformance_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// When a relay stops, streams of clients that it has served end with OK, even if an ACK is missing. Other streams
// fail without a response, so that clients do not consider themselves served. The transcript
// B8_R134_cold-relays-give-up covers cold streams.
func TestR134_ServedStreamsEndWithOK(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		conn := r.Conn() // one connection for all streams
		client := func() *relaytest.Client { return relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v}) }
		answered, owing, wants, waits, silent := client(), client(), client(), client(), client()
		served := []*relaytest.Client{answered, owing, wants}
		for _, c := range served {
			c.Subscribe(typeCDS)
			expectNames(t, c.Recv(t.Context()), typeCDS, "a")
		}
		answered.Ack(answered.Responses()[0])
		wants.Subscribe(typeRDS, "missing")
		waits.Subscribe(typeRDS, "missing")
		sleep(time.Second)
		began := time.Now()
		r.Stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("stopping took %v, want at most a second", took)
		}
		for _, c := range served {
			if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) || len(c.Responses()) != 1 {
				t.Errorf("%v ended with %v after %d responses, want OK after 1", c, err, len(c.Responses()))
			}
		}
		for _, c := range []*relaytest.Client{waits, silent} {
			if expectStatus(t, c, codes.Unavailable); len(c.Responses()) > 0 {
				t.Errorf("%v got %v, want no response", c, c.Responses())
			}
		}
	})
}

// B.33: a client that does not read delays the end of its own stream and of the relay by at most TENDER_DRAIN.
func TestB33_BlockedClientDelaysTheDrain(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const drain = 20 * time.Second
		put := func(i int) {
			o.Set(acmeType, "a", relaytest.Opaque(acmeType, "a", bytes.Repeat([]byte{byte(i)}, 200<<10)), fmt.Sprint(i))
		}
		put(0)
		r := start(t, o, "TENDER_DRAIN=20s", "TENDER_ACK_WAIT=1s", "TENDER_SEND_TIMEOUT=10m")
		r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
		blocked, other := r.Client(relaytest.ClientOptions{Variant: v}),
			r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		for _, c := range []*relaytest.Client{blocked, other} {
			c.Subscribe(acmeType)
			c.Recv(t.Context())
		}
		blocked.Pause()
		for i := range 5 { // more than the transport buffers
			put(i + 1)
			time.Sleep(2 * time.Second)
		}
		began := time.Now()
		ended := make(chan time.Duration, 1)
		go func() { // returns when the relay has stopped
			_ = other.WaitEnd(t.Context())
			ended <- time.Since(began)
		}()
		r.Stop()
		if took := time.Since(began); took < drain/2 || took > drain+time.Second {
			t.Errorf("stopping took %v, want %v", took, drain)
		}
		if took := <-ended; took > time.Second {
			t.Errorf("the other client's stream ended after %v", took)
		}
		blocked.Resume()
		expectStatus(t, blocked, codes.Unavailable)
	})
}

// A drainEnd is the time and status of a stream's end.
type drainEnd struct {
	after time.Duration
	err   error
}

// drainEnds waits for the ends of the clients' streams, checking every step. Times are relative to began.
func drainEnds(t *testing.T, began time.Time, step time.Duration,
	clients ...*relaytest.Client) map[*relaytest.Client]drainEnd {
	t.Helper()
	ends := make(map[*relaytest.Client]drainEnd)
	for ; len(ends) < len(clients) && time.Since(began) < 3*time.Hour; time.Sleep(step) {
		synctest.Wait()
		for _, c := range clients {
			if _, known := ends[c]; !known && c.Ended() {
				ends[c] = drainEnd{time.Since(began), c.WaitEnd(t.Context())}
			}
		}
	}
	return ends
}

// drainServed returns a client that has the wildcard set with its only cluster a.
func drainServed(t *testing.T, conn *grpc.ClientConn, v relaytest.Variant) *relaytest.Client {
	t.Helper()
	c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
	c.Subscribe(typeCDS)
	expectNames(t, c.Recv(t.Context()), typeCDS, "a")
	return c
}

// B.33: a draining relay accepts and serves clients for a ninth of TENDER_DRAIN. Then it ends streams with OK,
// spread over time, but none with an unanswered response. Streams that were not served end last, with UNAVAILABLE.
func TestB33_DrainEndsStreamsOneByOne(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const clients, accepts, last = 40, 5 * time.Second, 35 * time.Second
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_ACK_WAIT=30s")
		conn := r.Conn()
		unserved := r.Client(relaytest.ClientOptions{Variant: v})
		unserved.Subscribe(typeRDS, "missing")
		var owing, served []*relaytest.Client
		for range clients / 4 {
			c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeCDS)
			c.Recv(t.Context())
			owing = append(owing, c)
		}
		for range clients - 1 {
			served = append(served, drainServed(t, conn, v))
		}
		began := time.Now()
		stopped := make(chan time.Duration, 1)
		go func() { // returns when the relay has stopped
			r.Drain()
			stopped <- time.Since(began)
		}()
		time.Sleep(accepts - time.Second)
		served = append(served, drainServed(t, conn, v))
		const answer = 18 * time.Second
		time.AfterFunc(answer-time.Since(began), func() {
			for _, c := range owing {
				c.Ack(c.Responses()[0])
			}
		})
		const step = 100 * time.Millisecond
		ends := drainEnds(t, began, step, slices.Concat(served, owing, []*relaytest.Client{unserved})...)
		var early, late int
		for _, c := range served {
			e := ends[c]
			if !errors.Is(e.err, io.EOF) || e.after < accepts || e.after > last+step {
				t.Errorf("a stream ended after %v with %v, want OK between %v and %v", e.after, e.err, accepts, last)
			}
			if e.after < 15*time.Second {
				early++
			} else if e.after > 25*time.Second {
				late++
			}
		}
		if early == 0 || late == 0 {
			t.Errorf("of %d streams, %d ended in the first third of the time and %d in the last, want some in each", clients,
				early, late)
		}
		for _, c := range owing {
			if e := ends[c]; !errors.Is(e.err, io.EOF) || e.after < answer || e.after > last+step {
				t.Errorf("a stream with an unanswered response ended after %v with %v, want OK after the ACK, at %v", e.after,
					e.err, answer)
			}
		}
		if e := ends[unserved]; status.Code(e.err) != codes.Unavailable || e.after < last || len(unserved.Responses()) > 0 {
			t.Errorf("a stream that was not served ended with %v after %v, want Unavailable after %v", e.err, e.after, last)
		}
		if took := <-stopped; took < last || took > last+2*time.Second {
			t.Errorf("stopping took %v, want %v", took, last)
		}
		if got := r.Stats().Ended[guard.EndedDrained]; got != clients+clients/4+1 {
			t.Errorf("counted %d drained streams, want %d", got, clients+clients/4+1)
		}
	})
}

// B.33, B.3: a client that was already up to date counts as served. Its streams end with OK, spread over time, in
// a drain and when their connection reaches its age limit.
func TestB33_UpToDateClientsCountAsServed(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const clients = 20
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_CONNECTION_AGE=30m")
		first := r.Conn()
		var returning []*relaytest.Client
		for range clients {
			returning = append(returning, drainServed(t, first, v))
		}
		time.Sleep(time.Minute) // until the set is confirmed
		again := func() (began time.Time) {
			conn := r.Conn()
			for _, c := range returning {
				c.Reconnect(conn)
			}
			return time.Now()
		}
		spread := func(began time.Time, step, least, most time.Duration) {
			t.Helper()
			early, late := most, time.Duration(0)
			for c, e := range drainEnds(t, began, step, returning...) {
				if !errors.Is(e.err, io.EOF) || e.after < least || e.after > most+step || len(c.Responses()) != 1 {
					t.Errorf("a stream ended after %v with %v, and %d responses; want OK between %v and %v, and 1 earlier response",
						e.after, e.err, len(c.Responses()), least, most)
				}
				early, late = min(early, e.after), max(late, e.after)
			}
			if late-early < (most-least)/4 {
				t.Errorf("all streams ended between %v and %v, want them spread", early, late)
			}
		}
		spread(again(), time.Second, 33*time.Minute, 38*time.Minute)
		began := again()
		go r.Drain() // returns when the relay has stopped
		spread(began, 100*time.Millisecond, 5*time.Second, 35*time.Second)
	})
}

// B.33: a draining relay can be stopped at once.
func TestB33_DrainCanBeCutShort(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		for _, after := range []time.Duration{2 * time.Second, 6 * time.Second} { // while it accepts clients, and afterwards
			r := start(t, o, "TENDER_DRAIN=1h")
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(typeCDS)
			c.Recv(t.Context())
			began := time.Now()
			time.AfterFunc(after, r.StopNow)
			r.Drain()
			if took := time.Since(began); took != after {
				t.Errorf("stopping took %v, want %v", took, after)
			}
			if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v, want OK", err)
			}
		}
	})
}

// B.33: when a connection has reached its age limit and accepts no more streams, all its streams end with OK,
// spread over time, including young ones. The next streams use a new connection.
func TestB33_StreamsEndWhenTheirConnectionIsOld(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const least, most = 33 * time.Minute, 38 * time.Minute
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_CONNECTION_AGE=30m")
		conn := r.Conn()
		began := time.Now()
		var clients []*relaytest.Client
		for range 20 {
			clients = append(clients, drainServed(t, conn, v))
		}
		time.Sleep(20 * time.Minute)
		for range 20 {
			clients = append(clients, drainServed(t, conn, v))
		}
		time.Sleep(13*time.Minute - time.Millisecond) // the connection accepts no more streams from an age of 33 minutes
		next := drainServed(t, conn, v)
		const step = time.Second
		ends := drainEnds(t, began, step, append(clients, next)...)
		first, last := most, time.Duration(0)
		for _, c := range clients {
			e := ends[c]
			if !errors.Is(e.err, io.EOF) || e.after < least || e.after > most+step {
				t.Errorf("a stream ended after %v with %v, want OK between %v and %v", e.after, e.err, least, most)
			}
			first, last = min(first, e.after), max(last, e.after)
		}
		if last-first < time.Minute {
			t.Errorf("all streams ended between %v and %v, want them spread", first, last)
		}
		if e := ends[next]; !errors.Is(e.err, io.EOF) || e.after < 27*time.Minute+least {
			t.Errorf("a stream on the new connection ended after %v with %v, want OK after %v", e.after, e.err,
				27*time.Minute+least)
		}
		if got := r.Stats().Ended[guard.EndedAged]; got != 41 {
			t.Errorf("counted %d streams ended for the age of their connection, want 41", got)
		}
	})
}
