package relay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
)

// A relay that stops ends the streams of clients that it has served with OK, which to
// them is no error, whether they have answered or wait for more. The streams of others
// end as a failure, without a response, or they would take themselves for served. (Cold
// streams, to which the same is done, are those of TestB8_R134_ColdRelayWithoutOriginGivesUp.)
func TestR134_DrainIsNoErrorToWhoWasServed(t *testing.T) {
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, true)
		conn := r.conn() // one for all, so that none of them ends it
		client := func() *relaytest.Client { return relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v}) }
		answered, owing, wants, waits, silent := client(), client(), client(), client(), client()
		served := []*relaytest.Client{answered, owing, wants}
		for _, c := range served {
			c.Subscribe(streamCDS)
			streamHas(t, c.Recv(t.Context()), streamCDS, "a")
		}
		answered.Ack(answered.Responses()[0])
		wants.Subscribe(streamRDS, "missing")
		waits.Subscribe(streamRDS, "missing")
		time.Sleep(time.Second)
		synctest.Wait()
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v to stop", took)
		}
		for _, c := range served {
			if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) || len(c.Responses()) != 1 {
				t.Errorf("%v ended with %v after %d responses, want OK after one", c, err, len(c.Responses()))
			}
		}
		for _, c := range []*relaytest.Client{waits, silent} {
			if streamEnd(t, c, codes.Unavailable); len(c.Responses()) > 0 {
				t.Errorf("%v got %v, want nothing", c, c.Responses())
			}
		}
	})
}

// B.33: a client that does not read delays the end by TENDER_DRAIN at the most, and
// only its own.
func TestB33_ABlockedClientDelaysTheEndNoLonger(t *testing.T) {
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const drain = 20 * time.Second
		put := func(i int) {
			o.Set(streamAcmeType, "a", relaytest.Opaque(streamAcmeType, "a", bytes.Repeat([]byte{byte(i)}, 200<<10)), fmt.Sprint(i))
		}
		put(0)
		r := start(t, o, true, "TENDER_DRAIN=20s", "TENDER_ACK_WAIT=1s", "TENDER_SEND_STALL=10m")
		r.dial = append(r.dial, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
		blocked, other := r.client(relaytest.ClientOptions{Variant: v}), r.client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		for _, c := range []*relaytest.Client{blocked, other} {
			c.Subscribe(streamAcmeType)
			c.Recv(t.Context())
		}
		blocked.Pause()
		for i := range 5 { // more than the transport takes
			put(i + 1)
			time.Sleep(2 * time.Second)
		}
		began := time.Now()
		ended := make(chan time.Duration, 1)
		go func() { // ends with the relay
			_ = other.WaitEnd(t.Context())
			ended <- time.Since(began)
		}()
		r.stop()
		if took := time.Since(began); took < drain/2 || took > drain+time.Second {
			t.Errorf("it took %v to stop, want %v", took, drain)
		}
		if took := <-ended; took > time.Second {
			t.Errorf("the other client's stream went on for %v", took)
		}
		blocked.Resume()
		streamEnd(t, blocked, codes.Unavailable)
	})
}
