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

// TestR105_TTLChanges: a resource that is sent again may extend, shorten or remove its TTL. Its other state does not
// change.
func TestR105_TTLChanges(t *testing.T) {
	tests := []struct {
		what string
		ttls []time.Duration // of responses 10 s apart; zero means no TTL
		ends time.Duration   // after the first response; zero means never
	}{
		{"lengthened", []time.Duration{30 * time.Second, time.Minute}, 70 * time.Second},
		{"shortened", []time.Duration{time.Minute, 15 * time.Second}, 25 * time.Second},
		{"same TTL", []time.Duration{30 * time.Second, 30 * time.Second, 30 * time.Second}, 50 * time.Second},
		{"removed", []time.Duration{30 * time.Second, 0}, 0},
		{"TTL added later", []time.Duration{0, 30 * time.Second}, 40 * time.Second},
		{"removed and added again", []time.Duration{time.Minute, 0, 30 * time.Second}, 50 * time.Second},
		{
			"removed, and given back when the first time is over",
			[]time.Duration{15 * time.Second, 0, 0, 0, 30 * time.Second}, 70 * time.Second,
		},
		{"shortened and lengthened", []time.Duration{time.Hour, 20 * time.Second, time.Hour, 20 * time.Second},
			50 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
				began := time.Now()
				for i, ttl := range tt.ttls {
					if i > 0 {
						o.sleep(10 * time.Second)
					}
					before := o.typ()
					version := before.Wildcard.Sum().Add(before.ByName.Sum())
					change := o.putTTL(kind, "a", "1", "x", ttl)
					o.Expire(time.Now())
					if i == 0 {
						continue
					}
					after := o.typ()
					if change.Changed != 0 || after.Last() != before.Last() ||
						after.Wildcard.Sum().Add(after.ByName.Sum()) != version {
						t.Errorf("step %d: another TTL counted as another content: %+v", i, change)
					}
					if renewed := ttl != tt.ttls[i-1] || ttl > 0; (change.Renewed == 1) != renewed {
						t.Errorf("step %d: got %d renewals, want %t", i, change.Renewed, renewed)
					}
				}
				if tt.ends == 0 {
					o.sleep(24 * time.Hour)
					o.wantVisible("without a TTL", kind, "a", "x")
					return
				}
				o.wantExpiry("with a TTL", kind, "a", "x", tt.ends-time.Since(began))
			})
		})
	}
}

// TestR106_Heartbeat: a heartbeat extends the deadline of the version that it has, is recorded in the renewals, and
// changes nothing else.
func TestR106_Heartbeat(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		o.putTTL(kind, "a", "1", "x", time.Minute)
		for range 5 {
			o.sleep(40 * time.Second)
			woken(o.watch)
			before := o.typ()
			change := o.heartbeat(kind, "a", "1", time.Minute)
			if change.Renewed != 1 || change.Seen != 1 || change.Changed != 0 || change.Removed != 0 {
				t.Errorf("got %+v, want one renewal", change)
			}
			after := o.typ()
			if after.Last() != before.Last() || after.Wildcard.Sum() != before.Wildcard.Sum() {
				t.Error("heartbeat changed the resource")
			}
			if !woken(o.watch) {
				t.Error("heartbeat caused no wake-up")
			}
			set := []*Set{&after.Wildcard, &after.ByName}[kind]
			wantLog(t, set.RenewedSince(set.Renewed()-1), "a")
			wantLog(t, set.RenewedSince(set.Renewed()))
		}
		o.wantExpiry("after the last heartbeat", kind, "a", "x", time.Minute)
	})
}

// TestR106_HeartbeatOfAnotherVersionIsIgnored: it does not apply to the cached content.
func TestR106_HeartbeatOfAnotherVersionIsIgnored(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		o.putTTL(kind, "a", "2", "x", time.Minute)
		o.putTTL(kind, "b", "1", "y", 0)
		woken(o.watch)
		seq := o.view.Generation().Seq
		for _, version := range []string{"1", "3", ""} {
			if change := o.heartbeat(kind, "a", version, time.Hour); change.Renewed != 0 {
				t.Errorf("version %q: got %+v, want no renewal", version, change)
			}
		}
		if woken(o.watch) || o.view.Generation().Seq != seq || len(o.TakeDemand()) != 0 {
			t.Error("heartbeat of another version had an effect")
		}
		if o.heartbeat(kind, "b", "1", 30*time.Second); o.visible(kind, "b") != "y" { // it had no TTL
			t.Error("heartbeat removed a resource")
		}
		o.sleep(time.Minute)
		o.wantVisible("own TTL applies", kind, "a", "-")
		o.wantVisible("TTL added by a heartbeat", kind, "b", "-")
	})
}

