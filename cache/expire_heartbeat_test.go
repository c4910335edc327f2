package cache

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// TestR105_TTLChanges: to send a resource again changes how long it lives, either way,
// and ends that it does. None of it changes anything else.
func TestR105_TTLChanges(t *testing.T) {
	tests := []struct {
		what string
		ttls []time.Duration // given 10 s apart, zero is none
		ends time.Duration   // after the first; zero is never
	}{
		{"lengthened", []time.Duration{30 * time.Second, time.Minute}, 70 * time.Second},
		{"shortened", []time.Duration{time.Minute, 15 * time.Second}, 25 * time.Second},
		{"the same again", []time.Duration{30 * time.Second, 30 * time.Second, 30 * time.Second}, 50 * time.Second},
		{"removed", []time.Duration{30 * time.Second, 0}, 0},
		{"given later", []time.Duration{0, 30 * time.Second}, 40 * time.Second},
		{"removed, and given back at once", []time.Duration{time.Minute, 0, 30 * time.Second}, 50 * time.Second},
		{
			"removed, and given back when the first time is over",
			[]time.Duration{15 * time.Second, 0, 0, 0, 30 * time.Second}, 70 * time.Second,
		},
		{"shortened and lengthened", []time.Duration{time.Hour, 20 * time.Second, time.Hour, 20 * time.Second}, 50 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			inTime(t, func(t *testing.T, o *timed, kind Kind) {
				began := time.Now()
				for i, ttl := range tt.ttls {
					if i > 0 {
						o.pass(10 * time.Second)
					}
					before := o.typ()
					version := before.Wildcard.Sum().Add(before.ByName.Sum())
					change := o.give(kind, "a", "1", "x", ttl)
					o.Expire(time.Now())
					if i == 0 {
						continue
					}
					after := o.typ()
					if change.Changed != 0 || after.Last() != before.Last() || after.Wildcard.Sum().Add(after.ByName.Sum()) != version {
						t.Errorf("step %d: another TTL is another content: %+v", i, change)
					}
					if told := ttl != tt.ttls[i-1] || ttl > 0; (change.Renewed == 1) != told {
						t.Errorf("step %d: got %d renewals, want %t", i, change.Renewed, told)
					}
				}
				if tt.ends == 0 {
					o.pass(24 * time.Hour)
					o.wantShown("for ever", kind, "a", "x")
					return
				}
				o.pass(tt.ends - time.Since(began) - 1)
				o.wantShown("before its time", kind, "a", "x")
				o.pass(1)
				o.wantShown("at its time", kind, "a", "-")
			})
		})
	}
}

// TestR106_Heartbeat: it moves the deadline of the version that it names, and nothing
// else; that it came is in the renewals.
func TestR106_Heartbeat(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		o.give(kind, "a", "1", "x", time.Minute)
		for range 5 {
			o.pass(40 * time.Second)
			awake(o.watch)
			before := o.typ()
			change := o.beat(kind, "a", "1", time.Minute)
			if change.Renewed != 1 || change.Seen != 1 || change.Changed != 0 || change.Removed != 0 {
				t.Errorf("got %+v, want one renewal", change)
			}
			after := o.typ()
			if after.Last() != before.Last() || after.Wildcard.Sum() != before.Wildcard.Sum() {
				t.Error("a heartbeat changed something")
			}
			if !awake(o.watch) {
				t.Error("a heartbeat woke nobody: it has to be passed on")
			}
			set := []*Set{&after.Wildcard, &after.ByName}[kind]
			wantTold(t, set.RenewedSince(set.Renewed()-1), "a")
			wantTold(t, set.RenewedSince(set.Renewed()))
		}
		o.pass(time.Minute - 1)
		o.wantShown("after the last heartbeat", kind, "a", "x")
		o.pass(1)
		o.wantShown("after the last heartbeat", kind, "a", "-")
	})
}

// TestR106_HeartbeatOfAnotherVersionIsIgnored: it says nothing of what is here.
func TestR106_HeartbeatOfAnotherVersionIsIgnored(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		o.give(kind, "a", "2", "x", time.Minute)
		o.give(kind, "b", "1", "y", 0)
		awake(o.watch)
		seq := o.view.Generation().Seq
		for _, version := range []string{"1", "3", ""} {
			if change := o.beat(kind, "a", version, time.Hour); change.Renewed != 0 {
				t.Errorf("version %q: got %+v, want no renewal", version, change)
			}
		}
		if awake(o.watch) || o.view.Generation().Seq != seq || len(o.TakeDemand()) != 0 {
			t.Error("a heartbeat of another version did something")
		}
		if o.beat(kind, "b", "1", 30*time.Second); o.shown(kind, "b") != "y" { // it had no TTL
			t.Error("a heartbeat took a resource away")
		}
		o.pass(time.Minute)
		o.wantShown("its own TTL holds", kind, "a", "-")
		o.wantShown("given a TTL by a heartbeat", kind, "b", "-")
	})
}

