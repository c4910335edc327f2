package conformance_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// A nonce on the first request of a type belongs to a stream that is gone: it is
// ignored, and so is a refusal; the request is answered.
func TestR019_ANonceOfAnotherStreamIsIgnored(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), streamRoute("r", "1"))
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Send(streamRequest(v, streamCDS, "77", "*"))
		streamTake(t, c, streamCDS, "a")
		refusal := status.New(codes.InvalidArgument, "of an earlier life").Proto()
		switch req := streamRequest(v, streamRDS, "1", "r").(type) { // the nonce that the clusters had
		case *discoverypb.DiscoveryRequest:
			req.ErrorDetail = refusal
			c.Send(req)
		case *discoverypb.DeltaDiscoveryRequest:
			req.ErrorDetail = refusal
			c.Send(req)
		}
		streamTake(t, c, streamRDS, "r")
		streamQuiet(t, c, time.Minute)
		if n := r.Log.Count("client refused a response"); n != 0 {
			t.Errorf("%d refusals were recorded of a stream that refused nothing", n)
		}
	})
}

// Every response has a nonce that no other one of the stream has, over all types.
func TestR022_NoncesAreUniqueOnAStream(t *testing.T) {
	t.Parallel()
	const changes = 500
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(streamRoute("r", "0"), relaytest.Endpoints("e", "127.0.0.1:1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "r")
		streamTake(t, c, streamRDS, "r")
		c.Subscribe(streamEDS, "e")
		streamTake(t, c, streamEDS, "e")
		for i := range changes {
			o.Put(streamRoute("r", fmt.Sprint(i+1)))
			streamTake(t, c, streamRDS, "r")
			o.Put(relaytest.Endpoints("e", fmt.Sprint("127.0.0.1:", i+2)))
			streamTake(t, c, streamEDS, "e")
		}
		seen := make(map[string]bool)
		for _, r := range c.Responses() {
			if r.Nonce == "" || seen[r.Nonce] {
				t.Errorf("nonce %q of %v is empty or was used before", r.Nonce, r)
			}
			seen[r.Nonce] = true
		}
		if len(seen) != 2*changes+2 {
			t.Errorf("%d nonces, want %d", len(seen), 2*changes+2)
		}
	})
}

// An ACK has the newest nonce, the response's version and no error; it gets no
// response.
func TestR028_AnACKIsQuiet(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), streamRoute("r", "1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamCDS, "*")
		streamTake(t, c, streamCDS, "a")
		c.Subscribe(streamRDS, "r")
		streamTake(t, c, streamRDS, "r")
		streamQuiet(t, c, time.Hour)
	})
}

// A refusal is known by error_detail alone, whatever version it names, also the
// rejected one. (A Delta request names none.)
func TestR029_ErrorDetailMakesANACK(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(streamRoute("r", "1"))
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "r")
		for _, tc := range []struct {
			name, refusal string
			version       func(r *relaytest.Response) string
		}{
			{"ACK", "", func(r *relaytest.Response) string { return r.Version }},
			{"ACK with another version", "", func(*relaytest.Response) string { return "something" }},
			{"ACK without version", "", func(*relaytest.Response) string { return "" }},
			{"NACK without version", "no-1", func(*relaytest.Response) string { return "" }},
			{"NACK with the rejected version", "no-2", func(r *relaytest.Response) string { return r.Version }},
		} {
			before := r.Log.Count("client refused a response")
			resp := c.Recv(t.Context())
			c.Send(streamAnswer(v, resp, tc.version(resp), tc.refusal, "r"))
			streamQuiet(t, c, time.Minute)
			if got := r.Log.Count("client refused a response") - before; (got == 1) != (tc.refusal != "") {
				t.Errorf("%s: %d refusals were recorded", tc.name, got)
			}
			if tc.refusal != "" && r.Log.Count(tc.refusal) != 1 {
				t.Errorf("%s: the log does not say why", tc.name)
			}
			o.Put(streamRoute("r", tc.name))
		}
	})
}

// streamAnswer is an answer by hand: a NACK if there is a refusal. A SotW one
// names a version and lists names.
func streamAnswer(v relaytest.Variant, r *relaytest.Response, version, refusal string, names ...string) proto.Message {
	detail := status.New(codes.Internal, refusal).Proto()
	if refusal == "" {
		detail = nil
	}
	if v == relaytest.Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: r.TypeURL, ResponseNonce: r.Nonce, ErrorDetail: detail}
	}
	return &discoverypb.DiscoveryRequest{TypeUrl: r.TypeURL, ResponseNonce: r.Nonce, VersionInfo: version, ResourceNames: names, ErrorDetail: detail}
}

