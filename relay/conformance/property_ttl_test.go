package conformance_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestD4_RandomExpiry checks rules of TTLs with random sequences of origin changes, heartbeats, outages and client
// actions. Some clients support TTLs.
//
//  1. Convergence: while the origin renews all its resources, each client ends with exactly those that it
//     subscribed to, and none of them expires at the client.
//  2. No invented removal: a resource that a client loses was removed by the origin or not renewed in time.
//  3. When the origin is silent, every resource with a TTL expires at each client that can be sent removals.
//     Resources without a TTL stay, and nothing else is sent.
//  4. A heartbeat is only sent for a version that the client has and that has not expired.
//
// relaytest.Client checks every response for TTLs, wrappers and heartbeats that the client does not support, and
// SotW responses for resources without content.
func TestD4_RandomExpiry(t *testing.T) {
	checkRandom(t, 4, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawExpiryStep), 10, 60).Draw(rt, "steps")
		runScene(t, rt, func(sc *scene) {
			w := &expiryWorld{scene: sc, events: make(map[expiryKey][]originEvent)}
			w.run(steps)
		})
	})
}

func drawExpiryStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{
			"give", "give", "give", "beat", "beat", "remove", "subscribe", "subscribe", "wildcard", "unsubscribe", "unwildcard",
			"reconnect", "reject", "pause", "resume", "restart", "away", "pass", "pass", "check", "silence",
		}).Draw(t, "what"),
		client: rapid.IntRange(0, 7).Draw(t, "client"),
		typ:    rapid.IntRange(0, len(expiryTypes)-1).Draw(t, "type"),
		at:     rapid.IntRange(0, 2).Draw(t, "name"),
		n:      rapid.IntRange(0, 1000).Draw(t, "n"),
	}
}

var expiryTypes = []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.SecretType, acmeType}

// expiryTTLs are the TTLs of resources; zero means none.
var expiryTTLs = []time.Duration{0, 20 * time.Second, time.Minute, 3 * time.Minute}

const longestTTL = 3 * time.Minute

// confirmTime is the time after a connection until all sets are confirmed with this TENDER_COLD_WAIT (B.7).
const confirmTime = 70 * time.Second

type expiryKey struct{ typeURL, name string }

// An originEvent is one change or heartbeat of a resource at the origin.
type originEvent struct {
	at          time.Time
	ttl         time.Duration
	removed     bool
	maybeMissed bool // sent during an outage, so the relay may have missed it
}

// An expiryWorld is a scene whose resources have TTLs.
type expiryWorld struct {
	*scene
	actors      []*expiryActor
	events      map[expiryKey][]originEvent
	connectedAt time.Time // when the relay has reconnected to the origin
	confirmedAt time.Time // when all of its sets are confirmed
}

// An expiryActor is a client with TTL timers.
type expiryActor struct {
	*actor
	ttl  bool
	slow bool // was slow to read, or had to wait for a response

	nacks map[*relaytest.Response]bool // guarded by actor.mu
}

// run plays steps, and checks the rules at their end.
func (w *expiryWorld) run(steps []step) {
	w.origin = relaytest.NewOrigin(w.scene, relaytest.OriginOptions{Memory: true})
	w.relay = start(w.scene, w.origin, "TENDER_COLD_WAIT=10m", "TENDER_MASS_DELETE_HOLD=20s")
	w.confirmedAt = time.Now().Add(confirmTime)
	w.origin.Put(opaque(acmeThing, "always", "there")) // a first response needs a resource
	for i, k := range w.all() {
		w.setTTL(k, expiryTTLs[i%len(expiryTTLs)])
	}
	for i := range 8 {
		w.join(relaytest.Variant(i%2), i%4 < 2, i < 4)
	}
	for _, st := range steps {
		w.step(st)
	}
	w.check()
	w.checkSilence()
	w.checkHistory()
}

