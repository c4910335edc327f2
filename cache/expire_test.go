package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"
)

// A timedOrigin sends resources with TTLs, in a synctest bubble.
type timedOrigin struct {
	*origin
	watch *Watch
	next  time.Time // last result of Expire
}

func newTimedOrigin(t tester, names ...string) *timedOrigin {
	o, watch := newSubscribed(t, names...)
	return &timedOrigin{origin: o, watch: watch}
}

// withClock runs a test of both sets, each in a synctest bubble, in which a stream subscribes to the wildcard and to
// the names a and b.
func withClock(t *testing.T, test func(t *testing.T, o *timedOrigin, kind Kind)) {
	t.Helper()
	for _, kind := range []Kind{Wildcard, ByName} {
		t.Run([...]string{"members", "named"}[kind], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTimedOrigin(t)
				o.watch.SubscribeAll(acme)
				o.subscribe(o.watch, "a", "b")
				test(t, o, kind)
			})
		})
	}
}

// putTTL has the origin send a resource with a TTL; zero means none.
func (o *timedOrigin) putTTL(kind Kind, name, version, content string, ttl time.Duration, aliases ...string) Change {
	o.Helper()
	r := &discoverypb.Resource{Name: name, Version: version, Aliases: aliases,
		Resource: &anypb.Any{TypeUrl: acme, Value: []byte(content)}}
	if ttl > 0 {
		r.Ttl = durationpb.New(ttl)
	}
	return o.Apply(kind, updateOf(acme, decoded(o, acme, r)))
}

// heartbeat has the origin send a heartbeat.
func (o *timedOrigin) heartbeat(kind Kind, name, version string, ttl time.Duration) Change {
	o.Helper()
	r := &discoverypb.Resource{Name: name, Version: version, Ttl: durationpb.New(ttl)}
	return o.Apply(kind, updateOf(acme, decoded(o, acme, r)))
}

// sleep advances the time, and calls Expire whenever it is due.
func (o *timedOrigin) sleep(d time.Duration) {
	for end := time.Now().Add(d); ; {
		o.next = o.Expire(time.Now())
		if o.next.IsZero() || o.next.After(end) {
			time.Sleep(time.Until(end)) // in bubble time
			return
		}
		time.Sleep(time.Until(o.next))
	}
}

// visible returns the content of a name in a set: "-" if it is absent, "" if there is no entry.
func (o *timedOrigin) visible(kind Kind, name string) string {
	t := o.typ()
	set := &t.Wildcard
	if kind == ByName {
		set = &t.ByName
	}
	if !o.hasName(name) {
		return ""
	}
	return contentOf(set.Get(o.name(name)))
}

func (o *timedOrigin) wantVisible(what string, kind Kind, name, want string) {
	o.Helper()
	if got := o.visible(kind, name); got != want {
		o.Errorf("%s: %s shows %q, want %q", what, name, got, want)
	}
}

// wantExpiry fails the test unless a resource expires after this time and not before.
func (o *timedOrigin) wantExpiry(what string, kind Kind, name, content string, after time.Duration) {
	o.Helper()
	o.sleep(after - 1)
	o.wantVisible(what+", before the deadline", kind, name, content)
	o.sleep(1)
	o.wantVisible(what+", at the deadline", kind, name, "-")
}

// TestR107_Expires: a resource is removed when its TTL ends and not before, for all subscribers, with and without a
// connection.
func TestR107_Expires(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		for _, up := range []bool{true, false} {
			o.SetConnected(true)
			o.putTTL(kind, "a", "1", "x", time.Minute)
			o.putTTL(kind, "b", "1", "y", 0)
			o.SetConnected(up)
			woken(o.watch)
			o.sleep(time.Minute - 1)
			o.wantVisible("before the deadline", kind, "a", "x")
			if woken(o.watch) {
				t.Error("wake-up before the expiry")
			}
			o.sleep(1)
			o.wantVisible("at the deadline", kind, "a", "-")
			o.wantVisible("without a TTL", kind, "b", "y")
			if !woken(o.watch) {
				t.Error("expiry caused no wake-up")
			}
			if n := o.typ().Wildcard.TTLs() + o.typ().ByName.TTLs(); n != 0 {
				t.Errorf("got %d resources that expire, want 0", n)
			}
			if e, _ := o.typ().Lookup(o.name("a")); kind == ByName && (!e.Expired || !o.view.Generation().Absent(e)) {
				t.Errorf("origin up %t: got expired %t and absent %t, want both", up, e.Expired, o.view.Generation().Absent(e))
			}
			if o.sleep(time.Hour); !o.next.IsZero() {
				t.Errorf("no resource expires, but the next deadline is at %v", o.next)
			}
			o.wantVisible("an hour later", kind, "b", "y")
		}
	})
}

