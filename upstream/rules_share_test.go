package upstream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A part is a view that shares the view of a rig, like the view of a node group.
type part struct {
	*rig
	view    *cache.View
	w       *cache.Writer
	watch   *cache.Watch
	control *upstream.Control // of the share
	stop    func()            // ends the share; may be called again
}

// share adds a view that shares the view of the rig until the test ends.
func (r *rig) share() *part { return r.shareWith(cache.Config{}, nil) }

// shareWith is share with a cache configuration, and the clock of the copies; nil if nothing waits.
func (r *rig) shareWith(cfg cache.Config, clock *pending.Clock) *part {
	return r.shareRestored(cfg, clock, nil, 0)
}

// shareRestored is shareWith for a view that is restored from a snapshot, whose unused resources are kept for linger. The
// snapshot may be nil.
func (r *rig) shareRestored(cfg cache.Config, clock *pending.Clock, s *cache.Snapshot, linger time.Duration) *part {
	view, w := cache.New(cfg)
	control := upstream.NewControl(false, nil)
	if s != nil {
		w.Restore(s, time.Now())
		control.Restore(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // awaited by stop
		defer close(ended)
		upstream.Share(ctx, r.view, pending.New(w, clock), control, linger)
	}()
	p := &part{rig: r, view: view, w: w, watch: view.Watch(), control: control}
	p.stop = func() {
		cancel()
		<-ended
		audit(r.t, view)
	}
	r.t.Cleanup(p.stop)
	return p
}

// named returns the resources that clients of the part subscribe to by name, see rig.named.
func (p *part) named(typeURL string) string { return show(&p.view.Generation().Type(typeURL).ByName) }

// members returns the resources that wildcard clients of the part receive, see rig.members.
func (p *part) members(key string) string { return show(&p.view.Generation().Type(key).Wildcard) }

// nameOf returns the cache.Name of a subscribed name in a view.
func nameOf(t *testing.T, v *cache.View, typeURL, text string) *cache.Name {
	t.Helper()
	n := v.Find(typeURL, []string{text})[0]
	if n == nil {
		t.Fatalf("no client subscribed to %q", text)
	}
	return n
}

// TestB45_SharedNamesWait: copies of shared names wait for the minimum push interval, and operators see and pass them. What passes is
// the newest state.
func TestB45_SharedNamesWait(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1", "b@1")
		clock := pending.NewClock(func(string) time.Duration { return 5 * time.Second })
		p := r.shareWith(cache.Config{}, clock)
		p.watch.Subscribe(endpoints, []string{"a", "b"})
		r.pass(time.Minute)
		r.put(endpoints, "a@2")
		r.pass(time.Second)
		r.expect("the first change", p.named(endpoints), "a@2 b@1")
		r.put(endpoints, "a@3")
		r.pass(time.Second)
		r.put(endpoints, "a@4", "b@2")
		r.pass(time.Second)
		r.expect("within the interval", p.named(endpoints), "a@2 b@1")
		rows := p.control.Operate(t.Context(), reconcile.Command{})
		if len(rows) != 1 || rows[0].Reason != reconcile.Interval || !slices.Equal(rows[0].Names, []string{"a", "b"}) {
			t.Errorf("pending changes %+v, want those of a and b for an interval", rows)
		}
		r.pass(2 * time.Second)
		r.expect("after the interval", p.named(endpoints), "a@4 b@2")
		r.put(endpoints, "a@5")
		r.pass(time.Second)
		r.expect("within the next interval", p.named(endpoints), "a@4 b@2")
		p.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass, Reason: reconcile.Interval})
		r.expect("passed by an operator", p.named(endpoints), "a@5 b@2")
	})
}

