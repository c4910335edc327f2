package conformance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// typeURLs maps the short names of types to type URLs.
var typeURLs = map[string]string{
	"cds":  relaytest.ClusterType,
	"eds":  relaytest.EndpointType,
	"leds": relaytest.LocalityEndpointType,
	"sds":  relaytest.SecretType,
	"ecds": relaytest.ExtensionConfigType,
	"rtds": relaytest.RuntimeType,
	"lds":  relaytest.ListenerType,
	"srds": relaytest.ScopedRouteType,
	"rds":  relaytest.RouteType,
	"vhds": relaytest.VirtualHostType,
	"acme": "type.googleapis.com/acme.Thing",
}

// shortName returns the short name of a type, or its type URL if it has none.
func shortName(typeURL string) string {
	for short, url := range typeURLs {
		if url == typeURL {
			return short
		}
	}
	return typeURL
}

// newResource returns a resource whose content depends on rev. A route of revision n names the cluster
// "cluster-n".
func newResource(short, name string, rev int) proto.Message {
	switch short {
	case "cds":
		c := relaytest.Cluster(name)
		c.AltStatName = fmt.Sprint("revision-", rev)
		return c
	case "eds":
		return relaytest.Endpoints(name, fmt.Sprint("127.0.0.1:", 8000+rev))
	case "lds":
		l := relaytest.Listener(name, "routes")
		l.StatPrefix = fmt.Sprint("revision-", rev)
		return l
	case "rds":
		return relaytest.Route(name, []string{"*"}, fmt.Sprint("cluster-", rev))
	default:
		return relaytest.Opaque(typeURLs[short], name, []byte{byte(rev)})
	}
}

// A world is an origin, a relay and clients in a synctest bubble. Virtual hours pass at once, and a response that
// has not arrived when all goroutines are idle was not sent.
//
// Resources are written "cds web@2": type, name, revision. "vhds rc/web@2=rc/a.example" has an alias, and "vhds
// rc/b.example?" is an alias without a resource.
//
// A response is written "cds web@2 -old" in Delta and "cds {web@2}" in SotW, names sorted. "!web:Unavailable" is
// an error, "web@2(30s)" has the remaining TTL, and "web~(30s)" is a heartbeat.
type world struct {
	t      testing.TB
	origin *relaytest.Origin
	relay  *running
	revs   map[relaytest.Digest]string // revisions by content
}

// worldBubble runs f in a world. env configures its relay.
func worldBubble(t *testing.T, env []string, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		w := &world{t: t, origin: o, revs: make(map[relaytest.Digest]string)}
		w.relay = start(t, o, env...)
		f(w)
	})
}

// A parsedChange is the origin's change of one resource.
type parsedChange struct {
	short, name string
	rev         int
	aliases     []string
	remove      bool
	unresolved  bool
	code        codes.Code // of an error; OK otherwise
	ttl         time.Duration
}

// parse reads "cds web@2", "cds web@2=alias", "cds web@2 1m" (its TTL), "cds web?", "cds -web" or
// "cds !web:Unavailable".
func (w *world) parse(change string) (c parsedChange) {
	w.t.Helper()
	short, rest, _ := strings.Cut(change, " ")
	c.short = short
	if c.name, c.remove = strings.CutPrefix(rest, "-"); c.remove {
		return c
	}
	if c.name, c.unresolved = strings.CutSuffix(rest, "?"); c.unresolved {
		return c
	}
	if failing, ok := strings.CutPrefix(rest, "!"); ok {
		colon := strings.LastIndex(failing, ":")
		name, text := failing[:max(colon, 0)], failing[colon+1:]
		c.name = name
		for code := codes.Canceled; code <= codes.Unauthenticated && c.code == codes.OK; code++ {
			if code.String() == text {
				c.code = code
			}
		}
		if c.code == codes.OK {
			w.t.Fatalf("change %q: unknown status code", change)
		}
		return c
	}
	if text, ttl, ok := strings.Cut(rest, " "); ok {
		var err error
		if c.ttl, err = time.ParseDuration(ttl); err != nil {
			w.t.Fatal(err)
		}
		rest = text
	}
	at := strings.LastIndex(rest, "@") // a name may contain any other character
	name, parts := rest[:max(at, 0)], strings.Split(rest[at+1:], "=")
	rev, err := strconv.Atoi(parts[0])
	if err != nil || typeURLs[short] == "" {
		w.t.Fatalf("change %q: not of the form %q", change, "cds web@2")
	}
	c.name, c.rev, c.aliases = name, rev, parts[1:]
	return c
}

