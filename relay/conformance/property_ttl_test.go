package conformance_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestD4_Expiry is TestD4_Invariants for resources that expire: random interleavings of
// what an origin says, heartbeats among it, of silence, and of what clients do, some of
// which understand TTLs. It holds the relay to this:
//
//  1. convergence: while the origin says that all it has lives on, each client ends with
//     just that, and nothing of it expires on its side;
//  2. no invented deletion: what a client loses, or its own timer takes, the origin had
//     removed or left without a word for its time;
//  3. once the origin falls silent, nothing outlives its time at any client that can be
//     told; what has no TTL stays, and nothing else is sent;
//  4. a heartbeat is for what lives at the client, in the version that it has.
//
// That TTLs, wrappers and heartbeats reach only who understands them, and never without
// content in SotW, is checked by the clients on every response.
func TestD4_Expiry(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawExpiryStep), 10, 60).Draw(rt, "steps")
		var failures []string
		synctest.Test(t, func(t *testing.T) {
			w := &expiryWorld{scene: scene{TB: t}, has: make(map[expiryKey][]expirySaid)}
			defer func() { failures = w.failures }()
			w.run(steps)
		})
		if len(failures) > 0 {
			rt.Fatalf("%s", strings.Join(failures, "\n"))
		}
	})
}

func drawExpiryStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{
			"give", "give", "give", "beat", "beat", "remove", "subscribe", "subscribe", "wildcard", "unsubscribe", "unwildcard",
			"reconnect", "refuse", "pause", "resume", "restart", "away", "pass", "pass", "check", "silence",
		}).Draw(t, "what"),
		client: rapid.IntRange(0, 7).Draw(t, "client"),
		typ:    rapid.IntRange(0, len(expiryTypes)-1).Draw(t, "type"),
		at:     rapid.IntRange(0, 2).Draw(t, "name"),
		n:      rapid.IntRange(0, 1000).Draw(t, "n"),
	}
}

var expiryTypes = []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.SecretType, acmeType}

// expiryTTLs are those that resources are given; zero is none.
var expiryTTLs = []time.Duration{0, 20 * time.Second, time.Minute, 3 * time.Minute}

const longestTTL = 3 * time.Minute

// unsure is within how long after it is connected the relay knows its sets for certain: with this TENDER_COLD_WAIT,
// they are confirmed after a minute (B.7).
const unsure = 70 * time.Second

type expiryKey struct{ typeURL, name string }

// An expirySaid is what the origin said of a resource, and when.
type expirySaid struct {
	at      time.Time
	ttl     time.Duration
	removed bool
	unheard bool // the relay may not have heard it
}

// An expiryWorld is a scene whose resources expire.
type expiryWorld struct {
	scene
	actors []*expiryActor
	has    map[expiryKey][]expirySaid
	stable time.Time // when the relay has found the origin again
	sure   time.Time // when it knows all of its sets for certain
}

// An expiryActor is a client with timers.
type expiryActor struct {
	*actor
	ttl  bool
	slow bool // at some time, to read or to be told

	refusals map[*relaytest.Response]bool // guarded by actor.mu
}

func (w *expiryWorld) run(steps []step) {
	defer func() {
		r := recover()
		if err, ok := r.(error); r != nil && (!ok || !errors.Is(err, errStop)) {
			panic(r)
		}
	}()
	w.origin = relaytest.NewOrigin(&w.scene, relaytest.OriginOptions{Memory: true})
	w.relay = start(&w.scene, w.origin, "TENDER_COLD_WAIT=10m", "TENDER_MASS_DELETE_HOLD=20s")
	w.sure = time.Now().Add(unsure)
	w.origin.Put(opaque(acmeThing, "always", "there")) // a stream must not stay silent
	for i, k := range w.all() {
		w.give(k, expiryTTLs[i%len(expiryTTLs)])
	}
	for i := range 8 {
		w.join(relaytest.Variant(i%2), i%4 < 2, i < 4)
	}
	for _, st := range steps {
		w.step(st)
	}
	w.check()
	w.silence()
	w.history()
}

// join adds a client that follows all, or the first name of each type.
func (w *expiryWorld) join(v relaytest.Variant, ttl, all bool) {
	a := &expiryActor{
		actor: &actor{variant: v, wants: map[string]map[string]bool{}, left: map[string]bool{}},
		ttl:   ttl, refusals: make(map[*relaytest.Response]bool),
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
			if !a.refuse || len(r.Removed) > 0 || r.SotW() && fullState(r.TypeURL) { // a removal is not said again
				return nil
			}
			a.refuse, a.refused, a.refusals[r] = false, true, true
			return errors.New("not to my liking")
		},
	})
	w.actors = append(w.actors, a)
	a.want(acmeThing, "always")
	for _, typeURL := range expiryTypes {
		if all {
			a.wantAll(typeURL)
		} else {
			a.want(typeURL, name(0))
		}
	}
}