// TestR130_OneSubscriptionForManyViews: several views share one view. The origin receives each subscription once, each
// view contains only resources that its own clients subscribe to, and an unused name lingers only in the shared view.
func TestR130_OneSubscriptionForManyViews(t *testing.T) {
	cfg := upstream.Config{Linger: time.Minute}
	inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1", "b@1", "c@1")
		p, q := r.share(), r.share()
		inP := p.watch.Subscribe(endpoints, []string{"a", "b", "none"})
		inQ := q.watch.Subscribe(endpoints, []string{"b", "c"})
		r.pass(time.Second)
		r.expect("first", p.named(endpoints), "!none a@1 b@1")
		r.expect("second", q.named(endpoints), "b@1 c@1")
		if !r.State().Subscribed(endpoints, "a", "b", "c", "none") || len(r.State().Streams) != 1 {
			t.Errorf("want one stream with all names:\n%v", r.State())
		}
		requests := len(r.State().Requests(endpoints))
		r.put(endpoints, "b@2")
		r.pass(time.Second)
		r.expect("first", p.named(endpoints), "!none a@1 b@2")
		r.expect("second", q.named(endpoints), "b@2 c@1")

		p.watch.Unsubscribe(endpoints, inP)
		r.pass(time.Second)
		r.expect("first after it has unsubscribed", p.named(endpoints), "")
		if known := p.view.Find(endpoints, []string{"a", "b", "none"}); known[0] != nil || known[1] != nil || known[2] != nil {
			t.Errorf("the view keeps unused names: %v", known)
		}
		r.expect("second", q.named(endpoints), "b@2 c@1")
		p.watch.Subscribe(endpoints, []string{"a"})
		r.pass(soon)
		r.expect("first with a name that lingers", p.named(endpoints), "a@1")
		if got := len(r.State().Requests(endpoints)); got != requests+1 { // the ACK of b@2
			t.Errorf("%d requests, want %d without a new subscription\n%v", got, requests+1, r.State())
		}
		r.pass(longAfter)
		if !r.State().Subscribed(endpoints, "a", "b", "c") {
			t.Errorf("want the subscriptions of both views:\n%v", r.State())
		}
		p.stop()
		q.watch.Unsubscribe(endpoints, inQ)
		r.pass(longAfter)
		if !r.State().Subscribed(endpoints) {
			t.Errorf("want no subscription:\n%v", r.State())
		}
	})
}

// TestB43_SharedChangesConcernAViewFromItsSubscription: a view has the time at which the origin's message was received,
// but not if that was before its clients subscribed to the type.
func TestB43_SharedChangesConcernAViewFromItsSubscription(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		p := r.share()
		p.watch.Subscribe(endpoints, []string{"a"})
		r.pass(time.Minute)
		q := r.share()
		q.watch.Subscribe(endpoints, []string{"a"})
		joined := time.Now()
		r.pass(time.Second)
		received := func(p *part) time.Time {
			e := p.view.Generation().Type(endpoints).ByName.Get(nameOf(t, p.view, endpoints, "a"))
			return p.view.Cause(e.Seq).Received
		}
		if got := received(q); !got.Equal(joined) {
			t.Errorf("received %v before the view followed the type, want then", joined.Sub(got))
		}
		r.put(endpoints, "a@2")
		changed := time.Now()
		r.pass(time.Minute)
		for _, of := range []*part{p, q} {
			if got := received(of); got.Before(changed) || got.After(changed.Add(time.Second)) {
				t.Errorf("a change was received %v after it was made, want at once", got.Sub(changed))
			}
		}
	})
}

