package downstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A recorder is an Observer that records its calls.
type recorder struct {
	rejected    []*Rejection
	disconnects int
}

func (r *recorder) Rejected(_ string, rejection *Rejection, _ func(*Change) bool) {
	r.rejected = append(r.rejected, rejection)
}

func (r *recorder) Disconnected() { r.disconnects++ }

// observedView serves one view to every node. It observes clients whose Node has an id.
type observedView struct {
	view     *cache.View
	observer *recorder
}

func (v observedView) Join(n *node, _ Caller) (Group, error) {
	g := Group{View: v.view, Key: "all", Leave: func() {}}
	if n.GetId() != "" {
		g.Observer = v.observer
	}
	return g, nil
}

// An endingClient is a scriptedClient whose stream can fail.
type endingClient struct {
	*scriptedClient
	recvErr, sendErr error // returned by RecvMsg after the last request, and by SendMsg
}

func (c *endingClient) RecvMsg(m any) error {
	err := c.scriptedClient.RecvMsg(m)
	if errors.Is(err, io.EOF) && c.recvErr != nil {
		return c.recvErr
	}
	return err
}

func (c *endingClient) SendMsg(m any) error {
	if c.sendErr != nil {
		return c.sendErr
	}
	return c.scriptedClient.SendMsg(m)
}

const observedNode = "\x0a\x02n1"

// newObserved returns a server of one view with two clusters, and the observer of its clients.
func newObserved(t *testing.T) (*Server, *cache.View, *cache.Writer, *recorder) {
	view, w := cache.New(cache.Config{})
	observer := new(recorder)
	server := check.Must(New(Config{Views: observedView{view, observer}}))
	w.SetConnected(true)
	putClusters(t, w, "1", 0, 1)
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	return server, view, w, observer
}

// putClusters applies an update of clusters.
func putClusters(t *testing.T, w *cache.Writer, version string, names ...int) {
	u := wire.Update{TypeURL: wire.ClusterType}
	for _, i := range names {
		u.Resources = append(u.Resources, benchResource(t, wire.ClusterType, i, version))
	}
	w.Apply(cache.Wildcard, u)
}

// TestObserver checks the NACKs that an observer receives, and the queries about its stream.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, view, w, observer := newObserved(t)
		c, ignored := serveScripted(t, server), serveScripted(t, server)
		if got := slices.Collect(server.Observed()); len(got) > 0 {
			t.Errorf("before their first requests, %d streams are observed, want none", len(got))
		}
		c.request(wire.Request{Node: []byte(observedNode), Subscribe: []string{"*"}})
		ignored.request(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		streams := slices.Collect(server.Observed())
		if len(streams) != 1 || streams[0].Observer != Observer(observer) {
			t.Fatalf("%d streams are observed, want 1", len(streams))
		}
		clusters := func(typeURL string) bool { return typeURL == wire.ClusterType }
		wantAcked := func(when string, want bool, rejected ...string) {
			t.Helper()
			if accepted, got := streams[0].AckStatus(clusters); accepted != want || !slices.Equal(got, rejected) {
				t.Errorf("%s: AckStatus = %v, %q; want %v, %q", when, accepted, got, want, rejected)
			}
		}
		wantAcked("sent", false)
		c.answer("")
		ignored.answer("")
		wantAcked("accepted", true)
		if accepted, _ := streams[0].AckStatus(func(string) bool { return false }); accepted {
			t.Error("AckStatus = true for a client that subscribes to none of the types")
		}

		edition := Change{Key: wire.ClusterType, After: view.Generation().Seq, Names: []string{benchName(1), benchName(2)}}
		putClusters(t, w, "2", 1, 2)
		edition.UpTo = view.Generation().Seq
		synctest.Wait()
		before := Change{Key: wire.ClusterType, UpTo: edition.After, Names: []string{benchName(0), benchName(1)}}
		other := Change{Key: wire.ListenerType, UpTo: edition.UpTo, Names: []string{"x"}}
		wantState := func(when string, want ResourceState, changes ...Change) {
			t.Helper()
			if got, subscribed := streams[0].ChangeState(changes); got != want || !subscribed {
				t.Errorf("%s: ChangeState = %v, %v; want %v, true", when, got, subscribed, want)
			}
		}
		wantState("sent", Sent, edition, before, other)
		wantState("sent", Sent, before, edition)
		wantState("before", Accepted, before, other)
		if _, subscribed := streams[0].ChangeState([]Change{other}); subscribed {
			t.Error("ChangeState = subscribed for a change of listeners")
		}
		c.answer("bad")
		ignored.answer("bad")
		wantState("rejected", Rejected, before, edition)
		wantAcked("rejected", true, wire.ClusterType)
		if len(observer.rejected) != 1 {
			t.Fatalf("%d rejections were observed, want 1", len(observer.rejected))
		}
		r := observer.rejected[0]
		if r.Detail != "bad" || !r.HasChange(edition.After, edition.UpTo) || r.HasChange(0, edition.After) {
			t.Errorf("the rejection is %+v, want only changes of the edition", r)
		}
		if observer.disconnects != 0 {
			t.Error("a disconnect was observed, want none")
		}
	})
}