// wantAll subscribes to all of a type: Secrets have to be named (B.36).
func (a *actor) wantAll(typeURL string) {
	if typeURL != relaytest.SecretType {
		a.want(typeURL, "*")
		return
	}
	for i := range 3 {
		a.want(typeURL, name(i))
	}
}

// say notes that the origin says something now.
func (w *expiryWorld) say(k expiryKey, s expirySaid) {
	s.at = time.Now()
	s.unheard = !s.at.After(w.stable)
	w.has[k] = append(w.has[k], s)
}

// last returns what the origin had said last at a time.
func (w *expiryWorld) last(k expiryKey, at time.Time) (last expirySaid) {
	for _, s := range w.has[k] {
		if !s.at.After(at) {
			last = s
		}
	}
	return last
}

func (w *expiryWorld) give(k expiryKey, ttl time.Duration) {
	body := opaque(k.typeURL, k.name, fmt.Sprint(w.counter))
	w.counter++
	r := &discoverypb.Resource{Name: k.name, Version: fmt.Sprint("v", w.counter), Resource: body}
	if ttl > 0 {
		r.Ttl = durationpb.New(ttl)
	}
	w.say(k, expirySaid{ttl: ttl})
	w.origin.SetRaw(k.typeURL, r)
}

func (w *expiryWorld) beat(k expiryKey) {
	if ttl := w.last(k, time.Now()).ttl; ttl > 0 && w.present(k) {
		w.say(k, expirySaid{ttl: ttl})
		w.origin.Heartbeat(k.typeURL, k.name)
	}
}

func (w *expiryWorld) step(st step) {
	a, k := w.actors[st.client], expiryKey{expiryTypes[st.typ], name(st.at)}
	switch st.what {
	case "give":
		w.give(k, expiryTTLs[st.n%len(expiryTTLs)])
	case "beat":
		w.beat(k)
	case "remove":
		w.say(k, expirySaid{removed: true})
		w.origin.Remove(k.typeURL, k.name)
	case "subscribe":
		a.want(k.typeURL, k.name)
	case "wildcard":
		a.wantAll(k.typeURL)
	case "unsubscribe":
		a.leave(k.typeURL, k.name)
	case "unwildcard":
		a.leave(k.typeURL, "*")
	case "reconnect":
		a.resume()
		// A complete set waits until the relay knows all of it (B.7).
		a.slow = a.slow || a.variant == relaytest.SotW && time.Now().Before(w.sure)
		a.Reconnect(w.relay.Conn())
	case "refuse":
		a.mu.Lock()
		a.refuse = true
		a.mu.Unlock()
	case "pause":
		a.paused, a.slow = true, true
		a.Pause()
	case "resume":
		a.resume()
	case "restart":
		w.away(0)
	case "away":
		w.origin.Stop()
		w.away(time.Duration(st.n) * time.Second / 10)
	case "pass":
		time.Sleep(time.Duration(st.n) * 30 * time.Millisecond)
	case "check":
		w.check()
	case "silence":
		w.silence()
	}
	synctest.Wait()
}

// away has the origin return after some time.
func (w *expiryWorld) away(d time.Duration) {
	early := time.Now().Before(w.sure)
	time.Sleep(d)
	w.origin.Restart()
	if w.stable = time.Now().Add(time.Minute); early {
		w.sure = time.Now().Add(unsure)
	}
}

// check has all live on for a while, and holds what clients have to what the origin has
// (1).
func (w *expiryWorld) check() {
	for _, a := range w.actors {
		a.resume()
	}
	w.live(4 * time.Minute) // removals that are held back end
	if w.refused() {
		// What was refused is not sent again: something new is.
		for _, k := range w.all() {
			if w.present(k) {
				w.give(k, w.last(k, time.Now()).ttl)
			}
		}
		w.live(4 * time.Minute) // removals that are held back end
	}
	origin := w.origin.Resources()
	for _, a := range w.actors {
		got := a.alive()
		for _, k := range w.all() {
			want, there := origin[k.typeURL][k.name]
			have, has := got[k]
			wanted := a.wants[k.typeURL][k.name] || a.wants[k.typeURL]["*"]
			switch full := a.variant == relaytest.Delta || fullState(k.typeURL); {
			case there && wanted && (!has || have.Digest != want.Digest):
				w.Errorf("%v: %v is %v (there: %t), the origin has %v", a, k, have, has, want)
			case !there && has && full:
				w.Errorf("%v: has %v, which the origin has not", a, k)
			}
		}
	}
}

