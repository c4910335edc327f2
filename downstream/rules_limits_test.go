package downstream

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// An eagerClient is a Delta stream without a transport. Its client sends the requests that next returns as fast as they
// are read, and ends with ctx.
type eagerClient struct {
	grpcCall
	ctx  context.Context
	next func() (wire.Request, error)
	sent chan *wire.Response
}

func (c *eagerClient) Context() context.Context { return c.ctx }

func (c *eagerClient) SendMsg(m any) error {
	c.sent <- m.(*wire.Response)
	return nil
}

func (c *eagerClient) RecvMsg(m any) (err error) {
	*m.(*wire.Request), err = c.next()
	return err
}

// B.35: requests of a stream are read at a limited rate, after a burst. Later requests are delayed, and none is lost.
func TestB35_RequestsAreRateLimited(t *testing.T) {
	const perSecond, requests = 5, 200
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}, MaxRequestRate: perSecond, ColdWait: time.Hour}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var read atomic.Int64
		c := &eagerClient{ctx: ctx, next: func() (wire.Request, error) {
			if read.Load() == requests {
				<-ctx.Done()
				return wire.Request{}, ctx.Err()
			}
			read.Add(1)
			return wire.Request{Delta: true, TypeURL: wire.EndpointType, Node: []byte{},
				Subscribe: []string{fmt.Sprint(read.Load())}}, nil
		}}
		go func() { _ = server.serveStream(c, "", true) }()
		synctest.Wait()
		if burst := int64(10*perSecond + 1); read.Load() != burst { // with one over the limit
			t.Errorf("%d requests were read immediately, want %d", read.Load(), burst)
		}
		before := read.Load()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		check.Equal(t, "requests read in 10s", read.Load()-before, 10*perSecond)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := server.Stats().Throttled; read.Load() != requests || got != requests-10*perSecond {
			t.Errorf("%d requests were read, %d delayed, want %d, %d", read.Load(), got, requests, requests-10*perSecond)
		}
		cancel()
		time.Sleep(time.Second)
	})
}

// B.35: answers to responses do not count towards the rate limit, because the relay caused them. A repeated answer
// does.
func TestB35_AnswersAreNotRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}, MaxRequestRate: 1}))
		w.SetConnected(true)
		put := func(version int) {
			changed := benchResource(t, wire.EndpointType, 0, fmt.Sprint(version))
			w.Apply(cache.ByName, wire.Update{TypeURL: wire.EndpointType, Resources: []*wire.Resource{changed}})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		requests := make(chan wire.Request)
		c := &eagerClient{ctx: ctx, sent: make(chan *wire.Response, 1), next: func() (wire.Request, error) {
			select {
			case r := <-requests:
				return r, nil
			case <-ctx.Done():
				return wire.Request{}, ctx.Err()
			}
		}}
		go func() { _ = server.serveStream(c, "", true) }()
		requests <- wire.Request{Delta: true, TypeURL: wire.EndpointType, Node: []byte{}, Subscribe: []string{benchName(0)}}
		synctest.Wait()
		w.TakeDemand()
		put(0)
		began := time.Now()
		var last wire.Request
		for i := range 100 {
			last = wire.Request{Delta: true, TypeURL: wire.EndpointType, Nonce: (<-c.sent).Nonce}
			requests <- last
			synctest.Wait()
			put(i + 1)
		}
		<-c.sent
		check.Equal(t, "time to read 100 answers", time.Since(began), 0)
		for range 20 {
			requests <- last
		}
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("20 repeated answers were read within %v, want at least 10s", took)
		}
		cancel()
		time.Sleep(time.Minute)
	})
}