// TestR106_HeartbeatOfMissingResource: the relay requests the resource from the origin, at most once a second, and only
// if a client subscribes to it.
func TestR106_HeartbeatOfMissingResource(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		o.putTTL(kind, "a", "1", "x", time.Second)
		o.sleep(2 * time.Second)
		o.wantVisible("expired", kind, "a", "-")
		o.Asked([]*Name{o.name("a")}, time.Now().Add(-time.Minute))
		again := func() (got []string) {
			for _, d := range o.TakeDemand() {
				if !d.Wanted || !d.Refetch {
					t.Errorf("got the demand %+v, want one new request", d)
				}
				if got = append(got, "*"); d.Name != nil {
					got[len(got)-1] = d.Name.String()
					o.Asked([]*Name{d.Name}, time.Now())
				}
			}
			return got
		}
		want := []string{[...]string{"*", "a"}[kind]}
		o.heartbeat(kind, "a", "1", time.Second)
		select {
		case <-o.Demand():
		default:
			t.Error("session was not notified of the demand")
		}
		if got := again(); !slices.Equal(got, want) {
			t.Errorf("requested %q, want %q", got, want)
		}
		o.sleep(time.Second - 1)
		o.heartbeat(kind, "a", "1", time.Second)
		if got := again(); len(got) != 0 {
			t.Errorf("within a second: requested %q again", got)
		}
		o.sleep(1)
		o.heartbeat(kind, "a", "1", time.Second)
		if got := again(); !slices.Equal(got, want) {
			t.Errorf("after a second: requested %q, want %q", got, want)
		}
		o.sleep(time.Minute)
		o.Trim(time.Now().Add(time.Hour))
		o.heartbeat(kind, "never", "1", time.Second) // without a subscriber by name; the wildcard set may contain it
		if got := again(); len(got) != 1-int(kind) {
			t.Errorf("heartbeat of an unknown name: requested %q", got)
		}
		o.putTTL(kind, "a", "1", "x", time.Minute)
		o.wantVisible("added again", kind, "a", "x")
	})
	o := newOrigin(t, Config{})
	timed := &timedOrigin{origin: o}
	for _, kind := range []Kind{Wildcard, ByName} {
		if timed.heartbeat(kind, "a", "1", time.Second); len(o.TakeDemand()) != 0 {
			t.Error("requested a resource without subscribers")
		}
	}
}

// TestR106_HeartbeatOfAVariant: it applies to the variant with its constraints.
func TestR106_HeartbeatOfAVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTimedOrigin(t)
		prod, test := withEnv("a", "prod"), withEnv("a", "test")
		o.subscribe(o.watch, prod, test)
		variant := func(env, content string) *wire.Resource {
			r := &discoverypb.Resource{
				ResourceName: &discoverypb.ResourceName{Name: "a", DynamicParameterConstraints: envConstraints(env)},
				Version:      "1", Ttl: durationpb.New(time.Minute),
			}
			if content != "" {
				r.Resource = &anypb.Any{TypeUrl: acme, Value: []byte(content)}
			}
			return decoded(t, acme, r)
		}
		o.Apply(ByName, updateOf(acme, variant("prod", "x"), variant("test", "y")))
		o.wantVisible("added", ByName, prod, "x")
		o.wantVisible("added", ByName, test, "y")
		o.sleep(30 * time.Second)
		o.Apply(ByName, updateOf(acme, variant("test", "")))
		o.heartbeat(ByName, "a", "1", time.Hour) // without constraints, which matches no variant
		o.sleep(30 * time.Second)
		o.wantVisible("without a heartbeat", ByName, prod, "-")
		o.wantVisible("with a heartbeat", ByName, test, "y")
		o.sleep(30 * time.Second)
		o.wantVisible("with a heartbeat", ByName, test, "-")
	})
}

// TestR108_RemainingTTL: the remaining TTL is sent, and it is never zero.
func TestR108_RemainingTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &timedOrigin{origin: newOrigin(t, Config{})}
		o.subscribe(o.view.Watch(), "a", "b")
		o.putTTL(ByName, "a", "1", "x", time.Minute)
		o.putTTL(ByName, "b", "1", "x", 0)
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

// TestC31_LimitedForEver: a set that has ever had a resource with a TTL stays limited.
func TestC31_LimitedForEver(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		set := func() *Set {
			typ := o.typ()
			return []*Set{&typ.Wildcard, &typ.ByName}[kind]
		}
		o.putTTL(kind, "a", "1", "x", 0)
		if set().Limited() {
			t.Error("limited before any TTL")
		}
		o.putTTL(kind, "a", "1", "x", time.Second)
		o.sleep(time.Second)
		o.putTTL(kind, "a", "1", "x", 0)
		if !set().Limited() || set().TTLs() != 0 {
			t.Errorf("got limited %t and %d TTLs, want true and 0", set().Limited(), set().TTLs())
		}
	})
}

// TestRenewalsAreForgotten: neither the log of renewals nor the heap of deadlines grows with heartbeats.
func TestRenewalsAreForgotten(t *testing.T) {
	withClock(t, func(t *testing.T, o *timedOrigin, kind Kind) {
		o.putTTL(kind, "a", "1", "x", time.Minute)
		o.putTTL(kind, "b", "1", "x", time.Minute)
		for i := range 300 {
			o.sleep(time.Second)
			o.heartbeat(kind, []string{"a", "b"}[i%2], "1", time.Minute)
		}
		typ := o.typ()
		set := []*Set{&typ.Wildcard, &typ.ByName}[kind]
		if n := len(set.renewals); n > 100 {
			t.Errorf("%d items in the log of renewals, want at most 100", n)
		}
		if n := len(o.rest().due); n > 2 {
			t.Errorf("got %d deadlines, want at most 2", n)
		}
		wantLog(t, set.RenewedSince(0), "a", "b")
	})
}