// TestB7_SharedViewAbsenceNeedsConnection: views receive the state of the origin from the shared view: connection,
// identifier, and request times. After a disconnect, the origin must report again that a name does not exist; resources
// stay.
func TestB7_SharedViewAbsenceNeedsConnection(t *testing.T) {
	inBubble(t, relaytest.Behaviour{ControlPlane: "cp"}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		p := r.share()
		p.watch.Subscribe(endpoints, []string{"a", "none"})
		absent := func() bool {
			g := p.view.Generation()
			e, _ := g.Type(endpoints).Lookup(nameOf(t, p.view, endpoints, "none"))
			return g.Absent(e)
		}
		stands := func(connected bool) {
			t.Helper()
			own, other := *p.view.Generation().First(), *r.view.Generation().First()
			if own.Target == "" {
				own.Target = other.Target // only for snapshots: a change of the target does not wake shares
			}
			if own != other || own.Connected != connected {
				t.Errorf("source of the shared view: %+v\nsource of the share: %+v\nwant both equal with connected=%v", other, own, connected)
			}
		}
		r.pass(time.Second)
		stands(true)
		if n := nameOf(t, p.view, endpoints, "a"); !absent() || n.Asked().IsZero() || p.view.Generation().First().Identifier != "cp" {
			t.Errorf("absent %t, request of a at %v, identifier %q; want absent, a time, and cp", absent(), n.Asked(), p.view.Generation().First().Identifier)
		}
		r.Stop()
		r.pass(time.Minute)
		stands(false)
		r.expect("while the origin is stopped", present(p.named(endpoints)), "a@1")
		if n := nameOf(t, p.view, endpoints, "a"); absent() || !n.Asked().IsZero() {
			t.Errorf("while the origin is stopped: absent %t, request of a at %v; want neither", absent(), n.Asked())
		}
		r.Change(func(b *relaytest.Behaviour) { b.Delay = 3 * time.Second })
		r.Restart()
		r.pass(2 * time.Second)
		if stands(true); absent() {
			t.Error("the name is absent before the origin has reported it again")
		}
		r.pass(time.Minute)
		if !absent() {
			t.Error("the name is not absent although the origin has reported it again")
		}
		r.put(endpoints, "none@1")
		r.pass(time.Minute)
		r.expect("once the origin contains the name", p.named(endpoints), "a@1 none@1")
	})
}

// TestR107_SharedTTLs: a TTL expires in all views at the same time after the response of the origin. A heartbeat extends
// it, also in views that were added later.
func TestR107_SharedTTLs(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		set := func() {
			r.SetRaw(endpoints, &discoverypb.Resource{Name: "a", Version: "1", Ttl: durationpb.New(time.Minute),
				Resource: relaytest.Opaque(endpoints, "a", nil)})
		}
		set()
		p := r.share()
		p.watch.Subscribe(endpoints, []string{"a"})
		r.pass(40 * time.Second)
		q := r.share()
		q.watch.Subscribe(endpoints, []string{"a"})
		r.pass(time.Second)
		for _, v := range []*part{p, q} {
			e, _ := v.view.Generation().Type(endpoints).Lookup(nameOf(t, v.view, endpoints, "a"))
			if left := e.RemainingTTL(time.Now()).Round(time.Second); left != 19*time.Second {
				t.Errorf("remaining TTL %v, want 19s", left)
			}
		}
		set() // renews the TTL
		r.pass(58 * time.Second)
		r.expect("renewed", p.named(endpoints)+" "+q.named(endpoints), "a@1 a@1")
		r.pass(3 * time.Second)
		r.expect("expired", present(p.named(endpoints)+" "+q.named(endpoints)), "")
		set()
		r.pass(time.Second)
		r.expect("sent again", p.named(endpoints)+" "+q.named(endpoints), "a@1 a@1")
	})
}