// TestObserverSeesNACKOfEarlierResponse checks that the NACK of an earlier response refers only to its changes.
func TestObserverSeesNACKOfEarlierResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, view, w, observer := newObserved(t)
		c := serveScripted(t, server)
		c.request(wire.Request{Node: []byte(observedNode), Subscribe: []string{"*"}})
		c.answer("")
		first := view.Generation().Seq
		putClusters(t, w, "2", 1)
		time.Sleep(time.Minute) // longer than AckWait
		second := view.Generation().Seq
		putClusters(t, w, "2", 0)
		time.Sleep(time.Minute)
		c.request(wire.Request{Nonce: "2", Rejected: true})
		if len(observer.rejected) != 1 || !observer.rejected[0].HasChange(first, second) ||
			observer.rejected[0].HasChange(second, view.Generation().Seq) {
			t.Errorf("observed %+v, want the rejection of (%d, %d]", observer.rejected, first, second)
		}
	})
}

// TestObserverSeesDisconnects checks that streams that the relay ends are not observed as disconnects.
func TestObserverSeesDisconnects(t *testing.T) {
	clusters := func(more wire.Request) wire.Request {
		more.Delta, more.TypeURL = true, wire.ClusterType
		return more
	}
	for name, tt := range map[string]struct {
		end  func(server *Server, c *endingClient)
		want int // disconnects
	}{
		"closed": {func(_ *Server, c *endingClient) { close(c.requests) }, 1},
		"connection lost": {func(_ *Server, c *endingClient) {
			c.recvErr = status.Error(codes.Canceled, "context canceled")
			close(c.requests)
		}, 1},
		"deadline of the client": {func(_ *Server, c *endingClient) {
			c.recvErr = status.Error(codes.DeadlineExceeded, "context deadline exceeded")
			close(c.requests)
		}, 1},
		"connection lost on sending": {func(_ *Server, c *endingClient) {
			c.sendErr = status.Error(codes.Unavailable, "transport is closing")
			c.requests <- clusters(wire.Request{Subscribe: []string{benchName(1)}})
		}, 1},
		"response too large": {func(_ *Server, c *endingClient) {
			c.sendErr = status.Error(codes.ResourceExhausted, "trying to send message larger than max")
			c.requests <- clusters(wire.Request{Subscribe: []string{benchName(1)}})
		}, 0},
		"request too large": {func(_ *Server, c *endingClient) {
			c.recvErr = status.Error(codes.ResourceExhausted, "received message larger than max")
			close(c.requests)
		}, 0},
		"request malformed": {func(_ *Server, c *endingClient) { c.requests <- wire.Request{Delta: true} }, 0},
		"drained":           {func(s *Server, _ *endingClient) { s.Drain(0) }, 0},
		"closed in a drain": {func(s *Server, c *endingClient) {
			go s.Drain(time.Hour)
			synctest.Wait()
			close(c.requests)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, _, _, observer := newObserved(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := &endingClient{scriptedClient: &scriptedClient{ctx: ctx, requests: make(chan wire.Request)}}
				done := make(chan error, 1)
				go func() { done <- server.serveStream(c, "", true) }()
				c.request(wire.Request{Node: []byte(observedNode), Subscribe: []string{"*"}})
				c.answer("")
				tt.end(server, c)
				err := <-done
				if observer.disconnects != tt.want {
					t.Errorf("ended with %v: %d disconnects, want %d", err, observer.disconnects, tt.want)
				}
				select {
				case _, open := <-c.requests: // the test has closed them, or the receiver waits
					if open {
						t.Error("a request was not read")
					}
				default:
					close(c.requests)
				}
			})
		})
	}
}