// What was refused is not sent again; the next other content is, also if that is
// the one before (B.10, C10: A, bad B, A).
func TestR030_RefusedContentIsNotSentAgain(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, typeURL := range []string{streamCDS, streamRDS} {
			put := func(what string) {
				if typeURL == streamCDS {
					o.Put(relaytest.Cluster("x", what))
				} else {
					o.Put(streamRoute("x", what))
				}
			}
			put("A")
			r := start(t, o)
			c := r.Client(relaytest.ClientOptions{Variant: v})
			other := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			other.Subscribe(typeURL, "x")
			streamHas(t, other.Recv(t.Context()), typeURL, "x")
			c.Subscribe(typeURL, "x")
			good := streamTake(t, c, typeURL, "x")
			put("B")
			bad := c.Recv(t.Context())
			c.Nack(bad, "B is bad")
			streamQuiet(t, c, time.Hour)
			put("A")
			again := c.Recv(t.Context())
			if again.Resources[0].Digest != good.Resources[0].Digest {
				t.Errorf("%s: after the refusal: %v, want what was good", typeURL, again)
			}
			c.Nack(again, "now nothing is right")
			streamQuiet(t, c, time.Hour)
			put("C")
			streamTake(t, c, typeURL, "x")
			synctest.Wait()
			if n := len(other.Responses()); n != 4 {
				t.Errorf("%s: the other client was sent %d responses, want 4", typeURL, n)
			}
			r.Stop()
		}
	})
}

// A client that refuses everything, for ever and at once, is sent one response
// for each content and no more.
func TestC10_ARefusingClientMakesNoLoop(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true,
			Reject: func(*relaytest.Response) error { return errors.New("never") }})
		c.Subscribe(streamCDS, "*")
		for i := range 3 {
			streamHas(t, c.Recv(t.Context()), streamCDS, "a")
			streamQuiet(t, c, time.Hour)
			o.Put(relaytest.Cluster("a", fmt.Sprint("service", i)))
		}
		if s := o.State().Type(streamCDS); s.NACKs != 0 {
			t.Errorf("the relay passed %d refusals on", s.NACKs)
		}
	})
}

// One request can answer a response and change the subscription; both take
// effect.
func TestR031_AnAnswerMayChangeTheSubscription(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, name := range []string{"a", "b", "c"} {
			o.Put(streamRoute(name, name))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "a")
		first := c.Recv(t.Context())
		streamHas(t, first, streamRDS, "a")

		list := func(names ...string) []string { // SotW says all names, Delta the new one
			if v == relaytest.Delta {
				return names[len(names)-1:]
			}
			return names
		}
		c.Send(streamRequest(v, streamRDS, first.Nonce, list("a", "b")...))
		second := c.Recv(t.Context())
		streamHas(t, second, streamRDS, "b")

		nack := streamRequest(v, streamRDS, second.Nonce, list("a", "b", "c")...)
		detail := status.New(codes.InvalidArgument, "b is bad").Proto()
		switch req := nack.(type) {
		case *discoverypb.DiscoveryRequest:
			req.ErrorDetail = detail
		case *discoverypb.DeltaDiscoveryRequest:
			req.ErrorDetail = detail
		}
		c.Send(nack)
		third := c.Recv(t.Context())
		streamHas(t, third, streamRDS, "c")
		c.Ack(third)
		o.Put(streamRoute("b", "better"))
		streamTake(t, c, streamRDS, "b")
	})
}

// Of requests in a row only the newest needs an answer: the client ends with
// all that it names, and with nothing twice.
func TestR034_TheNewestRequestIsAnswered(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		var names []string
		for i := range 5 {
			names = append(names, fmt.Sprint("r", i))
			o.Put(streamRoute(names[i], "x"))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		for i := range names {
			c.Send(streamSotW(&discoverypb.DiscoveryRequest{TypeUrl: streamRDS, ResourceNames: names[:i+1]}))
		}
		seen := make(map[string]int)
		for len(seen) < len(names) {
			r := c.Recv(t.Context())
			c.Ack(r)
			for _, name := range r.Names() {
				if seen[name]++; seen[name] > 1 {
					t.Errorf("%s was sent %d times", name, seen[name])
				}
			}
		}
		streamQuiet(t, c, time.Minute)
	})
}

// A request with an older nonce gets no response while a newer response is on its
// way, and the names that it brings are not lost (R036, B.14 first branch).
func TestR035_AStaleRequestWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		c, first, second := streamTwoResponses(t, o)
		c.Send(streamRequest(relaytest.SotW, streamRDS, first.Nonce, "a", "b"))
		streamQuiet(t, c, 2*time.Second)
		// The ACK says the names again, as every SotW request does; nothing else comes.
		c.Send(streamRequest(relaytest.SotW, streamRDS, second.Nonce, "a", "b"))
		streamHas(t, streamNext(t, c), streamRDS, "b")
	})
}

// The newest request defines the names whatever its nonce is: one that takes a
// name away does so too.
func TestR036_AStaleRequestChangesTheNames(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		c, first, second := streamTwoResponses(t, o)
		c.Send(streamRequest(relaytest.SotW, streamRDS, first.Nonce, "b"))
		c.Send(streamRequest(relaytest.SotW, streamRDS, second.Nonce, "b"))
		streamTake(t, c, streamRDS, "b")
		o.Put(streamRoute("a", "not wanted any more"))
		streamQuiet(t, c, time.Minute)
	})
}

