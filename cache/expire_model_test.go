package cache

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestD4_RandomExpiryFollowsTheModel compares both sets with a model in which each resource has content, a version and a deadline, and
// compares the renewals with those that a reader at any position must be sent.
func TestD4_RandomExpiryFollowsTheModel(t *testing.T) {
	type held struct {
		version, content string
		deadline         time.Time
	}
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			what, name, version string
			kind                Kind
			ttl                 int
		}
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			return step{
				what:    rapid.SampledFrom([]string{"put", "put", "heartbeat", "heartbeat", "sleep", "remove"}).Draw(t, "what"),
				name:    rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"),
				version: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"),
				kind:    Kind(rapid.IntRange(0, 1).Draw(t, "kind")),
				ttl:     rapid.IntRange(0, 5).Draw(t, "ttl"),
			}
		}), 1, 60).Draw(rt, "steps")
		var failures []string
		synctest.Test(t, func(t *testing.T) {
			o := newTimedOrigin(t)
			o.watch.SubscribeAll(acme)
			o.subscribe(o.watch, "a", "b")
			model := [2]map[string]held{{}, {}}
			sent := [2]map[string]time.Time{{}, {}} // the deadlines that a reader was sent
			var at [2]Seq
			for i, s := range steps {
				ttl := time.Duration(s.ttl) * time.Second
				deadline := time.Time{}
				if ttl > 0 {
					deadline = time.Now().Add(ttl)
				}
				switch s.what {
				case "put": // the version is the content
					o.putTTL(s.kind, s.name, s.version, s.version, ttl)
					model[s.kind][s.name] = held{s.version, s.version, deadline}
				case "heartbeat":
					if ttl == 0 {
						continue
					}
					o.heartbeat(s.kind, s.name, s.version, ttl)
					if h, ok := model[s.kind][s.name]; ok && h.version == s.version {
						h.deadline = deadline
						model[s.kind][s.name] = h
					}
				case "remove":
					o.remove(s.kind, s.name)
					delete(model[s.kind], s.name)
				case "sleep":
					o.sleep(ttl + time.Millisecond)
				}
				for kind := range model {
					maps.DeleteFunc(model[kind],
						func(_ string, h held) bool { return !h.deadline.IsZero() && !time.Now().Before(h.deadline) })
				}
				o.Expire(time.Now())
				typ := o.typ()
				for kind, set := range []*Set{&typ.Wildcard, &typ.ByName} {
					for e := range set.Since(at[kind]) {
						sent[kind][e.Name.String()] = e.Deadline()
					}
					for e := range set.RenewedSince(at[kind]) {
						sent[kind][e.Name.String()] = e.Deadline()
					}
					at[kind] = o.view.Generation().Seq
					for _, name := range []string{"a", "b"} {
						h, present := model[kind][name]
						e := set.Get(o.name(name))
						switch {
						case e.Present() != present:
							failures = append(failures,
								fmt.Sprintf("step %d %+v: set %d: %s present: %t, want %t", i, s, kind, name, e.Present(), present))
						case present && (contentOf(e) != h.content || !e.Deadline().Equal(h.deadline)):
							failures = append(failures,
								fmt.Sprintf("step %d %+v: set %d: %s is %q until %v, want %+v", i, s, kind, name,
									contentOf(e), e.Deadline(), h))
						case present && !sent[kind][name].Equal(h.deadline):
							failures = append(failures,
								fmt.Sprintf("step %d %+v: set %d: reader was sent the deadline %v of %s, want %v", i, s, kind,
									sent[kind][name], name, h.deadline))
						}
					}
				}
			}
		})
		if len(failures) > 0 {
			rt.Fatalf("%v", failures)
		}
	})
}

// TestR107_CopiesKeepTheirTime: a copied resource has the deadline of the original. A resource that has expired in the
// original is not copied as absent.
func TestR107_CopiesKeepTheirTime(t *testing.T) {
	withClock(t, func(t *testing.T, from *timedOrigin, kind Kind) {
		to := &timedOrigin{origin: newOrigin(t, Config{})}
		to.watch = to.view.Watch()
		to.subscribe(to.watch, "a")
		follow := func() { to.Copy(kind, from.view.Generation(), acme, []*Name{from.name("a")}) }
		follow()
		to.wantVisible("no entry", kind, "a", "")
		from.putTTL(kind, "a", "1", "x", time.Minute)
		from.sleep(40 * time.Second)
		follow()
		e := []*Set{&to.typ().Wildcard, &to.typ().ByName}[kind].Get(to.name("a"))
		if got := e.RemainingTTL(time.Now()); got != 20*time.Second {
			t.Errorf("copied: expires in %v, want 20s", got)
		}
		woken(to.watch)
		from.heartbeat(kind, "a", "1", time.Minute)
		follow()
		to.wantExpiry("renewed", kind, "a", "x", time.Minute)
		from.sleep(0)
		seq := to.view.Generation().Seq
		if follow(); to.view.Generation().Seq != seq {
			t.Error("expiry of the original changed the copy, which had expired")
		}
		from.putTTL(kind, "a", "1", "x", time.Hour)
		follow()
		to.wantVisible("added again", kind, "a", "x")
		from.sleep(time.Hour)
		follow()
		to.wantVisible("expired in the original first", kind, "a", "-")
	})
}