// TestR123_ErrorsAreShared: an error of a resource reaches all clients that need it, until the origin sends something
// else for it, including a removal.
func TestR123_ErrorsAreShared(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		p := r.share()
		p.watch.Subscribe(endpoints, []string{"a", "b"})
		r.pass(time.Second)
		failed := func(v *part) (out string) {
			for _, text := range []string{"a", "b"} {
				if e := v.view.Generation().Type(endpoints).Errors(cache.ByName).Get(nameOf(t, v.view, endpoints, text)); e != nil {
					out += text + " "
				}
			}
			return out
		}
		fail := func(code codes.Code, names ...string) {
			u := &discoverypb.DeltaDiscoveryResponse{TypeUrl: endpoints}
			for _, name := range names {
				u.ResourceErrors = append(u.ResourceErrors, &discoverypb.ResourceError{
					ResourceName: &discoverypb.ResourceName{Name: name}, ErrorDetail: &statuspb.Status{Code: int32(code), Message: "no"}})
			}
			r.Inject(u)
			r.pass(time.Second)
		}
		fail(codes.PermissionDenied, "a", "b")
		q := r.share()
		q.watch.Subscribe(endpoints, []string{"a", "b"})
		r.pass(time.Second)
		r.expect("denied", failed(p)+failed(q), "a b a b ")
		r.put(endpoints, "a@1")
		r.Remove(endpoints, "b")
		r.pass(time.Second)
		r.expect("errors after a resource and a removal", failed(p)+failed(q), "")
		r.expect("named after a resource and a removal", p.named(endpoints), "!b a@1")
		fail(codes.NotFound, "a", "b")
		r.expect("not found", failed(p)+failed(q), "a b a b ")
		r.expect("not found", present(q.named(endpoints)), "")
		r.Remove(endpoints, "b") // the resource does not change, but the error ends
		r.pass(time.Second)
		r.expect("removed", failed(p)+failed(q), "a a ")
	})
}

// TestR123_KnownErrorsDoNotWakeShares: an error that a client knows does not wake its stream again.
func TestR123_KnownErrorsDoNotWakeShares(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		p := r.share()
		p.watch.Subscribe(endpoints, []string{"a"})
		other := p.view.Watch()
		other.Subscribe(endpoints, []string{"b"})
		r.pass(time.Second)
		r.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: endpoints, ResourceErrors: []*discoverypb.ResourceError{{
			ResourceName: &discoverypb.ResourceName{Name: "a"}, ErrorDetail: &statuspb.Status{Code: int32(codes.NotFound)}}}})
		r.pass(time.Second)
		drained := func(w *cache.Watch) (woken bool) {
			select {
			case <-w.C:
				return true
			default:
				return false
			}
		}
		if !drained(p.watch) {
			t.Error("the error of a did not wake its client")
		}
		drained(other)
		r.put(endpoints, "b@1")
		r.pass(time.Second)
		if drained(p.watch) || !drained(other) {
			t.Error("a change of b must wake only clients subscribed to b")
		}
	})
}

// TestR125_SharedDroppedContentIsRequestedAgain: content that must not be cached is requested again for each view that
// needs it, by name or by glob, and reaches that view.
func TestR125_SharedDroppedContentIsRequestedAgain(t *testing.T) {
	for _, ask := range []string{shopA, shopGlob} {
		t.Run(ask, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.SetRaw(endpoints, &discoverypb.Resource{Name: shopA, Version: "1", CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
					Resource: relaytest.Opaque(endpoints, shopA, nil)})
				var parts []*part
				for i := range 2 {
					p := r.share()
					p.subscribe(ask)
					parts = append(parts, p)
					r.pass(soon)
					if i > 0 && ask == shopGlob { // a stream requests dropped content again
						p.refetch(t, ask)
						r.pass(soon)
					}
					if e := p.entry(t, ask); !e.Present() || e.Resource.ContentDropped() {
						t.Fatalf("view %d: entry %v, want one with content", len(parts), e)
					}
					r.pass(time.Minute)
					for i, p := range parts {
						if e := p.entry(t, ask); !e.Present() || !e.Resource.ContentDropped() {
							t.Errorf("view %d of %d still has the content after a minute", i+1, len(parts))
						}
					}
					r.pass(time.Minute)
				}
				parts[0].refetch(t, ask) // for a new stream of that view
				r.pass(soon)
				if e := parts[0].entry(t, ask); !e.Present() || e.Resource.ContentDropped() {
					t.Errorf("after another request: entry %v, want one with content", e)
				}
				if got := len(r.State().Streams); got != 1 {
					t.Errorf("%d streams, want 1", got)
				}
			})
		})
	}
}

// subscribe subscribes to a name, or to the collection of shopGlob.
func (p *part) subscribe(name string) {
	if name == shopGlob {
		p.watch.SubscribeAll(cache.Collection(endpoints, name))
	} else {
		p.watch.Subscribe(endpoints, []string{name})
	}
}

