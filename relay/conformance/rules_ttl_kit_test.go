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

// A ttlWorld is an world whose resources may expire.
type ttlWorld struct{ *world }

// ttlBubble runs f in a world in which the relay knows all types already.
func ttlBubble(t *testing.T, env []string, f func(w *ttlWorld)) {
	t.Helper()
	worldBubble(t, env, func(w *world) { f(&ttlWorld{w}) })
}

// give has the origin set resources at once. The version is that of the revision.
func (w *ttlWorld) set(resources ...string) {
	w.t.Helper()
	w.origin.Apply(func(tx *relaytest.Tx) {
		for _, text := range resources {
			tx.SetRaw(w.resource(text))
		}
	})
	synctest.Wait()
}

// resource returns what "cds a@1 1m" means.
func (w *ttlWorld) resource(text string) (typeURL string, r *discoverypb.Resource) {
	c := w.parse(text)
	return typeURLs[c.short], w.world.resource(c)
}

// beat has the origin say that resources live on.
func (w *ttlWorld) heartbeat(short string, names ...string) {
	w.origin.Heartbeat(typeURLs[short], names...)
	synctest.Wait()
}

// Clients by what they understand.
var (
	ttlEnvoy   = relaytest.WithFeatures(relaytest.EnvoyNode("ttl"), relaytest.FeatureTTL, relaytest.FeatureWrapper)
	plainEnvoy = relaytest.EnvoyNode("plain")
)

// client returns a client by hand that has subscribed.
func (w *ttlWorld) client(v relaytest.Variant, n *corepb.Node, short, names string) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, Node: n}).subscribe(short, names)
}

// follow returns a client that has subscribed, and has accepted all that there is.
func (w *ttlWorld) syncedClient(v relaytest.Variant, n *corepb.Node, short, names string) *worldClient {
	c := w.client(v, n, short, names)
	w.settle()
	c.ackPending()
	return c
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
func (f ttlForm) fullSet() bool {
	return f.variant == relaytest.SotW && f.short == "sds" || completeFor(f.variant, f.short, f.names)
}

// response is how a response is written in which only changed is due, of a set that is
// then all.
func (f ttlForm) response(changed, all string) string {
	switch {
	case f.fullSet():
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
func (f ttlForm) heartbeat(name, full, all string) string {
	if f.variant == relaytest.Delta {
		return f.short + " " + name + "~" + full[strings.IndexByte(full, '('):]
	}
	return f.response(full, all)
}