// TestR107_RemovedBeforeItsTime: a resource that the origin has removed, or whose name was forgotten, does not expire.
func TestR107_RemovedBeforeItsTime(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		o.putTTL(kind, "a", "1", "x", time.Minute)
		o.remove(kind, "a")
		o.wantVisible("removed", kind, "a", "-")
		e, _ := o.typ().Lookup(o.name("a"))
		if e != nil && e.Expired {
			t.Error("removed resource counts as expired")
		}
		woken(o.watch)
		seq := o.view.Generation().Seq
		o.sleep(time.Hour)
		if woken(o.watch) || o.view.Generation().Seq != seq {
			t.Error("a removed resource expired")
		}
		o.putTTL(kind, "a", "2", "y", 0)
		o.sleep(time.Hour)
		o.wantVisible("added again without a TTL", kind, "a", "y")
	})
}

// TestR107_ForgottenNamesDoNotExpire: forgotten names and wildcard sets leave no effective deadlines, even if their ids
// are reused.
func TestR107_ForgottenNamesDoNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimedOrigin(t)
		wc := o.watch.SubscribeAll(acme)
		names := o.subscribe(o.watch, "a")
		o.putTTL(Wildcard, "m", "1", "x", time.Minute)
		o.putTTL(ByName, "a", "1", "x", time.Minute)
		o.watch.UnsubscribeAll(wc)
		o.watch.Unsubscribe(acme, names)
		o.TakeDemand()
		o.Forget(acme, names)
		o.ForgetWildcard(acme)
		o.subscribe(o.watch, "b", "c")
		o.putTTL(ByName, "b", "1", "y", 0)
		o.putTTL(ByName, "c", "1", "y", 0)
		o.sleep(time.Hour)
		o.wantVisible("b", ByName, "b", "y")
		o.wantVisible("c", ByName, "c", "y")
	})
}

// TestR107_Aliases: the TTL applies to subscribers by an alias, too.
func TestR107_Aliases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimedOrigin(t, "alias", "further")
		o.putTTL(ByName, "real", "1", "x", time.Minute, "alias", "further")
		o.sleep(40 * time.Second)
		if change := o.heartbeat(ByName, "real", "1", time.Minute); change.Renewed != 2 {
			t.Errorf("got %+v, want both aliases renewed", change)
		}
		o.wantExpiry("renewed", ByName, "alias", "x", time.Minute)
		for _, alias := range []string{"alias", "further"} {
			o.wantVisible("expired", ByName, alias, "-")
			if e, _ := o.typ().Lookup(o.name(alias)); !e.Expired || e.Prior == nil || e.Prior.Name != "real" {
				t.Errorf("expired: got %+v", e)
			}
		}
		o.putTTL(ByName, "real", "1", "x", 0, "alias", "further")
		o.sleep(time.Hour)
		o.wantVisible("added again", ByName, "alias", "x")
	})
}

