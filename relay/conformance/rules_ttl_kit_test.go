package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// A ttlWorld is an orderWorld whose resources may expire.
//
// The origin's are written "cds a@1 1m": type, name, revision, TTL if any. Responses
// are written "cds a@1(1m0s) b~(30s) -c": with what is left of the TTL, a heartbeat by
// "~"; in SotW in braces.
type ttlWorld struct{ *orderWorld }

// ttlBubble runs f in a world in which the relay knows all types already.
func ttlBubble(t *testing.T, env []string, f func(w *ttlWorld)) {
	t.Helper()
	orderBubble(t, env, func(w *orderWorld) { f(&ttlWorld{w}) })
}

// give has the origin set resources at once.
func (w *ttlWorld) give(resources ...string) {
	w.t.Helper()
	w.origin.Apply(func(tx *relaytest.Tx) {
		for _, text := range resources {
			typeURL, r := w.resource(text)
			tx.SetRaw(typeURL, r)
		}
	})
	synctest.Wait()
}

// resource returns what "cds a@1 1m" means. The version is that of the revision.
func (w *ttlWorld) resource(text string) (typeURL string, r *discoverypb.Resource) {
	w.t.Helper()
	words := strings.Fields(text)
	c := w.parse(strings.Join(words[:2], " "))
	r = w.orderWorld.resource(c)
	if len(words) > 2 {
		ttl, err := time.ParseDuration(words[2])
		if err != nil {
			w.t.Fatal(err)
		}
		r.Ttl = durationpb.New(ttl)
	}
	return orderTypes[c.short], r
}

// beat has the origin say that resources live on.
func (w *ttlWorld) beat(short string, names ...string) {
	w.origin.Heartbeat(orderTypes[short], names...)
	synctest.Wait()
}

// A ttlClient is a client that hears of TTLs, if its Node says that it understands.
type ttlClient struct {
	*orderClient
	w *ttlWorld
}

// Clients by what they understand.
var (
	ttlEnvoy   = relaytest.WithFeatures(relaytest.EnvoyNode("ttl"), relaytest.FeatureTTL, relaytest.FeatureWrapper)
	plainEnvoy = relaytest.EnvoyNode("plain")
)

// client returns a client by hand that has subscribed.
func (w *ttlWorld) client(v relaytest.Variant, n *corepb.Node, short, names string) *ttlClient {
	c := &ttlClient{w: w, orderClient: w.dial(relaytest.ClientOptions{Variant: v, Node: n})}
	c.subscribe(short, names)
	return c
}

// follow returns a client that has subscribed, and waits until all there is was said
// and accepted.
func (w *ttlWorld) follow(v relaytest.Variant, n *corepb.Node, short, names string) *ttlClient {
	c := w.client(v, n, short, names)
	w.settle()
	c.skip()
	return c
}

// skip accepts what was said since the last time.
func (c *ttlClient) skip() {
	for r := c.TryRecv(); r != nil; r = c.TryRecv() {
		c.last[r.TypeURL] = r
		c.Ack(r)
		synctest.Wait()
	}
}

// hears fails the test unless just these responses came since the last time, and
// accepts them.
func (c *ttlClient) hears(want ...string) {
	c.w.t.Helper()
	c.expects(want...)
	for _, r := range c.read {
		c.Ack(r)
	}
	synctest.Wait()
}

// expects is hears without accepting.
func (c *ttlClient) expects(want ...string) {
	c.w.t.Helper()
	synctest.Wait()
	got := []string{}
	c.read = nil
	for r := c.TryRecv(); r != nil; r = c.TryRecv() {
		c.last[r.TypeURL], c.read = r, append(c.read, r)
		got = append(got, c.w.tell(r))
	}
	if !slices.Equal(got, want) {
		c.w.t.Fatalf("%v: got responses (-want +got):\n%s", c.Client, cmp.Diff(append([]string{}, want...), got))
	}
}

func (w *ttlWorld) tell(r *relaytest.Response) string {
	var parts []string
	for _, res := range r.Resources {
		rev, ok := w.revs[res.Digest]
		switch {
		case res.Heartbeat():
			rev = "~"
		case !ok:
			rev = "@?"
		default:
			rev = "@" + rev
		}
		if res.TTL > 0 {
			rev += "(" + res.TTL.String() + ")"
		}
		parts = append(parts, res.Name+rev)
	}
	slices.Sort(parts)
	for _, name := range slices.Sorted(slices.Values(r.Removed)) {
		parts = append(parts, "-"+name)
	}
	text := strings.Join(parts, " ")
	if r.SotW() {
		text = "{" + text + "}"
	}
	return strings.TrimSpace(orderShort(r.TypeURL) + " " + text)
}

// A ttlForm is a way of asking for the resources a and b of a type.
type ttlForm struct {
	variant relaytest.Variant
	short   string
	names   string // as for subscribe
}

// ttlForms are all ways that differ in how they are answered.
func ttlForms(t *testing.T, f func(t *testing.T, form ttlForm)) {
	for _, short := range []string{"cds", "lds", "eds", "rds", "sds", "acme"} {
		for _, names := range []string{"*", "a b"} {
			if short == "sds" && names == "*" {
				continue // nobody has Secrets so (B.36)
			}
			for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
				form := ttlForm{v, short, names}
				t.Run(fmt.Sprintf("%v/%s/%s", v, short, strings.ReplaceAll(names, " ", "+")), func(t *testing.T) { f(t, form) })
			}
		}
	}
}

// whole reports whether a response of the form holds all that the client asked for: because absence is removal, or
// for Envoys, which drop what a response leaves out (B.17).
func (f ttlForm) whole() bool {
	return f.variant == relaytest.SotW && f.short == "sds" || completeFor(f.variant, f.short, f.names)
}

// response is how a response is written in which only changed is due, of a set that is
// then all.
func (f ttlForm) response(changed, all string) string {
	switch {
	case f.whole():
		changed = all
	case f.variant == relaytest.Delta:
		return f.short + " " + changed
	}
	return f.short + " {" + changed + "}"
}

// removal is what the form is told when a resource goes and these are left; nothing
// where SotW has no removals.
func (f ttlForm) removal(gone, left string) []string {
	switch {
	case f.variant == relaytest.Delta:
		return []string{f.short + " -" + gone}
	case completeFor(f.variant, f.short, f.names):
		return []string{f.short + " {" + left + "}"}
	default:
		return nil
	}
}

// beat is what the form is told when a resource lives on.
func (f ttlForm) beat(name, full, all string) string {
	if f.variant == relaytest.Delta {
		return f.short + " " + name + "~" + full[strings.IndexByte(full, '('):]
	}
	return f.response(full, all)
}
