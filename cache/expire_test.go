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

	"github.com/xdstender/tender/cache/wire"
)

// A timed origin gives resources times to live, in a synctest bubble.
type timed struct {
	*origin
	watch *Watch
	next  time.Time // that Expire returned last
}

func newTimed(t tester, names ...string) *timed {
	o, watch := watched(t, names...)
	return &timed{origin: o, watch: watch}
}

// inTime runs a test of both sets, each in a bubble, in which a stream wants the
// members and the names a and b.
func inTime(t *testing.T, test func(t *testing.T, o *timed, kind Kind)) {
	t.Helper()
	for _, kind := range []Kind{Wildcard, ByName} {
		t.Run([...]string{"members", "named"}[kind], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTimed(t)
				o.watch.SubscribeAll(acme)
				o.want(o.watch, "a", "b")
				test(t, o, kind)
			})
		})
	}
}

// give has the origin send a resource that lives for a while; zero is without end.
func (o *timed) give(kind Kind, name, version, content string, ttl time.Duration, aliases ...string) Change {
	o.Helper()
	r := &discoverypb.Resource{Name: name, Version: version, Aliases: aliases, Resource: &anypb.Any{TypeUrl: acme, Value: []byte(content)}}
	if ttl > 0 {
		r.Ttl = durationpb.New(ttl)
	}
	return o.Apply(kind, wire.Update{TypeURL: acme, Resources: []*wire.Resource{decoded(o, acme, r)}})
}

// beat has the origin send a heartbeat.
func (o *timed) beat(kind Kind, name, version string, ttl time.Duration) Change {
	o.Helper()
	r := &discoverypb.Resource{Name: name, Version: version, Ttl: durationpb.New(ttl)}
	return o.Apply(kind, wire.Update{TypeURL: acme, Resources: []*wire.Resource{decoded(o, acme, r)}})
}

// pass lets time pass, in which the writer does what it is time for and nothing else.
func (o *timed) pass(d time.Duration) {
	for end := time.Now().Add(d); ; {
		o.next = o.Expire(time.Now())
		if o.next.IsZero() || o.next.After(end) {
			time.Sleep(time.Until(end)) // of the bubble
			return
		}
		time.Sleep(time.Until(o.next))
	}
}

// shown returns what a set shows of a name: its content, "-" if it is gone, and
// "" if nothing is known.
func (o *timed) shown(kind Kind, name string) string {
	t := o.typ()
	set := &t.Wildcard
	if kind == ByName {
		set = &t.ByName
	}
	if !o.knows(name) {
		return ""
	}
	return contentOf(set.Get(o.name(name)))
}

func (o *timed) wantShown(what string, kind Kind, name, want string) {
	o.Helper()
	if got := o.shown(kind, name); got != want {
		o.Errorf("%s: %s shows %q, want %q", what, name, got, want)
	}
}

// TestR107_Expires: a resource is gone when its time is up, not before, for whoever
// watches, with the origin and without.
func TestR107_Expires(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		for _, up := range []bool{true, false} {
			o.SetConnected(true)
			o.give(kind, "a", "1", "x", time.Minute)
			o.give(kind, "b", "1", "y", 0)
			o.SetConnected(up)
			awake(o.watch)
			o.pass(time.Minute - 1)
			o.wantShown("before its time", kind, "a", "x")
			if awake(o.watch) {
				t.Error("woken before anything expired")
			}
			o.pass(1)
			o.wantShown("at its time", kind, "a", "-")
			o.wantShown("without a TTL", kind, "b", "y")
			if !awake(o.watch) {
				t.Error("nobody was woken when the resource expired")
			}
			if n := o.typ().Wildcard.TTLs() + o.typ().ByName.TTLs(); n != 0 {
				t.Errorf("got %d resources that expire, want 0", n)
			}
			if e, _ := o.typ().Lookup(o.name("a")); kind == ByName && (!e.Expired || !o.view.Generation().Absent(e)) {
				t.Errorf("origin up %t: got expired %t and absent %t, want both", up, e.Expired, o.view.Generation().Absent(e))
			}
			if o.pass(time.Hour); !o.next.IsZero() {
				t.Errorf("nothing expires any more, and yet something is due at %v", o.next)
			}
			o.wantShown("an hour later", kind, "b", "y")
		}
	})
}

