package subscription

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestConversation: the lag of a client starts at the oldest response that it has not accepted, regardless of the order
// of its answers.
func TestConversation(t *testing.T) {
	const delta = true
	began := time.Now()
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	// Responses are sent at seconds 1, 2 and 3, with the changes up to 10, 20 and 30.
	for _, tt := range []struct {
		name    string
		answers []string // nonces; "!" marks a NACK
		lacks   int      // second of the oldest unaccepted response; 0: none
		acked   cache.Seq
		state   string
	}{
		{"no answer", nil, 1, 0, "nonce=3 pending unaccepted=2"},
		{"the newest", []string{"3"}, 0, 20, "nonce=3"},
		{"the first", []string{"1"}, 2, 10, "nonce=3 pending unaccepted=1"},
		{"the second answers for the first", []string{"2"}, 3, 20, "nonce=3 pending"},
		{"all", []string{"1", "2", "3"}, 0, 20, "nonce=3"},
		{"the first rejected", []string{"!1"}, 1, 0, "nonce=3 pending unaccepted=2 rejected=1"},
		{"the first rejected, the newest accepted", []string{"!1", "3"}, 0, 20, "nonce=3 rejected=1"},
		{"the second rejected", []string{"!2"}, 1, 0, "nonce=3 pending unaccepted=1 rejected=2"},
		{"the newest rejected", []string{"!3"}, 1, 0, "nonce=3 rejected=3"},
		{"of another stream", []string{"99"}, 1, 0, "nonce=3 pending unaccepted=2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view, _ := cache.New(cache.Config{})
			s := newClient(view, wire.ListenerType, delta)
			s.started = true
			for i := 1; i <= 3; i++ {
				r := Response{Body: wire.NewDeltaBody(wire.ListenerType, ""), After: cache.Seq(10 * (i - 1)), before: cache.Seq(10 * (i - 1)), from: view.Generation()}
				s.RecordSent(&r, fmt.Sprint(i), view, uint64(i), at(i))
			}
			for _, nonce := range tt.answers {
				rejected := nonce[0] == '!'
				if rejected {
					nonce = nonce[1:]
				}
				s.ApplyRequest(&wire.Request{Delta: delta, Nonce: nonce, Rejected: rejected}, at(9))
			}
			var want Moment
			if tt.lacks > 0 {
				want = MomentOf(at(tt.lacks))
			}
			if got := s.unacceptedSince(); got != want {
				t.Errorf("answers %q: lag since %v, want %v", tt.answers, got.Time(), want.Time())
			}
			if got := s.ackedUpTo(); got != tt.acked {
				t.Errorf("answers %q: accepted up to %d, want %d", tt.answers, got, tt.acked)
			}
			if got := s.Conversation.String(); got != tt.state {
				t.Errorf("answers %q: %s, want %s", tt.answers, got, tt.state)
			}
		})
	}
}

// TestH10_UnansweredResponsesAreBounded: a limited number of responses is recorded for a client that answers none. Its
// lag is that of the oldest response, and an ACK of the newest accepts all.
func TestH10_UnansweredResponsesAreBounded(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	s := newClient(view, wire.ListenerType, true)
	s.started = true
	began := time.Now()
	const responses = 3 * maxEarlierResponses
	for i := 1; i <= responses; i++ {
		r := Response{Body: wire.NewDeltaBody(wire.ListenerType, ""), After: cache.Seq(i - 1), before: cache.Seq(i - 1), from: view.Generation()}
		s.RecordSent(&r, fmt.Sprint(i), view, uint64(i), began.Add(time.Duration(i)*time.Second))
	}
	const want = "nonce=48 pending unaccepted=16"
	if got := s.Conversation.String(); got != want || s.unacceptedSince() != MomentOf(began.Add(time.Second)) || s.ackedUpTo() != 0 {
		t.Errorf("without an answer: %s, lag since %v, accepted up to %d; want %s, since the first response, and 0",
			got, s.unacceptedSince().Time(), s.ackedUpTo(), want)
	}
	s.ApplyRequest(&wire.Request{Delta: true, Nonce: "15"}, time.Now()) // the later ones are merged
	if got := s.unacceptedSince(); got != MomentOf(began.Add(16*time.Second)) || s.ackedUpTo() != 15 {
		t.Errorf("after an ACK of the 15th: lag since %v, accepted up to %d; want since the 16th, and 15", got.Time(), s.ackedUpTo())
	}
	s.ApplyRequest(&wire.Request{Delta: true, Nonce: fmt.Sprint(responses)}, time.Now())
	if got := s.Conversation.String(); got != "nonce=48" || s.unacceptedSince() != 0 {
		t.Errorf("after an ACK of the newest: %s, lag since %v, want nothing unanswered", got, s.unacceptedSince().Time())
	}
}

// TestRejectionsAreBounded: the number of remembered rejections of a client is bounded. If each response holds the complete
// set, only the newest is remembered.
func TestRejectionsAreBounded(t *testing.T) {
	for whole, want := range map[bool]int{false: maxRejections - 1, true: 0} {
		var r *Rejection
		for i := range 2 * maxRejections {
			r = newRejection(&wire.Request{Nonce: "1", ErrorMessage: "no"}, r, whole, span{cache.Seq(i), cache.Seq(i + 1)}, "", time.Now())
		}
		if len(r.earlier) != want {
			t.Fatalf("complete sets %v: %d rejections before the newest, want %d", whole, len(r.earlier), want)
		}
		for _, e := range r.earlier {
			if len(e.earlier) > 0 {
				t.Errorf("an earlier rejection keeps %d of its own", len(e.earlier))
			}
		}
	}
}