// TestR106_HeartbeatOfMissingResource: the origin is asked for what it believes to be
// here, at most once a second, and only if somebody wants it.
func TestR106_HeartbeatOfMissingResource(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		o.give(kind, "a", "1", "x", time.Second)
		o.pass(2 * time.Second)
		o.wantShown("its time is up", kind, "a", "-")
		o.Asked([]*Name{o.name("a")}, time.Now().Add(-time.Minute))
		again := func() (got []string) {
			for _, d := range o.TakeDemand() {
				if !d.Wanted || !d.Refetch {
					t.Errorf("got the demand %+v, want one to ask again", d)
				}
				if got = append(got, "*"); d.Name != nil {
					got[len(got)-1] = d.Name.String()
					o.Asked([]*Name{d.Name}, time.Now())
				}
			}
			return got
		}
		want := []string{[...]string{"*", "a"}[kind]}
		o.beat(kind, "a", "1", time.Second)
		select {
		case <-o.Demand():
		default:
			t.Error("the session was not told that there is something to ask for")
		}
		if got := again(); !slices.Equal(got, want) {
			t.Errorf("got asked for %q, want %q", got, want)
		}
		o.pass(time.Second - 1)
		o.beat(kind, "a", "1", time.Second)
		if got := again(); len(got) != 0 {
			t.Errorf("within a second: got asked for %q again", got)
		}
		o.pass(1)
		o.beat(kind, "a", "1", time.Second)
		if got := again(); !slices.Equal(got, want) {
			t.Errorf("after a second: got asked for %q, want %q", got, want)
		}
		o.pass(time.Minute)
		o.Trim(time.Now().Add(time.Hour))
		o.beat(kind, "never", "1", time.Second) // nobody named it; among the members, any may be
		if got := again(); len(got) != 1-int(kind) {
			t.Errorf("of a name that is not known: got asked for %q", got)
		}
		o.give(kind, "a", "1", "x", time.Minute)
		o.wantShown("back", kind, "a", "x")
	})
	o := newOrigin(t, Config{})
	timed := &timed{origin: o}
	for _, kind := range []Kind{Wildcard, ByName} {
		if timed.beat(kind, "a", "1", time.Second); len(o.TakeDemand()) != 0 {
			t.Error("the origin is asked for what nobody wants")
		}
	}
}

// TestR106_HeartbeatOfAVariant: of several resources of one name it is for the one with
// its constraints.
func TestR106_HeartbeatOfAVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimed(t)
		prod, test := wire.WithParameters("a", map[string]string{"env": "prod"}), wire.WithParameters("a", map[string]string{"env": "test"})
		o.want(o.watch, prod, test)
		variant := func(env, content string) *wire.Resource {
			r := &discoverypb.Resource{
				ResourceName: &discoverypb.ResourceName{Name: "a", DynamicParameterConstraints: &discoverypb.DynamicParameterConstraints{
					Type: &discoverypb.DynamicParameterConstraints_Constraint{Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
						Key:            "env",
						ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Value{Value: env},
					}},
				}},
				Version: "1", Ttl: durationpb.New(time.Minute),
			}
			if content != "" {
				r.Resource = &anypb.Any{TypeUrl: acme, Value: []byte(content)}
			}
			return decoded(t, acme, r)
		}
		o.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{variant("prod", "x"), variant("test", "y")}})
		o.wantShown("given", ByName, prod, "x")
		o.wantShown("given", ByName, test, "y")
		o.pass(30 * time.Second)
		o.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{variant("test", "")}})
		o.beat(ByName, "a", "1", time.Hour) // of none in particular
		o.pass(30 * time.Second)
		o.wantShown("without a heartbeat", ByName, prod, "-")
		o.wantShown("with one", ByName, test, "y")
		o.pass(30 * time.Second)
		o.wantShown("with one", ByName, test, "-")
	})
}

// TestR108_Life: what is left, and never nothing.
func TestR108_Life(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &timed{origin: newOrigin(t, Config{})}
		o.want(o.view.Watch(), "a", "b")
		o.give(ByName, "a", "1", "x", time.Minute)
		o.give(ByName, "b", "1", "x", 0)
		a, _ := o.typ().Lookup(o.name("a"))
		b, _ := o.typ().Lookup(o.name("b"))
		now := time.Now()
		for passed, want := range map[time.Duration]time.Duration{
			0: time.Minute, 45 * time.Second: 15 * time.Second, time.Minute: time.Millisecond, time.Hour: time.Millisecond,
		} {
			if got := a.RemainingTTL(now.Add(passed)); got != want {
				t.Errorf("after %v: got %v, want %v", passed, got, want)
			}
		}
		if got := b.RemainingTTL(now); got != 0 {
			t.Errorf("without a TTL: got %v, want 0", got)
		}
	})
}

// TestC31_LimitedForEver: that a set once held what expires is not forgotten.
func TestC31_LimitedForEver(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		set := func() *Set {
			typ := o.typ()
			return []*Set{&typ.Wildcard, &typ.ByName}[kind]
		}
		o.give(kind, "a", "1", "x", 0)
		if set().Limited() {
			t.Error("limited before any TTL")
		}
		o.give(kind, "a", "1", "x", time.Second)
		o.pass(time.Second)
		o.give(kind, "a", "1", "x", 0)
		if !set().Limited() || set().TTLs() != 0 {
			t.Errorf("got limited %t and %d TTLs, want true and 0", set().Limited(), set().TTLs())
		}
	})
}

// TestRenewalsAreForgotten: the log of renewals does not grow with the heartbeats, nor
// the heap of deadlines.
func TestRenewalsAreForgotten(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		o.give(kind, "a", "1", "x", time.Minute)
		o.give(kind, "b", "1", "x", time.Minute)
		for i := range 5000 {
			o.pass(time.Second)
			o.beat(kind, []string{"a", "b"}[i%2], "1", time.Minute)
		}
		typ := o.typ()
		set := []*Set{&typ.Wildcard, &typ.ByName}[kind]
		if n := len(set.renewals); n > 200 {
			t.Errorf("got %d places in the log of renewals, want at most 200", n)
		}
		if n := len(o.due); n > 2 {
			t.Errorf("got %d deadlines, want at most 2", n)
		}
		wantTold(t, set.RenewedSince(0), "a", "b")
	})
}