// TestR107_NewSubscriberCausesRequest: each new subscriber to an expired name causes one request, even a client that
// subscribed to it before.
func TestR107_NewSubscriberCausesRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &timedOrigin{origin: newOrigin(t, Config{})}
		first, second := o.view.Watch(), o.view.Watch()
		n := o.subscribe(first, "a")[0]
		o.Asked([]*Name{n}, time.Now())
		o.putTTL(ByName, "a", "1", "x", time.Minute)
		o.subscribe(second, "a")
		o.sleep(time.Minute)
		for subscriber, w := range map[string]*Watch{"new stream": o.view.Watch(), "earlier subscriber": first} {
			w.Subscribe(acme, []string{"a"})
			if !n.Asked().IsZero() {
				t.Errorf("%s: response from before the expiry still counts", subscriber)
			}
			if got := o.TakeDemand(); len(got) != 1 || got[0].Name != n || !got[0].Wanted || !got[0].Refetch {
				t.Errorf("%s: got the demand %+v, want a new request for a", subscriber, got)
			}
			o.Asked([]*Name{n}, time.Now())
			w.Subscribe(acme, []string{"a"})
			second.Subscribe(acme, []string{"a"})
			if got := o.TakeDemand(); len(got) != 0 {
				t.Errorf("%s: got a second demand %+v", subscriber, got)
			}
			o.sleep(time.Minute)
			o.putTTL(ByName, "a", "1", "x", time.Minute)
			o.view.Watch().Subscribe(acme, []string{"a"})
			if got := o.TakeDemand(); len(got) != 0 {
				t.Errorf("%s: present again: demand %+v", subscriber, got)
			}
			o.sleep(time.Minute)
		}
		o.remove(ByName, "a")
		e, _ := o.typ().Lookup(n)
		if e.Expired || !o.view.Generation().Absent(e) {
			t.Errorf("after the response: expired %t and absent %t", e.Expired, o.view.Generation().Absent(e))
		}
		o.view.Watch().Subscribe(acme, []string{"a"})
		if got := o.TakeDemand(); len(got) != 0 {
			t.Errorf("after the response: demand %+v", got)
		}
	})
}

// TestR107_HeartbeatsOfOtherSourcesAreIgnored: a heartbeat is valid only from the origin of the name.
func TestR107_HeartbeatsOfOtherSourcesAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, writers := NewRouted(Config{Sources: 2, Route: func(_, name string) int { return len(name) % 2 }})
		for _, w := range writers {
			w.SetConnected(true)
		}
		own := &timedOrigin{origin: &origin{tester: t, Writer: writers[1], view: view, typeURL: acme}}
		foreign := &timedOrigin{origin: &origin{tester: t, Writer: writers[0], view: view, typeURL: acme}}
		own.subscribe(view.Watch(), "a")
		own.putTTL(ByName, "a", "1", "x", time.Minute)
		foreign.heartbeat(ByName, "a", "1", time.Hour)
		own.sleep(time.Minute)
		own.wantVisible("TTL of its origin ended", ByName, "a", "-")
		foreign.heartbeat(ByName, "a", "1", time.Hour)
		if got := append(foreign.TakeDemand(), own.TakeDemand()...); len(got) != 0 {
			t.Errorf("heartbeat of the other origin caused the demand %+v", got)
		}
	})
}

// TestR105_OtherSetHasItsOwnDeadline: one set replaces the other for subscribers to a name. They are sent the new
// deadline but not the equal content, and the entry accepts the versions of both sets.
func TestR105_OtherSetHasItsOwnDeadline(t *testing.T) {
	const short, long = time.Minute, time.Hour
	tests := []struct {
		what     string
		do       func(o *timedOrigin)
		renewed  bool
		life     time.Duration
		versions int
	}{
		{"named resource after the member", func(o *timedOrigin) {
			o.putTTL(Wildcard, "a", "1", "x", short)
			o.putTTL(ByName, "a", "1", "x", long)
		}, true, long, 1},
		{"another version", func(o *timedOrigin) {
			o.putTTL(Wildcard, "a", "1", "x", short)
			o.putTTL(ByName, "a", "2", "x", long)
		}, true, long, 2},
		{"member after the named resource", func(o *timedOrigin) {
			o.putTTL(ByName, "a", "1", "x", short)
			o.putTTL(Wildcard, "a", "2", "x", 0)
		}, false, short, 1},
		{"a renewal that may not be read", func(o *timedOrigin) {
			o.putTTL(Wildcard, "a", "1", "x", long)
			o.putTTL(Wildcard, "a", "1", "x", short)
			o.putTTL(ByName, "a", "1", "x", short)
		}, true, short, 1},
		{"equal deadlines", func(o *timedOrigin) {
			o.putTTL(ByName, "a", "1", "x", short)
			o.putTTL(Wildcard, "a", "1", "x", short)
		}, false, short, 1},
		{"no deadlines", func(o *timedOrigin) {
			o.putTTL(Wildcard, "a", "1", "x", 0)
			o.putTTL(ByName, "a", "2", "x", 0)
		}, false, 0, 2},
		{"the member expires", func(o *timedOrigin) {
			o.putTTL(ByName, "a", "1", "x", long)
			o.putTTL(Wildcard, "a", "2", "x", short)
			o.sleep(short)
		}, false, long - short, 1},
		{"the named resource expires", func(o *timedOrigin) {
			o.putTTL(Wildcard, "a", "1", "x", long)
			o.putTTL(ByName, "a", "2", "x", short)
			o.sleep(short)
		}, true, long - short, 2},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			o := newTimedOrigin(t, "a")
			began := Seq(1) // position of the first entry
			tt.do(o)
			e, since := o.typ().Lookup(o.name("a"))
			if !e.Present() || since != began {
				t.Fatalf("%s: got %q since %d, want x since %d", tt.what, contentOf(e), since, began)
			}
			if (e.Renewed() > 0) != tt.renewed || e.RemainingTTL(time.Now()) != tt.life || e.Versions() != tt.versions {
				t.Errorf("%s: got renewed at %d, expires in %v, %d versions; want renewed %t, %v, %d", tt.what,
					e.Renewed(), e.RemainingTTL(time.Now()), e.Versions(), tt.renewed, tt.life, tt.versions)
			}
			if !woken(o.watch) {
				t.Errorf("%s: no wake-up", tt.what)
			}
		})
	}
}

