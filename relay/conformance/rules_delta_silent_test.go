package conformance_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// silentHolds is what a returning client says it holds.
func silentHolds(names ...string) map[string]string {
	holds := make(map[string]string)
	for _, name := range names {
		holds[name] = "of another relay"
	}
	return holds
}

// silentReturns has a client return that asks for just what it holds.
func silentReturns(r *running, typeURL string, names ...string) *relaytest.Client {
	c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
	holds := silentHolds(names...)
	c.Send(streamDelta(relaytest.EnvoyNode("client"), typeURL, slices.Sorted(maps.Keys(holds)), holds))
	return c
}

// silentRemoved returns which of the names that a client asked for it was told are gone.
func silentRemoved(c *relaytest.Client) (removed []string) {
	synctest.Wait()
	for _, resp := range c.Responses() {
		removed = append(removed, resp.Removed...)
	}
	slices.Sort(removed)
	return removed
}

// A silentStep is what a client has been told is gone after so long.
type silentStep struct {
	after time.Duration
	want  []string
}

func (s silentStep) check(t *testing.T, c *relaytest.Client, since time.Time) {
	t.Helper()
	time.Sleep(s.after - time.Since(since))
	if got := silentRemoved(c); !slices.Equal(got, s.want) {
		t.Errorf("after %v: told that %q are gone, want %q", s.after, got, s.want)
	}
}

// A client returns with a name that no longer exists, to a relay that never heard of it. An origin that has answered for
// other names of the request, and was silent on this one for 15 seconds, does not have it.
func TestH18_SilenceOnANameThatAReturningClientHolds(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{streamCDS, streamEDS, streamRDS, sendAcme} {
		for _, kind := range []string{"silent", "answers"} {
			t.Run(orderShort(typeURL)+" "+kind, func(t *testing.T) {
				streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
					o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = kind == "silent" })
					o.Put(sendThing(typeURL, "a", "first"))
					c, since := silentReturns(start(t, o), typeURL, "a", "gone"), time.Now()
					if kind == "answers" {
						silentStep{time.Second, []string{"gone"}}.check(t, c, since)
						return
					}
					silentStep{14 * time.Second, nil}.check(t, c, since)
					silentStep{17 * time.Second, []string{"gone"}}.check(t, c, since)
					// It stays subscribed, and is told if there is such a resource after all.
					o.Put(sendThing(typeURL, "gone", "back"))
					synctest.Wait()
					if !c.State().Has(typeURL, "a", "gone") {
						t.Errorf("the client has %q, want both", c.State().Names(typeURL))
					}
					silentStep{time.Hour, []string{"gone"}}.check(t, c, since)
				})
			})
		}
	}
}

// If another client of the group has the whole set, a name that the confirmed set lacks is gone.
func TestH18_TheConfirmedWildcardLacksTheName(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{streamCDS, streamLDS} {
		t.Run(orderShort(typeURL), func(t *testing.T) {
			streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
				o.Put(sendThing(typeURL, "a", "first"))
				r := start(t, o)
				c, since := silentReturns(r, typeURL, "gone"), time.Now()
				silentStep{time.Minute, nil}.check(t, c, since) // the origin may be slow
				r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true}).Subscribe(typeURL, "*")
				silentStep{3 * time.Minute, []string{"gone"}}.check(t, c, since)

				late, since := silentReturns(r, typeURL, "never"), time.Now()
				silentStep{9 * time.Second, nil}.check(t, late, since)
				silentStep{11 * time.Second, []string{"never"}}.check(t, late, since)
			})
		})
	}
}

// Silence means nothing where the client does not hold the name, where names are asked for on demand, while the origin
// answers for nothing of the request, and while it is away. Many such names at once look like an origin that lost its
// state.
func TestH18_SilenceThatMeansNothing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		run   func(o *relaytest.Origin, r *running) *relaytest.Client
		steps []silentStep
	}{
		{"does not hold it", func(_ *relaytest.Origin, r *running) *relaytest.Client {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
			c.Send(streamDelta(relaytest.EnvoyNode("client"), streamRDS, []string{"a", "gone"}, silentHolds("a")))
			return c
		}, nil},
		{"asks for it again", func(_ *relaytest.Origin, r *running) *relaytest.Client {
			c := silentReturns(r, streamRDS, "a", "gone")
			c.Send(streamDelta(nil, streamRDS, []string{"gone"}, nil))
			return c
		}, nil},
		{"beside a wildcard", func(_ *relaytest.Origin, r *running) *relaytest.Client {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
			c.Send(streamDelta(relaytest.EnvoyNode("client"), streamCDS, []string{"*", "gone"}, silentHolds("gone")))
			return c
		}, nil},
		{"VHDS", func(_ *relaytest.Origin, r *running) *relaytest.Client {
			return silentReturns(r, relaytest.VirtualHostType, "a", "gone")
		}, nil},
		{"nothing else in the request", func(_ *relaytest.Origin, r *running) *relaytest.Client {
			return silentReturns(r, streamRDS, "gone", "gone too")
		}, nil},
		{"the origin goes", func(o *relaytest.Origin, r *running) *relaytest.Client {
			c := silentReturns(r, streamRDS, "a", "gone")
			synctest.Wait()
			o.Stop()
			return c
		}, nil},
		{"a mass", func(_ *relaytest.Origin, r *running) *relaytest.Client {
			return silentReturns(r, streamRDS, append(sendNames(11), "a")...)
		}, []silentStep{{10 * time.Minute, nil}, {11 * time.Minute, sendNames(11)}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
				for _, typeURL := range []string{streamRDS, streamCDS, relaytest.VirtualHostType} {
					o.Put(sendThing(typeURL, "a", "first"))
				}
				c, since := test.run(o, start(t, o)), time.Now()
				steps := test.steps
				if steps == nil {
					steps = []silentStep{{time.Hour, nil}}
				}
				for _, step := range steps {
					step.check(t, c, since)
				}
			})
		})
	}
}

// go-control-plane says nothing of a name that it never gave to the relay, and a removal to a client that holds it.
func TestH18_GoControlPlane(t *testing.T) {
	t.Parallel()
	planeBubble(t, nil, func(t *testing.T, _ *relaytest.ControlPlane, r *running) {
		c, since := silentReturns(r, streamEDS, "c0", "gone"), time.Now()
		silentStep{14 * time.Second, nil}.check(t, c, since)
		silentStep{17 * time.Second, []string{"gone"}}.check(t, c, since)
	})
}
