package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// typeURLs maps the short names of types to type URLs, and shortName the other way round.
var typeURLs, shortName = transcript.Types, transcript.ShortName

// A world is an origin, a relay and clients in a synctest bubble. Virtual hours pass at once, and a response that
// has not arrived when all goroutines are idle was not sent.
//
// Resources and responses are written as [transcript.Notation] says: "cds web@2", "cds web@2 -old".
type world struct {
	t      testing.TB
	origin *relaytest.Origin
	relay  *running
	n      *transcript.Notation
}

// worldBubble runs f in a world. env configures its relay.
func worldBubble(t *testing.T, env []string, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		w := &world{t: t, origin: o, n: transcript.NewNotation(t)}
		w.relay = start(t, o, env...)
		f(w)
	})
}

// change has the origin make changes, in one response per type, and waits until all goroutines are idle.
func (w *world) change(changes ...string) {
	w.t.Helper()
	w.n.Apply(w.origin, changes...)
	synctest.Wait()
}

// play plays an event of the origin, as a transcript does.
func (w *world) play(event string) { w.t.Helper(); transcript.NewOrigin(w.n, w.origin).Play(event) }

// sleep lets virtual time pass, and waits until all goroutines are idle.
func (w *world) sleep(d time.Duration) {
	sleep(d)
}

// settle waits until the relay considers its sets complete.
func (w *world) settle() { w.sleep(10 * time.Second) }

// A worldClient is a client that records its responses. It ACKs when the test does, unless its options say
// otherwise.
type worldClient struct {
	*relaytest.Client
	w     *world
	last  map[string]*relaytest.Response // by type URL
	batch []*relaytest.Response          // returned by the last call of received
}

// manualClient returns an Envoy that ACKs when the test does.
func (w *world) manualClient(v relaytest.Variant) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v})
}

// autoClient returns an Envoy that ACKs every response at once.
func (w *world) autoClient(v relaytest.Variant) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, AutoAck: true})
}

// dial connects a client to the relay.
func (w *world) dial(opts relaytest.ClientOptions) *worldClient { return w.dialAt(w.relay, opts) }

// dialAt connects a client to the relay r.
func (w *world) dialAt(r *running, opts relaytest.ClientOptions) *worldClient {
	return &worldClient{Client: r.Client(opts), w: w, last: make(map[string]*relaytest.Response)}
}

// subscribe subscribes to space-separated names, or to the legacy wildcard if there are none.
func (c *worldClient) subscribe(short, names string) *worldClient {
	c.Subscribe(typeURLs[short], strings.Fields(names)...)
	synctest.Wait()
	return c
}

// received waits until all goroutines are idle, and returns the responses since the last call.
func (c *worldClient) received() []string {
	synctest.Wait()
	out := []string{}
	c.batch = nil
	for r := c.TryRecv(); r != nil; r = c.TryRecv() {
		c.last[r.TypeURL], c.batch = r, append(c.batch, r)
		out = append(out, c.w.n.Describe(r))
	}
	return out
}

// expect fails the test unless exactly these responses arrived since the last call. If want is empty, the stream
// must still be open.
func (c *worldClient) expect(want ...string) {
	c.w.t.Helper()
	if got := c.received(); !slices.Equal(got, want) {
		c.w.t.Fatalf("%v: got responses (-want +got):\n%s", c.Client, cmp.Diff(append([]string{}, want...), got))
	}
	if len(want) == 0 && c.Ended() {
		c.w.t.Fatalf("%v: stream ended, want it open", c.Client)
	}
}

// ackPending ACKs the responses since the last call.
func (c *worldClient) ackPending() {
	for r := c.TryRecv(); r != nil; r = c.TryRecv() {
		c.last[r.TypeURL] = r
		c.Ack(r)
		synctest.Wait()
	}
}

// ackBatch ACKs the responses that the last call of received returned.
func (c *worldClient) ackBatch() {
	for _, r := range c.batch {
		c.Ack(r)
	}
	synctest.Wait()
}

// ack ACKs the last response of each type.
func (c *worldClient) ack(shorts ...string) {
	c.w.t.Helper()
	for _, short := range shorts {
		r := c.last[typeURLs[short]]
		if r == nil {
			c.w.t.Fatalf("%v: no response of %s to ACK", c.Client, short)
		}
		c.Ack(r)
	}
	synctest.Wait()
}