// join adds a client that subscribes to all names, or to the first name of each type.
func (w *expiryWorld) join(v relaytest.Variant, ttl, all bool) {
	a := &expiryActor{
		actor: &actor{variant: v, subscribed: map[string]map[string]bool{}, unsubscribed: map[string]bool{}},
		ttl:   ttl, nacks: make(map[*relaytest.Response]bool),
	}
	node := relaytest.EnvoyNode(fmt.Sprintf("envoy-%d", len(w.actors)))
	if ttl {
		node = relaytest.WithFeatures(node, relaytest.FeatureTTL, relaytest.FeatureWrapper)
	}
	a.Client = w.relay.Client(relaytest.ClientOptions{
		Variant: v, Node: node, AutoAck: true,
		Reject: func(r *relaytest.Response) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if !a.nackNext || len(r.Removed) > 0 || r.SotW() && fullState(r.TypeURL) { // a NACKed removal is not repeated
				return nil
			}
			a.nackNext, a.nacked, a.nacks[r] = false, true, true
			return errors.New("not to my liking")
		},
	})
	w.actors = append(w.actors, a)
	a.subscribe(acmeThing, "always")
	for _, typeURL := range expiryTypes {
		if all {
			a.wantAll(typeURL)
		} else {
			a.subscribe(typeURL, name(0))
		}
	}
}

// wantAll subscribes to all resources of a type. Secrets have no wildcard (B.36).
func (a *actor) wantAll(typeURL string) {
	if typeURL != relaytest.SecretType {
		a.subscribe(typeURL, "*")
		return
	}
	for i := range 3 {
		a.subscribe(typeURL, name(i))
	}
}

// record adds an event of the origin to the history.
func (w *expiryWorld) record(k expiryKey, s originEvent) {
	s.at = time.Now()
	s.maybeMissed = !s.at.After(w.connectedAt)
	w.events[k] = append(w.events[k], s)
}

// last returns the last event of a resource up to a time.
func (w *expiryWorld) last(k expiryKey, at time.Time) (last originEvent) {
	for _, s := range w.events[k] {
		if !s.at.After(at) {
			last = s
		}
	}
	return last
}

// setTTL sets a resource with new content and this TTL.
func (w *expiryWorld) setTTL(k expiryKey, ttl time.Duration) {
	body := opaque(k.typeURL, k.name, fmt.Sprint(w.counter))
	w.counter++
	r := &discoverypb.Resource{Name: k.name, Version: fmt.Sprint("v", w.counter), Resource: body}
	if ttl > 0 {
		r.Ttl = durationpb.New(ttl)
	}
	w.record(k, originEvent{ttl: ttl})
	w.origin.SetRaw(k.typeURL, r)
}

// renew sends a heartbeat for a resource that has a TTL.
func (w *expiryWorld) renew(k expiryKey) {
	if ttl := w.last(k, time.Now()).ttl; ttl > 0 && w.present(k) {
		w.record(k, originEvent{ttl: ttl})
		w.origin.Heartbeat(k.typeURL, k.name)
	}
}

// step plays one step.
func (w *expiryWorld) step(st step) {
	a, k := w.actors[st.client], expiryKey{expiryTypes[st.typ], name(st.at)}
	switch st.what {
	case "give":
		w.setTTL(k, expiryTTLs[st.n%len(expiryTTLs)])
	case "beat":
		w.renew(k)
	case "remove":
		w.record(k, originEvent{removed: true})
		w.origin.Remove(k.typeURL, k.name)
	case "subscribe":
		a.subscribe(k.typeURL, k.name)
	case "wildcard":
		a.wantAll(k.typeURL)
	case "unsubscribe":
		a.unsubscribe(k.typeURL, k.name)
	case "unwildcard":
		a.unsubscribe(k.typeURL, "*")
	case "reconnect":
		a.resume()
		// A complete set is sent when it is confirmed (B.7).
		a.slow = a.slow || a.variant == relaytest.SotW && time.Now().Before(w.confirmedAt)
		a.Reconnect(w.relay.Conn())
	case "reject":
		a.mu.Lock()
		a.nackNext = true
		a.mu.Unlock()
	case "pause":
		a.paused, a.slow = true, true
		a.Pause()
	case "resume":
		a.resume()
	case "restart":
		w.returnAfter(0)
	case "away":
		w.origin.Stop()
		w.returnAfter(time.Duration(st.n) * time.Second / 10)
	case "pass":
		time.Sleep(time.Duration(st.n) * 30 * time.Millisecond)
	case "check":
		w.check()
	case "silence":
		w.checkSilence()
	}
	synctest.Wait()
}

