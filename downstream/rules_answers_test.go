package downstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A slowClientTest has a Delta client that subscribed to all clusters, and answers when the test calls accept or
// refuse.
type slowClientTest struct {
	t      *testing.T
	server *Server
	w      *cache.Writer
	c      *scriptedClient
	number uint64
}

func newSlowClientTest(t *testing.T) *slowClientTest {
	view, w := cache.New(cache.Config{})
	server := check.Must(New(Config{Views: oneView{view}, AckWait: 5 * time.Second}))
	s := &slowClientTest{t: t, server: server, w: w}
	w.SetConnected(true)
	s.put("1", 0, 1, 2)
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	s.c = serveScripted(t, server)
	s.number = slices.Collect(server.Clients())[0].Number
	s.c.request(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
	s.c.answer("")
	return s
}

// put changes clusters, and waits until the client was sent the changes that are due.
func (s *slowClientTest) put(version string, i ...int) {
	u := wire.Update{TypeURL: wire.ClusterType, SystemVersion: version}
	for _, i := range i {
		u.Resources = append(u.Resources, benchResource(s.t, wire.ClusterType, i, version))
	}
	s.w.Apply(cache.Wildcard, u)
	synctest.Wait()
}

// accept sends the ACK of a response: 0 is the newest, 1 the one before, and so on.
func (s *slowClientTest) accept(back int) {
	nonces := s.c.sent()
	s.c.request(wire.Request{Nonce: nonces[len(nonces)-1-back]})
}

// refuse sends the NACK of a response, with the same index as accept.
func (s *slowClientTest) refuse(back int) {
	nonces := s.c.sent()
	s.c.request(wire.Request{Nonce: nonces[len(nonces)-1-back], Refused: true, ErrorCode: int32(codes.InvalidArgument),
		ErrorMessage: "no"})
}

// expect checks the lag, the accepted version, and the states of clusters 0, 1 and 2.
func (s *slowClientTest) expect(when string, lag time.Duration, accepted string, want ...string) TypeStatus {
	s.t.Helper()
	status, open := s.server.Client(s.number)
	if !open {
		s.t.Fatalf("%s, the stream is closed", when)
	}
	got := status.Types[0]
	if got.Lag != lag || got.Accepted != accepted {
		s.t.Errorf("%s, the lag is %v and %q is accepted, want %v and %q", when, got.Lag, got.Accepted, lag, accepted)
	}
	all := resourceStates(s.server, s.number)
	if diff := cmp.Diff(want, []string{all[benchName(0)], all[benchName(1)], all[benchName(2)]}); diff != "" {
		s.t.Errorf("%s, resource states (-want +got):\n%s", when, diff)
	}
	return got
}

// H10: an ACK accepts the response of its nonce and those before it, even if newer responses were sent since.
func TestH10_ACKAcceptsTheResponseOfItsNonce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowClientTest(t)
		s.expect("at first", 0, "1", "accepted", "accepted", "accepted")
		for i := range 3 {
			s.put(fmt.Sprint(2+i), i)
			time.Sleep(6 * time.Second) // longer than AckWait
		}
		s.expect("with three unanswered responses", 18*time.Second, "1", "sent", "sent", "sent")
		s.accept(2)
		s.expect("after the ACK of the oldest", 12*time.Second, "2", "accepted", "sent", "sent")
		s.accept(2)
		s.expect("after the same ACK once more", 12*time.Second, "2", "accepted", "sent", "sent")
		time.Sleep(time.Second)
		s.accept(1)
		got := s.expect("after the ACK of the next", 7*time.Second, "3", "accepted", "accepted", "sent")
		if !got.AcceptedAt.Equal(time.Now()) || !got.Pending {
			t.Errorf("after the ACK of the next, %+v, want accepted now, and the newest pending", got)
		}
		s.accept(0)
		s.expect("after all", 0, "4", "accepted", "accepted", "accepted")

		for i := range 3 {
			s.put(fmt.Sprint(5+i), i)
			time.Sleep(6 * time.Second)
		}
		s.accept(1) // the client must have read the response before it
		s.expect("after an ACK that skipped a response", 6*time.Second, "6", "accepted", "accepted", "sent")
		s.accept(0)
		s.expect("after all again", 0, "7", "accepted", "accepted", "accepted")
	})
}

// H10: a NACK rejects the response of its nonce, and no later response.
func TestH10_NACKRejectsTheResponseOfItsNonce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowClientTest(t)
		for i := range 3 {
			s.put(fmt.Sprint(2+i), i)
			time.Sleep(6 * time.Second)
		}
		s.accept(2)
		s.refuse(1)
		got := s.expect("after a NACK of the second", 12*time.Second, "2", "accepted", "refused", "sent")
		if got.Refusal == nil || got.Refusal.Version != "3" {
			t.Errorf("the refusal is %+v, want one of version 3", got.Refusal)
		}
		s.accept(0)
		s.expect("after the ACK of the newest", 0, "4", "accepted", "refused", "accepted")
		s.put("5", 1)
		s.accept(0)
		s.expect("after the refused resource has changed", 0, "5", "accepted", "accepted", "accepted")
	})
}

// H10: a client answers after 12 seconds, while a resource changes each second. Its lag is limited by these 12 seconds
// and AckWait.
func TestH10_LagOfSlowClientIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowClientTest(t)
		const slow = 12
		answered := len(s.c.sent())
		sentAt := make(map[int]int) // second in which a response was sent
		var most time.Duration
		for second := range 3600 {
			s.put(fmt.Sprint(second), second%3)
			for n := answered; n < len(s.c.sent()); n++ {
				if _, seen := sentAt[n]; !seen {
					sentAt[n] = second
				}
			}
			for answered < len(s.c.sent()) && second-sentAt[answered] >= slow {
				s.accept(len(s.c.sent()) - 1 - answered)
				answered++
			}
			time.Sleep(time.Second)
			status, _ := s.server.Client(s.number)
			most = max(most, status.Types[0].Lag)
		}
		if want := (slow + 6) * time.Second; most > want {
			t.Errorf("the largest lag is %v, want at most %v", most, want)
		}
		if status, _ := s.server.Client(s.number); status.Unread > 100_000 {
			t.Errorf("%d bytes are unread, want at most 100000", status.Unread)
		}
	})
}

// H10: a limited number of responses is recorded for a client that answers none. Its lag is that of the oldest
// response.
func TestH10_UnansweredResponsesAreBounded(t *testing.T) {
	const maxUnaccepted = 16 // as in package subscription
	synctest.Test(t, func(t *testing.T) {
		s := newSlowClientTest(t)
		began := time.Now()
		for i := range 3 * maxUnaccepted {
			s.put(fmt.Sprint(2+i), i%3)
			time.Sleep(6 * time.Second)
		}
		s.expect("without an answer", time.Since(began), "1", "sent", "sent", "sent")
		status, _ := s.server.Client(s.number)
		if state, want := status.Types[0].State, fmt.Sprintf("unaccepted=%d", maxUnaccepted); !strings.Contains(state, want) {
			t.Fatalf("the state is %q, want %s", state, want)
		}
		s.accept(0)
		s.expect("after an ACK of the newest", 0, fmt.Sprint(1+3*maxUnaccepted), "accepted", "accepted", "accepted")
	})
}