// nack NACKs the last response of a type.
func (c *worldClient) nack(short string) {
	c.w.t.Helper()
	c.Nack(c.last[typeURLs[short]], "rejected")
	synctest.Wait()
}

// expectAndAck is expect followed by ACKs of the responses.
func (c *worldClient) expectAndAck(want ...string) {
	c.w.t.Helper()
	c.expect(want...)
	c.ackBatch()
}

// expectChanges fails the test unless exactly these changes arrived, in any number of responses, and ACKs them.
func (w *world) expectChanges(c *worldClient, want ...string) {
	w.t.Helper()
	var got []string
	for responses := c.received(); len(responses) > 0; responses = c.received() {
		for i, response := range responses {
			short, rest, _ := strings.Cut(response, " ")
			for _, part := range strings.Fields(strings.Trim(rest, "{}")) {
				got = append(got, short+" "+part)
			}
			c.Ack(c.batch[i])
		}
	}
	want = slices.DeleteFunc(want, func(s string) bool {
		return strings.Contains(s, " -") && strings.HasPrefix(c.String(), "sotw") // SotW has no removals for most types
	})
	slices.Sort(got)
	got = slices.Compact(got) // endpoints may be resent after their cluster (B.16)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Fatalf("%v: got %q, want %q", c.Client, got, want)
	}
}

// eachVariant runs a test for both variants.
func eachVariant(t *testing.T, f func(t *testing.T, v relaytest.Variant)) {
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		t.Run(v.String(), func(t *testing.T) { f(t, v) })
	}
}

// formatFor converts a Delta response to the variant's form: "cds a@1=alias -b" becomes "cds {a@1}" in SotW.
func formatFor(v relaytest.Variant, response string) string {
	if v == relaytest.Delta {
		return response
	}
	short, rest, _ := strings.Cut(response, " ")
	kept := slices.DeleteFunc(strings.Fields(rest), func(p string) bool { return strings.HasPrefix(p, "-") })
	for i, p := range kept {
		if strings.HasPrefix(p, "!") {
			continue
		}
		at := strings.LastIndex(p, "@") // a name may contain any other character
		rev, _, _ := strings.Cut(p[max(at, 0):], "=")
		if at >= 0 {
			kept[i] = p[:at] + rev
		}
	}
	return short + " {" + strings.Join(kept, " ") + "}"
}

// subscribeHolding sends the first request of a reconnecting client. names are space-separated, none for the
// legacy wildcard; held are the names that the client has.
func (c *worldClient) subscribeHolding(v relaytest.Variant, short, names, held string) *worldClient {
	var req proto.Message = &discoverypb.DiscoveryRequest{
		Node:          relaytest.EnvoyNode("returning"),
		TypeUrl:       typeURLs[short],
		VersionInfo:   "r1.of-another-set",
		ResourceNames: strings.Fields(names),
	}
	if v == relaytest.Delta {
		versions := make(map[string]string)
		for name := range strings.FieldsSeq(held) {
			versions[name] = "of another time"
		}
		req = &discoverypb.DeltaDiscoveryRequest{
			Node:                    relaytest.EnvoyNode("returning"),
			TypeUrl:                 typeURLs[short],
			ResourceNamesSubscribe:  strings.Fields(names),
			InitialResourceVersions: versions,
		}
	}
	c.Send(req)
	synctest.Wait()
	return c
}

// manualOrigin lets the test script the origin's next streams.
func (w *world) manualOrigin() {
	w.origin.Change(func(b *relaytest.Behaviour) { b.Manual = true })
}

// send sends one response on a stream of the origin, and waits until all goroutines are idle.
func (w *world) send(s *relaytest.OriginStream, changes ...string) {
	w.t.Helper()
	s.Send(w.n.Response(changes...))
	synctest.Wait()
}

// stop stops the origin.
func (w *world) stop() {
	w.origin.Stop()
	synctest.Wait()
}

// restart restarts the origin, and waits until the relay has reconnected.
func (w *world) restart() {
	w.origin.Restart()
	w.sleep(time.Minute)
}