// returnAfter restarts the origin after d.
func (w *expiryWorld) returnAfter(d time.Duration) {
	early := time.Now().Before(w.confirmedAt)
	time.Sleep(d)
	w.origin.Restart()
	if w.connectedAt = time.Now().Add(time.Minute); early {
		w.confirmedAt = time.Now().Add(confirmTime)
	}
}

// check renews all resources for some minutes, and then compares the clients with the origin (rule 1).
func (w *expiryWorld) check() {
	for _, a := range w.actors {
		a.resume()
	}
	w.live(4 * time.Minute) // held removals pass
	if w.anyNacked() {
		// NACKed content is not sent again, so set new content.
		for _, k := range w.all() {
			if w.present(k) {
				w.setTTL(k, w.last(k, time.Now()).ttl)
			}
		}
		w.live(4 * time.Minute) // held removals pass
	}
	origin := w.origin.Resources()
	for _, a := range w.actors {
		got := a.alive()
		for _, k := range w.all() {
			want, there := origin[k.typeURL][k.name]
			have, present := got[k]
			subscribed := a.subscribed[k.typeURL][k.name] || a.subscribed[k.typeURL]["*"]
			switch full := a.variant == relaytest.Delta || fullState(k.typeURL); {
			case there && subscribed && (!present || have.Digest != want.Digest):
				w.Errorf("%v: %v is %v (present: %t), want %v as at the origin", a, k, have, present, want)
			case !there && present && full:
				w.Errorf("%v: has %v, which does not exist at the origin", a, k)
			}
		}
	}
}

// anyNacked reports whether a client has sent a NACK since the last call.
func (w *expiryWorld) anyNacked() (some bool) {
	for _, a := range w.actors {
		a.mu.Lock()
		some = some || a.nacked
		a.nackNext, a.nacked = false, false
		a.mu.Unlock()
	}
	return some
}

// live lets d pass while the origin renews all resources within the shortest TTL.
func (w *expiryWorld) live(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(15 * time.Second) {
		synctest.Wait()
		for _, k := range w.all() {
			w.renew(k)
		}
	}
	synctest.Wait()
}

// all returns the keys of all resources of the test.
func (w *expiryWorld) all() (keys []expiryKey) {
	for _, typeURL := range expiryTypes {
		for i := range 3 {
			keys = append(keys, expiryKey{typeURL, name(i)})
		}
	}
	return keys
}

// present reports whether the origin has a resource.
func (w *expiryWorld) present(k expiryKey) bool {
	_, there := w.origin.Resources()[k.typeURL][k.name]
	return there
}

// checkSilence lets all TTLs expire, and checks that nothing else happens (rule 3).
func (w *expiryWorld) checkSilence() {
	for _, a := range w.actors {
		a.resume()
	}
	time.Sleep(4 * time.Minute) // until pending changes are delivered
	sleep(longestTTL)
	before := make([]int, len(w.actors))
	for i, a := range w.actors {
		before[i] = len(a.Responses())
		hasRemovals := a.variant == relaytest.Delta
		for k := range a.alive() {
			if w.last(k, time.Now()).ttl > 0 && (a.ttl || hasRemovals || fullState(k.typeURL)) && !w.doubtful(a) {
				w.Errorf("%v: %v has not expired", a, k)
			}
		}
	}
	sleep(settled)
	for i, a := range w.actors {
		if sent := a.Responses()[before[i]:]; len(sent) > 0 {
			w.Errorf("%v: got unexpected responses: %v", a, sent)
		}
	}
}