// TestR107_RemovedBeforeItsTime: what the origin removes, or what is forgotten, does
// not expire as well.
func TestR107_RemovedBeforeItsTime(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		o.give(kind, "a", "1", "x", time.Minute)
		o.remove(kind, "a")
		o.wantShown("removed", kind, "a", "-")
		e, _ := o.typ().Lookup(o.name("a"))
		if e != nil && e.Expired {
			t.Error("what was removed counts as expired")
		}
		awake(o.watch)
		seq := o.view.Generation().Seq
		o.pass(time.Hour)
		if awake(o.watch) || o.view.Generation().Seq != seq {
			t.Error("a removed resource expired")
		}
		o.give(kind, "a", "2", "y", 0)
		o.pass(time.Hour)
		o.wantShown("back for good", kind, "a", "y")
	})
}

// TestR107_ForgottenNamesDoNotExpire: nothing is left to be done for names and members
// that were given up, whoever has their number then.
func TestR107_ForgottenNamesDoNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimed(t)
		wc := o.watch.SubscribeAll(acme)
		names := o.want(o.watch, "a")
		o.give(Wildcard, "m", "1", "x", time.Minute)
		o.give(ByName, "a", "1", "x", time.Minute)
		o.watch.UnsubscribeAll(wc)
		o.watch.Unsubscribe(acme, names)
		o.TakeDemand()
		o.Forget(acme, names)
		o.ForgetWildcard(acme)
		o.want(o.watch, "b", "c")
		o.give(ByName, "b", "1", "y", 0)
		o.give(ByName, "c", "1", "y", 0)
		o.pass(time.Hour)
		o.wantShown("b", ByName, "b", "y")
		o.wantShown("c", ByName, "c", "y")
	})
}

// TestR107_Aliases: who subscribed by an alias sees the resource's time as well.
func TestR107_Aliases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimed(t, "alias", "further")
		o.give(ByName, "real", "1", "x", time.Minute, "alias", "further")
		o.pass(40 * time.Second)
		if change := o.beat(ByName, "real", "1", time.Minute); change.Renewed != 2 {
			t.Errorf("got %+v, want both aliases renewed", change)
		}
		o.pass(time.Minute - 1)
		o.wantShown("renewed", ByName, "alias", "x")
		o.pass(1)
		for _, alias := range []string{"alias", "further"} {
			o.wantShown("expired", ByName, alias, "-")
			if e, _ := o.typ().Lookup(o.name(alias)); !e.Expired || e.Prior == nil || e.Prior.Name != "real" {
				t.Errorf("expired: got %+v", e)
			}
		}
		o.give(ByName, "real", "1", "x", 0, "alias", "further")
		o.pass(time.Hour)
		o.wantShown("back", ByName, "alias", "x")
	})
}