// refetch makes the relay request the content of a name or of shopGlob again.
func (p *part) refetch(t *testing.T, name string) {
	t.Helper()
	if name == shopGlob {
		p.watch.Refetch(cache.Collection(endpoints, name), nil, time.Now())
	} else {
		p.watch.Refetch(endpoints, nameOf(t, p.view, endpoints, name), time.Now())
	}
}

// entry returns the entry of shopA, by name or as a member.
func (p *part) entry(t *testing.T, ask string) *cache.Entry {
	t.Helper()
	if ask == shopGlob {
		key := cache.Collection(endpoints, ask)
		return p.view.Generation().Type(key).Wildcard.Get(nameOf(t, p.view, key, shopA))
	}
	e, _ := p.view.Generation().Type(endpoints).Lookup(nameOf(t, p.view, endpoints, shopA))
	return e
}

// TestR132_CollectionsAreShared: the share of a collection contains its members and phase, and is removed once no
// client subscribes to it.
func TestR132_CollectionsAreShared(t *testing.T) {
	cfg := upstream.Config{Linger: 20 * time.Second}
	inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1", shop+"b@1", shop+"deep/c@1", "plain@1")
		p, q := r.share(), r.share()
		wc := p.watch.SubscribeAll(shopKey)
		r.pass(100 * time.Millisecond)
		r.expect("members", p.members(shopKey), shopA+"@1 "+shop+"b@1")
		if got := p.view.Generation().Type(shopKey).Phase; got != cache.Unknown {
			t.Errorf("phase %v after 100ms, want unknown", got)
		}
		q.watch.SubscribeAll(shopKey)
		r.pass(time.Second)
		if got, late := p.view.Generation().Type(shopKey).Phase, q.view.Generation().Type(shopKey).Phase; got != cache.Settled || late != got {
			t.Errorf("phases %v and %v after a second, want settled", got, late)
		}
		r.pass(time.Minute)
		if got, late := p.view.Generation().Type(shopKey).Phase, q.view.Generation().Type(shopKey).Phase; got != cache.Confirmed || late != got {
			t.Errorf("phases %v and %v after a minute, want confirmed", got, late)
		}
		r.put(endpoints, shop+"b@2")
		r.Remove(endpoints, shopA)
		r.pass(time.Second)
		r.expect("members", present(p.members(shopKey)), shop+"b@2")
		r.expect("members", present(q.members(shopKey)), shop+"b@2")
		if !r.State().Subscribed(endpoints, shopGlob) || len(r.State().Streams) != 1 {
			t.Errorf("want one subscription:\n%v", r.State())
		}

		p.watch.UnsubscribeAll(wc)
		r.pass(time.Second)
		if known, types := p.view.HasType(shopKey); known || types != 1 || p.view.Generation().Types() != 0 {
			t.Errorf("the view contains the collection: %t; %d types, %d in its generation; want false, 1 and 0", known, types, p.view.Generation().Types())
		}
		r.expect("members of the other view", present(q.members(shopKey)), shop+"b@2")
		p.watch.SubscribeAll(shopKey)
		r.pass(soon)
		r.expect("members after a new subscription", p.members(shopKey), shop+"b@2")
		if got := p.view.Generation().Type(shopKey).Phase; got != cache.Confirmed {
			t.Errorf("phase %v after a new subscription, want confirmed", got)
		}
		p.stop()
		q.stop()
		r.pass(longAfter)
		if known, _ := r.view.HasType(shopKey); known || !r.State().Subscribed(endpoints) {
			t.Errorf("the collection exists (%t) without a subscription:\n%v", known, r.State())
		}
	})
}

// TestB42_RestoredMembersThatTheSharedViewLacks are removed once the shared view is confirmed, whether or not the set was
// confirmed when the snapshot was taken. Until then, clients are served the restored set.
func TestB42_RestoredMembersThatTheSharedViewLacks(t *testing.T) {
	for phase, age := range map[cache.Phase]time.Duration{cache.Settled: time.Second, cache.Confirmed: time.Minute} {
		for _, cfg := range []cache.Config{{}, waitsFor(clusters)} {
			t.Run(fmt.Sprintf("%v snapshot, %d cohorts", phase, cfg.Cohorts), func(t *testing.T) {
				inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
					restoredMembers(t, r, cfg, age, phase)
				})
			})
		}
	}
}