// doubtful reports whether the client has sent a NACK, so that its resources may differ from those of the relay.
func (w *expiryWorld) doubtful(a *expiryActor) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.nacks) > 0
}

// alive returns the client's resources that have not expired by its own timers.
func (a *expiryActor) alive() map[expiryKey]relaytest.Entry {
	deadlines := make(map[expiryKey]time.Time)
	for _, r := range a.accepted() {
		for _, res := range r.Resources {
			if k := (expiryKey{r.TypeURL, res.Name}); res.TTL > 0 {
				deadlines[k] = r.At.Add(res.TTL)
			} else {
				delete(deadlines, k)
			}
		}
	}
	alive := make(map[expiryKey]relaytest.Entry)
	for typeURL, entries := range a.State() {
		for n, entry := range entries {
			k := expiryKey{typeURL, n}
			if deadline, ends := deadlines[k]; typeURL != acmeThing && (!ends || time.Now().Before(deadline)) {
				alive[k] = entry
			}
		}
	}
	return alive
}

// accepted returns the responses that the client ACKed.
func (a *expiryActor) accepted() []*relaytest.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(a.Responses(), func(r *relaytest.Response) bool { return a.nacks[r] })
}

// checkHistory checks all responses (rules 2 and 4).
func (w *expiryWorld) checkHistory() {
	for _, a := range w.actors {
		if w.doubtful(a) {
			continue
		}
		expiries := make(map[expiryKey]time.Time) // when it expires; zero means never
		for _, r := range a.accepted() {
			named := r.Names()
			for _, res := range r.Resources {
				k := expiryKey{r.TypeURL, res.Name}
				ends, present := expiries[k]
				if !ends.IsZero() && ends.Before(r.At) {
					w.checkExpired(a, k, ends)
					if res.Heartbeat() && !a.slow {
						w.Errorf("%v: got a heartbeat at %v for %v, which expired at %v", a, r.At, k, ends)
					}
				}
				if res.Heartbeat() && !present {
					w.Errorf("%v: got a heartbeat for %v, which it does not have", a, k)
				}
				if expiries[k] = (time.Time{}); res.TTL > 0 {
					expiries[k] = r.At.Add(res.TTL)
				}
			}
			for k := range expiries {
				removed := k.typeURL == r.TypeURL && (slices.Contains(r.Removed, k.name) ||
					r.SotW() && fullState(r.TypeURL) && !slices.Contains(named, k.name))
				if removed {
					w.checkExpired(a, k, r.At)
					delete(expiries, k)
				}
			}
		}
		for k, ends := range expiries {
			if !ends.IsZero() && ends.Before(time.Now()) {
				w.checkExpired(a, k, ends)
			}
		}
	}
}

// checkExpired checks that a resource that a client lost was removed by the origin or not renewed in time. It skips
// clients that were slow, waited for a set or unsubscribed: they may have missed a heartbeat.
func (w *expiryWorld) checkExpired(a *expiryActor, k expiryKey, at time.Time) {
	if a.slow || a.unsubscribed[k.typeURL+"/"+k.name] || a.unsubscribed[k.typeURL+"/*"] {
		return
	}
	const late = 30 * time.Second // a removal may be sent late, and the resource set again meanwhile
	if slices.ContainsFunc(w.events[k],
		func(s originEvent) bool { return s.removed && !s.at.After(at) && at.Sub(s.at) <= late }) {
		return
	}
	if last := w.last(k, at.Add(-1)); !last.maybeMissed && !last.removed &&
		(last.ttl == 0 || at.Before(last.at.Add(last.ttl))) {
		w.Errorf("%v: lost %v at %v, which the origin sent at %v with a TTL of %v (0 means none)", a, k, at, last.at,
			last.ttl)
	}
}