// The deferred answer of a stale request comes 3 s after the response that it
// waits for, if that is not answered (B.14 second branch).
func TestB14_AStaleRequestIsAnsweredAfter3s(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		c, first, _ := streamTwoResponses(t, o)
		time.Sleep(time.Second)
		c.Send(streamRequest(relaytest.SotW, streamRDS, first.Nonce, "a", "b"))
		streamQuiet(t, c, 1900*time.Millisecond)
		time.Sleep(200 * time.Millisecond)
		streamHas(t, streamNext(t, c), streamRDS, "b")
	})
}

// Where nothing is un-ACKed, or has been for 3 s, a stale nonce delays nothing:
// newly added names are answered at once (B.14 third branch).
func TestB14_AStaleRequestIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("answered", func(t *testing.T) {
		streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
			c, first, second := streamTwoResponses(t, o)
			c.Ack(second)
			c.Send(streamRequest(relaytest.SotW, streamRDS, first.Nonce, "a", "b"))
			streamHas(t, streamNext(t, c), streamRDS, "b")
		})
	})
	t.Run("refused", func(t *testing.T) { // Envoy goes on with the nonce of the last good response
		streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
			c, first, second := streamTwoResponses(t, o)
			c.Nack(second, "no")
			c.Send(streamRequest(relaytest.SotW, streamRDS, first.Nonce, "a", "b"))
			streamHas(t, streamNext(t, c), streamRDS, "b")
		})
	})
	t.Run("ignored for 4s", func(t *testing.T) {
		streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
			c, first, _ := streamTwoResponses(t, o)
			time.Sleep(4 * time.Second) // less than the ACK wait
			c.Send(streamRequest(relaytest.SotW, streamRDS, first.Nonce, "a", "b"))
			streamHas(t, streamNext(t, c), streamRDS, "b")
		})
	})
}

// streamTwoResponses brings a SotW client of the route a to where a first
// response was accepted and a second is not answered yet. A route b exists.
func streamTwoResponses(t *testing.T, o *relaytest.Origin) (c *relaytest.Client, first, second *relaytest.Response) {
	t.Helper()
	o.Put(streamRoute("a", "1"), streamRoute("b", "1"))
	r := start(t, o)
	knows := r.Client(relaytest.ClientOptions{}) // so that b waits for no origin
	knows.Subscribe(streamRDS, "b")
	streamTake(t, knows, streamRDS, "b")
	c = r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	c.Subscribe(streamRDS, "a")
	first = streamTake(t, c, streamRDS, "a")
	o.Put(streamRoute("a", "2"))
	second = c.Recv(t.Context())
	streamHas(t, second, streamRDS, "a")
	return c, first, second
}

// A nonce that the relay never gave means no more than none: it is no answer
// (B.13).
func TestB13_AnUnknownNonceIsNone(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, nonce := range []string{"", "4711", "rubbish", "01", "-1"} {
			o.Put(streamRoute("a", "1"))
			r := start(t, o)
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(streamRDS, "a")
			first := c.Recv(t.Context())
			req := streamRequest(v, streamRDS, nonce, "a")
			if v == relaytest.Delta {
				req = streamRequest(v, streamRDS, nonce)
			}
			c.Send(req)
			o.Put(streamRoute("a", "2"))
			streamQuiet(t, c, 2*time.Second) // the first response is not answered
			c.Ack(first)
			streamHas(t, streamNext(t, c), streamRDS, "a")
			r.Stop()
		}
	})
}

// Not every request gets a response: an ACK gets none, and a name that is not
// there yet is answered when it is.
func TestR037_AnAnswerMayComeLater(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(streamRoute("a", "1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "a")
		streamTake(t, c, streamRDS, "a")
		c.Subscribe(streamRDS, "later")
		streamQuiet(t, c, time.Hour)
		o.Put(streamRoute("later", "1"))
		streamTake(t, c, streamRDS, "later")
	})
}

// A client may never answer a response: what changes later reaches it all the
// same, after the ACK wait.
func TestR038_WaitingForAnAnswerIsBounded(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		c := start(t, o, "TENDER_ACK_WAIT=7s").Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamCDS, "*")
		for i := range 3 {
			streamHas(t, c.Recv(t.Context()), streamCDS, "a")
			o.Put(relaytest.Cluster("a", fmt.Sprint(i)))
			streamQuiet(t, c, 6900*time.Millisecond)
		}
		r := c.Recv(t.Context())
		streamHas(t, r, streamCDS, "a")
		c.Ack(r)
		o.Put(relaytest.Cluster("a", "after an answer"))
		streamHas(t, streamNext(t, c), streamCDS, "a")
	})
}

// A refusal changes nothing of what is held to be sent: the client may have
// applied the valid resources of the response, and only what changes comes.
func TestR039_ARefusalDoesNotForgetWhatWasSent(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Apply(func(tx *relaytest.Tx) {
			tx.Put(streamRoute("good", "1"), streamRoute("bad", "1"))
		})
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "good", "bad")
		r := c.Recv(t.Context())
		streamHas(t, r, streamRDS, "bad", "good")
		c.Nack(r, "bad is bad")
		streamQuiet(t, c, time.Hour)
		o.Put(streamRoute("bad", "2"))
		streamTake(t, c, streamRDS, "bad")
	})
}
