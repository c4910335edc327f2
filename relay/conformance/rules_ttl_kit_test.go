package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// A ttlWorld is a world whose resources may have TTLs.
type ttlWorld struct{ *world }

// ttlBubble runs f in a ttlWorld. env configures its relay.
func ttlBubble(t *testing.T, env []string, f func(w *ttlWorld)) {
	t.Helper()
	worldBubble(t, env, func(w *world) { f(&ttlWorld{w}) })
}

// set has the origin set resources in one response per type. A resource's version is its revision.
func (w *ttlWorld) set(resources ...string) {
	w.t.Helper()
	w.origin.Apply(func(tx *relaytest.Tx) {
		for _, text := range resources {
			tx.SetRaw(w.resource(text))
		}
	})
	synctest.Wait()
}

// resource parses text, such as "cds a@1 1m".
func (w *ttlWorld) resource(text string) (typeURL string, r *discoverypb.Resource) {
	c := w.n.Parse(text)
	return typeURLs[c.Short], w.n.Resource(c)
}

// heartbeat has the origin renew the TTLs of resources.
func (w *ttlWorld) heartbeat(short string, names ...string) {
	w.origin.Heartbeat(typeURLs[short], names...)
	synctest.Wait()
}

// Nodes of clients with and without TTL support.
var (
	ttlEnvoy   = relaytest.WithFeatures(relaytest.EnvoyNode("ttl"), relaytest.FeatureTTL, relaytest.FeatureWrapper)
	plainEnvoy = relaytest.EnvoyNode("plain")
)

// client returns a subscribed client that ACKs only when the test does.
func (w *ttlWorld) client(v relaytest.Variant, n *corepb.Node, short, names string) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, Node: n}).subscribe(short, names)
}

// syncedClient returns a subscribed client that has received and ACKed the current resources.
func (w *ttlWorld) syncedClient(v relaytest.Variant, n *corepb.Node, short, names string) *worldClient {
	c := w.client(v, n, short, names)
	w.settle()
	c.ackPending()
	return c
}

// ttlAndPlain returns a synced client with TTL support and one without.
func (w *ttlWorld) ttlAndPlain(v relaytest.Variant, short, names string) (ttl, plain *worldClient) {
	return w.syncedClient(v, ttlEnvoy, short, names), w.syncedClient(v, plainEnvoy, short, names)
}

// A ttlForm is one way to subscribe to the resources a and b of a type.
type ttlForm struct {
	variant relaytest.Variant
	short   string
	names   string // as in worldClient.subscribe
}

// ttlForms runs a test for each type, and for one type of complete sets and one of partial ones in both kinds of
// subscription.
func ttlForms(t *testing.T, f func(t *testing.T, form ttlForm)) {
	for _, of := range []struct{ short, names string }{
		{"cds", "*"}, {"cds", "a b"}, {"lds", "a b"}, {"eds", "*"}, {"eds", "a b"}, {"rds", "*"},
		{"sds", "a b"}, // a Secret wildcard is not subscribed to at the origin (B.36)
		{"acme", "a b"},
	} {
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			form := ttlForm{v, of.short, of.names}
			t.Run(fmt.Sprintf("%v/%s/%s", v, of.short, strings.ReplaceAll(of.names, " ", "+")),
				func(t *testing.T) { f(t, form) })
		}
	}
}

// fullSet reports whether each response of the form holds all subscribed resources. It does where absence means
// removal, and for Envoy's Secrets, which Envoy drops if a response lacks them (B.17).
func (f ttlForm) fullSet() bool {
	return f.variant == relaytest.SotW && f.short == "sds" || completeFor(f.variant, f.short, f.names)
}

// response formats the expected response when only changed is due and all is the complete set.
func (f ttlForm) response(changed, all string) string {
	switch {
	case f.fullSet():
		changed = all
	case f.variant == relaytest.Delta:
		return f.short + " " + changed
	}
	return f.short + " {" + changed + "}"
}

// removal formats the expected responses when a resource is removed and remaining stay subscribed. It returns none
// where SotW has no removals.
func (f ttlForm) removal(removed, remaining string) []string {
	switch {
	case f.variant == relaytest.Delta:
		return []string{f.short + " -" + removed}
	case completeFor(f.variant, f.short, f.names):
		return []string{f.short + " {" + remaining + "}"}
	default:
		return nil
	}
}

// heartbeat formats the expected response to a renewed TTL.
func (f ttlForm) heartbeat(name, full, all string) string {
	if f.variant == relaytest.Delta {
		return f.short + " " + name + "~" + full[strings.IndexByte(full, '('):]
	}
	return f.response(full, all)
}