// refused reports whether a client refused something since it was asked last.
func (w *expiryWorld) refused() (some bool) {
	for _, a := range w.actors {
		a.mu.Lock()
		some = some || a.refused
		a.refuse, a.refused = false, false
		a.mu.Unlock()
	}
	return some
}

// live lets time pass in which the origin says that all it has lives on, well within the
// shortest TTL.
func (w *expiryWorld) live(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(15 * time.Second) {
		synctest.Wait()
		for _, k := range w.all() {
			w.beat(k)
		}
	}
	synctest.Wait()
}

// all returns all resources that there ever are.
func (w *expiryWorld) all() (keys []expiryKey) {
	for _, typeURL := range expiryTypes {
		for i := range 3 {
			keys = append(keys, expiryKey{typeURL, name(i)})
		}
	}
	return keys
}

func (w *expiryWorld) present(k expiryKey) bool {
	_, there := w.origin.Resources()[k.typeURL][k.name]
	return there
}

// silence lets everything expire that can, and nothing else happen (3).
func (w *expiryWorld) silence() {
	for _, a := range w.actors {
		a.resume()
	}
	time.Sleep(4 * time.Minute) // what was going on comes to rest
	time.Sleep(longestTTL)
	synctest.Wait()
	before := make([]int, len(w.actors))
	for i, a := range w.actors {
		before[i] = len(a.Responses())
		told := a.variant == relaytest.Delta
		for k := range a.alive() {
			if w.last(k, time.Now()).ttl > 0 && (a.ttl || told || fullState(k.typeURL)) && !w.doubtful(a) {
				w.Errorf("%v: %v lives on", a, k)
			}
		}
	}
	time.Sleep(settled)
	synctest.Wait()
	for i, a := range w.actors {
		if sent := a.Responses()[before[i]:]; len(sent) > 0 {
			w.Errorf("%v: sent without need: %v", a, sent)
		}
	}
}

// doubtful reports whether a client may have what it refused to lose.
func (w *expiryWorld) doubtful(a *expiryActor) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.refusals) > 0
}

// alive returns what the client has and what did not expire on its side.
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

// accepted returns the responses that the client did not refuse.
func (a *expiryActor) accepted() []*relaytest.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(a.Responses(), func(r *relaytest.Response) bool { return a.refusals[r] })
}

// history looks at all that was ever sent (2, 4).
func (w *expiryWorld) history() {
	for _, a := range w.actors {
		if w.doubtful(a) {
			continue
		}
		had := make(map[expiryKey]time.Time) // until when; zero is without end
		for _, r := range a.accepted() {
			named := r.Names()
			for _, res := range r.Resources {
				k := expiryKey{r.TypeURL, res.Name}
				ends, has := had[k]
				if !ends.IsZero() && ends.Before(r.At) {
					w.lostInTime(a, k, ends)
					if res.Heartbeat() && !a.slow {
						w.Errorf("%v: a heartbeat at %v for %v, which had expired at %v", a, r.At, k, ends)
					}
				}
				if res.Heartbeat() && !has {
					w.Errorf("%v: a heartbeat for %v, which it has not", a, k)
				}
				if had[k] = (time.Time{}); res.TTL > 0 {
					had[k] = r.At.Add(res.TTL)
				}
			}
			for k := range had {
				gone := k.typeURL == r.TypeURL && (slices.Contains(r.Removed, k.name) ||
					r.SotW() && fullState(r.TypeURL) && !slices.Contains(named, k.name))
				if gone {
					w.lostInTime(a, k, r.At)
					delete(had, k)
				}
			}
		}
		for k, ends := range had {
			if !ends.IsZero() && ends.Before(time.Now()) {
				w.lostInTime(a, k, ends)
			}
		}
	}
}

// lostInTime checks that what a client lost was removed, or left without a word for its
// time. A client that was slow, had to wait for a set, or gave it up, may have missed the word. One that
// came at the very moment may have come too late.
func (w *expiryWorld) lostInTime(a *expiryActor, k expiryKey, at time.Time) {
	if a.slow || a.left[k.typeURL+"/"+k.name] || a.left[k.typeURL+"/*"] {
		return
	}
	const late = 30 * time.Second // a removal may be, and the resource be given again meanwhile
	if slices.ContainsFunc(w.has[k], func(s expirySaid) bool { return s.removed && !s.at.After(at) && at.Sub(s.at) <= late }) {
		return
	}
	if said := w.last(k, at.Add(-1)); !said.unheard && !said.removed && (said.ttl == 0 || at.Before(said.at.Add(said.ttl))) {
		w.Errorf("%v: lost %v at %v, of which the origin had said at %v that it lives for %v (0 is for ever)", a, k, at, said.at, said.ttl)
	}
}