// resource returns the resource of a change that sets one.
func (w *world) resource(c parsedChange) *discoverypb.Resource {
	w.t.Helper()
	if c.unresolved {
		return &discoverypb.Resource{Name: c.name, Aliases: []string{c.name}}
	}
	m := w.message(c.short, c.name, c.rev)
	body, packed := m.(*anypb.Any)
	if !packed {
		body = relaytest.Pack(m)
	}
	r := &discoverypb.Resource{Name: c.name, Version: fmt.Sprint("v", c.rev), Aliases: c.aliases, Resource: body}
	if c.ttl > 0 {
		r.Ttl = durationpb.New(c.ttl)
	}
	return r
}

// message returns a resource, and records its revision.
func (w *world) message(short, name string, rev int) proto.Message {
	m := newResource(short, name, rev)
	w.revs[relaytest.DigestOf(m)] = strconv.Itoa(rev)
	return m
}

// errorDetail is the message of resource errors.
const errorDetail = "because"

// change has the origin make changes, in one response per type, and waits until all goroutines are idle.
func (w *world) change(changes ...string) {
	w.t.Helper()
	w.origin.Apply(func(tx *relaytest.Tx) {
		for _, text := range changes {
			switch c := w.parse(text); {
			case c.remove:
				tx.Remove(typeURLs[c.short], c.name)
			case c.code != codes.OK:
				tx.Fail(typeURLs[c.short], c.name, c.code, errorDetail)
			case c.unresolved || len(c.aliases) > 0 || c.ttl > 0:
				tx.SetRaw(typeURLs[c.short], w.resource(c))
			default:
				tx.Set(typeURLs[c.short], c.name, w.message(c.short, c.name, c.rev), "")
			}
		}
	})
	synctest.Wait()
}

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
		out = append(out, c.w.describe(r))
	}
	return out
}

// describe formats a response, see world.
func (w *world) describe(r *relaytest.Response) string {
	var parts []string
	for _, res := range r.Resources {
		rev, ok := w.revs[res.Digest]
		switch {
		case res.Heartbeat():
			rev = "~"
		case res.Body == nil && len(res.Aliases) > 0:
			parts = append(parts, res.Name+"?")
			continue
		case !ok:
			rev = "@?"
		default:
			rev = "@" + rev
		}
		if res.TTL > 0 {
			rev += "(" + res.TTL.String() + ")"
		}
		parts = append(parts, strings.Join(append([]string{res.Name + rev}, res.Aliases...), "="))
	}
	slices.Sort(parts)
	for _, name := range slices.Sorted(slices.Values(r.Removed)) {
		parts = append(parts, "-"+name)
	}
	for _, e := range r.Errors {
		parts = append(parts, "!"+e.Name+":"+e.Code.String())
	}
	text := strings.Join(parts, " ")
	if r.SotW() {
		text = "{" + text + "}"
	}
	return strings.TrimSpace(shortName(r.TypeURL) + " " + text)
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
	c.Nack(c.last[typeURLs[short]], "refused")
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

// acceptStream returns the open stream to the origin.
func (w *world) acceptStream() *relaytest.OriginStream {
	w.t.Helper()
	for {
		if s := w.origin.Accept(w.t.Context()); !s.State().Ended {
			return s
		}
	}
}

// send sends one response on a stream of the origin, and waits until all goroutines are idle.
func (w *world) send(s *relaytest.OriginStream, changes ...string) {
	w.t.Helper()
	s.Send(w.response(changes...))
	synctest.Wait()
}

// response returns a Delta response with changes of one type.
func (w *world) response(changes ...string) *discoverypb.DeltaDiscoveryResponse {
	w.t.Helper()
	resp := &discoverypb.DeltaDiscoveryResponse{}
	for _, text := range changes {
		c := w.parse(text)
		resp.TypeUrl = typeURLs[c.short]
		switch {
		case c.remove:
			resp.RemovedResources = append(resp.RemovedResources, c.name)
		case c.code != codes.OK:
			resp.ResourceErrors = append(resp.ResourceErrors, &discoverypb.ResourceError{
				ResourceName: &discoverypb.ResourceName{Name: c.name},
				ErrorDetail:  status.New(c.code, errorDetail).Proto(),
			})
		default:
			resp.Resources = append(resp.Resources, w.resource(c))
		}
	}
	return resp
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

// initialVersions returns the initial_resource_versions of the relay's latest stream to the origin that sent some.
func (w *world) initialVersions() map[string]string {
	for _, st := range slices.Backward(w.origin.State().Streams) {
		if len(st.Requests) > 0 && len(st.Requests[0].Message.GetInitialResourceVersions()) > 0 {
			return st.Requests[0].Message.GetInitialResourceVersions()
		}
	}
	return nil
}