// restoredMembers restores a share, but not the shared view, after the origin has removed a resource. The snapshot is
// taken when the share has followed the collection for age.
func restoredMembers(t *testing.T, r *rig, cfg cache.Config, age time.Duration, phase cache.Phase) {
	t.Helper()
	r.put(endpoints, shopA+"@1", shop+"b@1")
	old := r.shareWith(cfg, nil)
	old.watch.SubscribeAll(shopKey)
	r.pass(age)
	if got := old.view.Generation().Type(shopKey).Phase; got != phase {
		t.Fatalf("phase %v when the snapshot is taken, want %v", got, phase)
	}
	s, _ := old.w.Snapshot(true)
	old.stop()
	r.stop()
	r.Remove(endpoints, shopA)
	again := viewSync(t, r.Origin, upstream.Config{})
	p := again.shareRestored(cfg, nil, s, time.Minute)
	p.watch.SubscribeAll(shopKey)
	for _, after := range []time.Duration{soon, time.Second} { // the shared view is unknown, then settled
		again.pass(after)
		again.expect("restored", p.members(shopKey), shopA+"@1 "+shop+"b@1")
		if got := p.view.Generation().Type(shopKey); got.Phase != cache.Settled || got.Restored != (phase == cache.Confirmed) {
			t.Errorf("restored: phase %v, restored %v", got.Phase, got.Restored)
		}
	}
	again.pass(time.Minute)
	p.control.Edit(t.Context(), func(l *pending.List) { l.Show(cfg.Cohorts, l.Pin()) })
	again.expect("confirmed", present(p.members(shopKey)), shop+"b@1")
	if got := p.view.Generation().Type(shopKey); got.Phase != cache.Confirmed || got.Restored {
		t.Errorf("confirmed: phase %v, restored %v; want confirmed, false", got.Phase, got.Restored)
	}
}

// TestB56_AdditionThatTheSharedViewLacks: an addition of a shared collection that waited for a stage before a restart, and that
// the origin has withdrawn meanwhile, waits until the shared view is confirmed.
func TestB56_AdditionThatTheSharedViewLacks(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, shopA+"@1")
		key := cache.Collection(clusters, shop+"*")
		old := r.shareWith(waitsFor(clusters), nil)
		old.watch.SubscribeAll(key)
		r.pass(time.Minute)
		r.put(clusters, shop+"added@1")
		r.pass(time.Second)
		r.expect("served", old.members(key), shopA+"@1")
		var s *cache.Snapshot
		old.control.Edit(t.Context(), func(l *pending.List) { s, _ = l.Capture().Snapshot(true) })
		old.stop()
		r.stop()
		r.Remove(clusters, shop+"added")
		again := viewSync(t, r.Origin, upstream.Config{})
		p := again.shareRestored(waitsFor(clusters), nil, s, time.Minute)
		p.watch.SubscribeAll(key)
		again.pass(soon)
		waiting := func(when string, want int) {
			t.Helper()
			if got := p.view.Withheld(0); got != want {
				t.Errorf("%s: %d names wait, want %d", when, got, want)
			}
		}
		waiting("restored", 1)
		again.pass(2 * time.Minute)
		waiting("confirmed", 0)
		p.control.Edit(t.Context(), func(l *pending.List) { l.Show(1, l.Pin()) })
		again.expect("promoted", present(p.members(key)), shopA+"@1")
	})
}

// waitsFor configures a view with one cohort, in which changes of a type wait.
func waitsFor(typeURL string) cache.Config {
	return cache.Config{Cohorts: 1, Waits: func(t string) bool { return t == typeURL }}
}