// TestR107_NewSubscriberCausesRequest: whoever asks for a name that has expired has the
// origin asked again, be it one who asked before, and once only.
func TestR107_NewSubscriberCausesRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &timed{origin: newOrigin(t, Config{})}
		first, second := o.view.Watch(), o.view.Watch()
		n := o.want(first, "a")[0]
		o.Asked([]*Name{n}, time.Now())
		o.give(ByName, "a", "1", "x", time.Minute)
		o.want(second, "a")
		o.pass(time.Minute)
		for who, w := range map[string]*Watch{"a newcomer": o.view.Watch(), "one who asked before": first} {
			w.Subscribe(acme, []string{"a"})
			if !n.Asked().IsZero() {
				t.Errorf("%s: the answer that was given before still counts", who)
			}
			if got := o.TakeDemand(); len(got) != 1 || got[0].Name != n || !got[0].Wanted || !got[0].Refetch {
				t.Errorf("%s: got the demand %+v, want to ask again for a", who, got)
			}
			o.Asked([]*Name{n}, time.Now())
			w.Subscribe(acme, []string{"a"})
			second.Subscribe(acme, []string{"a"})
			if got := o.TakeDemand(); len(got) != 0 {
				t.Errorf("%s: got the demand %+v once more", who, got)
			}
			o.pass(time.Minute)
			o.give(ByName, "a", "1", "x", time.Minute)
			o.view.Watch().Subscribe(acme, []string{"a"})
			if got := o.TakeDemand(); len(got) != 0 {
				t.Errorf("%s: it is here again, and got the demand %+v", who, got)
			}
			o.pass(time.Minute)
		}
		o.remove(ByName, "a")
		e, _ := o.typ().Lookup(n)
		if e.Expired || !o.view.Generation().Absent(e) {
			t.Errorf("the origin has answered: got expired %t and absent %t", e.Expired, o.view.Generation().Absent(e))
		}
		o.view.Watch().Subscribe(acme, []string{"a"})
		if got := o.TakeDemand(); len(got) != 0 {
			t.Errorf("the origin has answered, and got the demand %+v", got)
		}
	})
}

// TestR107_OtherSourcesHaveNoSay: a heartbeat counts only from the origin that answers
// for the name.
func TestR107_OtherSourcesHaveNoSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, writers := NewRouted(Config{Sources: 2, Route: func(_, name string) int { return len(name) % 2 }})
		for _, w := range writers {
			w.SetConnected(true)
		}
		own := &timed{origin: &origin{tester: t, Writer: writers[1], view: view, typeURL: acme}}
		foreign := &timed{origin: &origin{tester: t, Writer: writers[0], view: view, typeURL: acme}}
		own.want(view.Watch(), "a")
		own.give(ByName, "a", "1", "x", time.Minute)
		foreign.beat(ByName, "a", "1", time.Hour)
		own.pass(time.Minute)
		own.wantShown("its origin's TTL is over", ByName, "a", "-")
		foreign.beat(ByName, "a", "1", time.Hour)
		if got := append(foreign.TakeDemand(), own.TakeDemand()...); len(got) != 0 {
			t.Errorf("the other origin had something asked for: %+v", got)
		}
	})
}

// TestR105_OtherSetHasItsOwnDeadline: where one of the two sets takes the place of the
// other for those who named a resource, they are not told of equal content, but of how
// long it lives, and nobody takes it for one version what they have as two.
func TestR105_OtherSetHasItsOwnDeadline(t *testing.T) {
	const short, long = time.Minute, time.Hour
	tests := []struct {
		what     string
		do       func(o *timed)
		renewed  bool
		life     time.Duration
		versions int
	}{
		{"named after a member", func(o *timed) { o.give(Wildcard, "a", "1", "x", short); o.give(ByName, "a", "1", "x", long) }, true, long, 1},
		{"in another version", func(o *timed) { o.give(Wildcard, "a", "1", "x", short); o.give(ByName, "a", "2", "x", long) }, true, long, 2},
		{"member after the named", func(o *timed) { o.give(ByName, "a", "1", "x", short); o.give(Wildcard, "a", "2", "x", 0) }, false, short, 1},
		{"a renewal that may not be read", func(o *timed) {
			o.give(Wildcard, "a", "1", "x", long)
			o.give(Wildcard, "a", "1", "x", short)
			o.give(ByName, "a", "1", "x", short)
		}, true, short, 1},
		{"equal times", func(o *timed) { o.give(ByName, "a", "1", "x", short); o.give(Wildcard, "a", "1", "x", short) }, false, short, 1},
		{"none has a time", func(o *timed) { o.give(Wildcard, "a", "1", "x", 0); o.give(ByName, "a", "2", "x", 0) }, false, 0, 2},
		{"the member expires", func(o *timed) {
			o.give(ByName, "a", "1", "x", long)
			o.give(Wildcard, "a", "2", "x", short)
			o.pass(short)
		}, false, long - short, 1},
		{"the named expires", func(o *timed) {
			o.give(Wildcard, "a", "1", "x", long)
			o.give(ByName, "a", "2", "x", short)
			o.pass(short)
		}, true, long - short, 2},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			o := newTimed(t, "a")
			began := Seq(1) // of the first entry
			tt.do(o)
			e, since := o.typ().Lookup(o.name("a"))
			if !e.Present() || since != began {
				t.Fatalf("%s: got %q since %d, want x since %d", tt.what, contentOf(e), since, began)
			}
			if (e.Renewed() > 0) != tt.renewed || e.RemainingTTL(time.Now()) != tt.life || e.Versions() != tt.versions {
				t.Errorf("%s: got renewed at %d, %v to live, %d versions; want renewed %t, %v, %d", tt.what,
					e.Renewed(), e.RemainingTTL(time.Now()), e.Versions(), tt.renewed, tt.life, tt.versions)
			}
			if !awake(o.watch) {
				t.Errorf("%s: nobody was woken", tt.what)
			}
		})
	}
}