// TestClientDisconnected checks that no stream that the relay ends counts as disconnected.
func TestClientDisconnected(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	for _, reason := range []guard.Ending{
		guard.EndedDrained, guard.EndedAged, guard.EndedStalled, guard.EndedSilent, guard.EndedCold,
		guard.EndedRefused, guard.EndedInvalid, guard.EndedReturn, guard.EndedDenied, guard.EndedChain, guard.EndedOther,
	} {
		for _, code := range []codes.Code{codes.OK, codes.Unavailable, codes.Canceled} {
			s := newTestStream(t, view, Config{})
			if s.clientDisconnected(guard.Ended(reason, code, "")) {
				t.Errorf("clientDisconnected = true for a stream that the relay ended (%v, %v)", reason, code)
			}
		}
	}
	for name, tt := range map[string]struct {
		err  error
		stop func(*stream)
		want bool
	}{
		"closed":           {nil, func(*stream) {}, true},
		"lost":             {guard.Lost(status.Error(codes.Canceled, "")), func(*stream) {}, true},
		"closed when aged": {nil, func(s *stream) { s.scheduledEnd.at = time.Now().Add(-time.Second) }, false},
		"closed before it": {nil, func(s *stream) { s.scheduledEnd.at = time.Now().Add(time.Hour) }, true},
		"lost when draining": {guard.Lost(status.Error(codes.Canceled, "")),
			func(s *stream) { close(s.server.draining) }, false},
		"chain of relays":   {status.Error(codes.FailedPrecondition, ""), func(*stream) {}, false},
		"unavailable relay": {status.Error(codes.Unavailable, "the relay has stopped"), func(*stream) {}, false},
		"over a limit":      {guard.Exceeds(guard.LimitNames, ""), func(*stream) {}, false},
		"denied":            {guard.Denies(guard.DeniedNode, ""), func(*stream) {}, false},
	} {
		s := newTestStream(t, view, Config{})
		tt.stop(s)
		if got := s.clientDisconnected(tt.err); got != tt.want {
			t.Errorf("%s: clientDisconnected = %v, want %v", name, got, tt.want)
		}
	}
}

// TestRefusedConnectionIsNoDisconnect checks that a connection that the relay closed for a limit does not count as
// disconnected.
func TestRefusedConnectionIsNoDisconnect(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	s := newTestStream(t, view, Config{Limits: guard.Limits{MaxUnreadBytes: 1}})
	near, far := net.Pipe()
	conn, info, err := s.server.guard.Credentials(insecure.NewCredentials()).ServerHandshake(tcpConn{near, "10.0.0.1"})
	check.OK(t, err)
	s.account = guard.AccountOf(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}))
	if !s.clientDisconnected(nil) {
		t.Error("clientDisconnected = false for a client that closed its stream")
	}
	go func() { // exits when the connection is closed
		const dataOf1MiB = "\x10\x00\x00\x00\x00\x00\x00\x00\x01"
		_, _ = far.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + dataOf1MiB))
	}()
	if _, err := io.ReadAll(conn); err == nil || s.clientDisconnected(guard.Lost(status.Error(codes.Canceled, ""))) {
		t.Errorf("a connection over a limit ended with %v, want an error and no disconnect", err)
	}
}

// TestObservedDoesNotWait checks that the queries about a stream do not wait for a client that does not read.
func TestObservedDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, view, w, _ := newObserved(t)
		c := serveScripted(t, server)
		c.request(wire.Request{Node: []byte(observedNode), Subscribe: []string{"*"}})
		c.answer("")
		var all []int
		for i := range 100 {
			all = append(all, i)
		}
		after := view.Generation().Seq
		putClusters(t, w, "2", all...) // 100 KiB, so the next response may block
		synctest.Wait()
		c.reads = make(chan struct{})
		time.Sleep(time.Minute)
		putClusters(t, w, "3", all...)
		synctest.Wait()
		for o := range server.Observed() {
			change := Change{Key: wire.ClusterType, After: after, UpTo: view.Generation().Seq}
			if got, _ := o.ChangeState([]Change{change}); got > Sent {
				t.Errorf("ChangeState = %v for a client that does not read, want at most sent", got)
			}
			if accepted, _ := o.AckStatus(func(string) bool { return true }); accepted {
				t.Error("AckStatus = true for a client that does not read")
			}
		}
		close(c.reads)
		synctest.Wait()
	})
}

// TestPollsAreNotObserved checks that a poll with a NACK has no observer.
func TestPollsAreNotObserved(t *testing.T) {
	server, view, w, observer := newObserved(t)
	view.Watch().SubscribeAll(wire.RouteType)
	w.SetPhase(wire.RouteType, cache.Confirmed)
	body := `{"node":{"id":"n1"},"resource_names":["*"],"response_nonce":"1","error_detail":{"code":3,"message":"no"}}`
	if reply := restPoll(t.Context(), server, "0", body); reply.Code != http.StatusOK {
		t.Fatalf("status %d %s, want 200", reply.Code, reply.Body)
	}
	if len(observer.rejected)+observer.disconnects > 0 {
		t.Errorf("observed %d rejections and %d disconnects, want none", len(observer.rejected), observer.disconnects)
	}
}