// TestI1_SharedNamesWaitForOrigin: the gate of a share withholds names, and its control shows them. A command to a
// share that has ended does nothing.
func TestI1_SharedNamesWaitForOrigin(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		r.put(clusters, "a@1")
		p := r.shareWith(waitsFor(endpoints), nil)
		p.watch.Subscribe(endpoints, []string{"a"})
		p.watch.Subscribe(clusters, []string{"a"})
		r.pass(time.Second)
		r.put(endpoints, "a@2")
		r.put(clusters, "a@2")
		r.pass(time.Second)
		r.expect("endpoints, which wait", p.named(endpoints), "a@1")
		r.expect("clusters, which do not wait", p.named(clusters), "a@2")
		p.control.Edit(t.Context(), func(l *pending.List) { l.Show(1, l.Pin()) })
		r.expect("endpoints after they were shown", p.named(endpoints), "a@2")
		if holds := p.control.Operate(t.Context(), reconcile.Command{}); len(holds) > 0 || p.control.Holding() {
			t.Errorf("holds of a share: %v, want none", holds)
		}
		p.stop()
		p.control.Edit(t.Context(), func(*pending.List) { t.Error("Edit calls its function after the share has ended") })
	})
}

// TestI1_UnusedSharedNamesLinger: unused names stay while a gate withholds their newest state. Otherwise a returning
// client would receive that state.
func TestI1_UnusedSharedNamesLinger(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1", "b@1", "c@1")
		r.put(endpoints, shopA+"@1")
		p := r.shareWith(waitsFor(endpoints), nil)
		names := p.watch.Subscribe(endpoints, []string{"a", "b", "c"})
		all := p.watch.SubscribeAll(shopKey)
		r.pass(confirmed)
		r.put(endpoints, "a@2", "b@2", shopA+"@2")
		r.pass(time.Second)
		p.watch.Unsubscribe(endpoints, names)
		p.watch.UnsubscribeAll(all)
		r.pass(time.Minute)
		r.expect("unused names", p.named(endpoints), "a@1 b@1")
		r.expect("unused members", p.members(shopKey), shopA+"@1")
		p.watch.Subscribe(endpoints, []string{"a"})
		r.pass(time.Second)
		r.expect("names after a new subscription", p.named(endpoints), "a@1 b@1")
		p.control.Edit(t.Context(), func(l *pending.List) { l.Show(1, l.Pin()) })
		r.pass(time.Second)
		r.expect("names after they were shown", p.named(endpoints), "a@2")
		r.expect("members after they were shown", p.members(shopKey), "")
	})
}

// TestI13_FrozenSharedViewFreezesShares: freezing a shared view freezes its shares, whether or not changes are pending
// there.
func TestI13_FrozenSharedViewFreezesShares(t *testing.T) {
	for _, cfg := range []cache.Config{{}, waitsFor(endpoints)} {
		inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
			r.put(endpoints, "a@1")
			p := r.shareWith(cfg, nil)
			p.watch.Subscribe(endpoints, []string{"a"})
			r.pass(time.Second)
			frozen := func(when string, want bool) {
				t.Helper()
				if got := !p.view.Generation().First().Frozen.IsZero(); got != want {
					t.Errorf("%s, %d cohorts: share is frozen: %v, want %v", when, cfg.Cohorts, got, want)
				}
			}
			frozen("before the freeze", false)
			r.control.Freeze(t.Context())
			r.put(endpoints, "a@2")
			p.watch.Subscribe(endpoints, []string{"none"}) // wakes the loop of the share
			r.pass(time.Second)
			frozen("frozen", true)
			r.expect("frozen", p.named(endpoints), "!none a@1")
			p.control.Edit(t.Context(), func(l *pending.List) { l.Show(cfg.Cohorts, l.Pin()) })
			frozen("shown", true)
			r.control.Thaw(t.Context())
			r.pass(time.Second)
			frozen("thawed", false)
			p.control.Edit(t.Context(), func(l *pending.List) { l.Show(cfg.Cohorts, l.Pin()) })
			r.expect("thawed", p.named(endpoints), "!none a@2")
		})
	}
}