// TestR107_ReplacementOfExpiredIsSent: for who named a resource, also if it comes again at once and is not shown yet.
func TestR107_ReplacementOfExpiredIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimed(t, "a")
		o.give(ByName, "a", "1", "x", 0)
		o.give(Wildcard, "a", "1", "y", 0)
		o.remove(ByName, "a")
		o.give(ByName, "a", "1", "x", time.Minute)
		told := o.view.Generation().Seq
		o.pass(time.Minute)
		o.give(ByName, "a", "1", "x", 0) // which may be older than the member
		if e, since := o.typ().Lookup(o.name("a")); contentOf(e) != "y" || since <= told {
			t.Errorf("readers see %q since %d, want y since the other expired, after %d", contentOf(e), since, told)
		}
	})
}

// TestR105_NamedReadersSeeTheDeadline goes through random conversations of both sets with
// one who named a resource and looks now and then: whenever he does, he has been told
// until when lives what he is shown.
func TestR105_NamedReadersSeeTheDeadline(t *testing.T) {
	type step struct {
		what, content string
		kind          Kind
		ttl           int
	}
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			return step{
				what:    rapid.SampledFrom([]string{"give", "give", "beat", "pass", "remove", "look", "look"}).Draw(t, "what"),
				content: rapid.SampledFrom([]string{"x", "x", "y"}).Draw(t, "content"),
				kind:    Kind(rapid.IntRange(0, 1).Draw(t, "kind")),
				ttl:     rapid.IntRange(0, 3).Draw(t, "ttl"),
			}
		}), 1, 30).Draw(rt, "steps")
		failed := ""
		synctest.Test(t, func(t *testing.T) {
			o := &timed{origin: newOrigin(t, Config{})}
			n := o.want(o.view.Watch(), "a")[0]
			var sent, at Seq
			var until time.Time
			for i, s := range steps {
				ttl := time.Duration(s.ttl) * time.Second
				switch s.what {
				case "give":
					o.give(s.kind, "a", s.content, s.content, ttl)
				case "beat":
					if ttl > 0 {
						o.beat(s.kind, "a", s.content, ttl)
					}
				case "pass":
					o.pass(ttl)
				case "remove":
					o.remove(s.kind, "a")
				}
				if o.Expire(time.Now()); s.what != "look" {
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
					failed = fmt.Sprintf("step %d: told that it lives until %v, it does until %v", i, until, e.Deadline())
				}
			}
		})
		if failed != "" {
			rt.Fatal(failed)
		}
	})
}