// TestR107_ReplacementOfExpiredIsSent to subscribers of the name, also if the resource is added again at once and is
// still shadowed.
func TestR107_ReplacementOfExpiredIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimedOrigin(t, "a")
		o.putTTL(ByName, "a", "1", "x", 0)
		o.putTTL(Wildcard, "a", "1", "y", 0)
		o.remove(ByName, "a")
		o.putTTL(ByName, "a", "1", "x", time.Minute)
		expired := o.view.Generation().Seq
		o.sleep(time.Minute)
		o.putTTL(ByName, "a", "1", "x", 0) // may be older than the entry of the wildcard set
		if e, since := o.typ().Lookup(o.name("a")); contentOf(e) != "y" || since <= expired {
			t.Errorf("readers see %q since %d, want y since the expiry, after %d", contentOf(e), since, expired)
		}
	})
}

// TestR105_RandomReadersSeeTheDeadline applies random steps to both sets, with a reader of a name that reads at random
// times. After each read, it must know the deadline of the content.
func TestR105_RandomReadersSeeTheDeadline(t *testing.T) {
	type step struct {
		what, content string
		kind          Kind
		ttl           int
	}
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			return step{
				what:    rapid.SampledFrom([]string{"put", "put", "heartbeat", "sleep", "remove", "read", "read"}).Draw(t, "what"),
				content: rapid.SampledFrom([]string{"x", "x", "y"}).Draw(t, "content"),
				kind:    Kind(rapid.IntRange(0, 1).Draw(t, "kind")),
				ttl:     rapid.IntRange(0, 3).Draw(t, "ttl"),
			}
		}), 1, 30).Draw(rt, "steps")
		failed := ""
		synctest.Test(t, func(t *testing.T) {
			o := &timedOrigin{origin: newOrigin(t, Config{})}
			n := o.subscribe(o.view.Watch(), "a")[0]
			var sent, at Seq
			var until time.Time
			for i, s := range steps {
				ttl := time.Duration(s.ttl) * time.Second
				switch s.what {
				case "put":
					o.putTTL(s.kind, "a", s.content, s.content, ttl)
				case "heartbeat":
					if ttl > 0 {
						o.heartbeat(s.kind, "a", s.content, ttl)
					}
				case "sleep":
					o.sleep(ttl)
				case "remove":
					o.remove(s.kind, "a")
				}
				if o.Expire(time.Now()); s.what != "read" {
					continue
				}
				typ := o.typ()
				e, seq := typ.Lookup(n)
				if e != nil && seq > sent {
					sent, until = seq, e.Deadline()
				}
				for _, set := range []*Set{&typ.Wildcard, &typ.ByName} {
					for renewed := range set.RenewedSince(at) {
						if renewed == e {
							until = e.Deadline()
						}
					}
				}
				if at = o.view.Generation().Seq; e.Present() && !until.Equal(e.Deadline()) {
					failed = fmt.Sprintf("step %d: reader was sent the deadline %v, want %v", i, until, e.Deadline())
				}
			}
		})
		if failed != "" {
			rt.Fatal(failed)
		}
	})
}
