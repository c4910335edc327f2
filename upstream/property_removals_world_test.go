package upstream_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// An id identifies a resource.
type id struct{ typeURL, name string }

// A key identifies a resource in one of the sets that clients receive.
type key struct {
	id
	set string // members, named, or a glob
}

// String returns the short name of the type and the name.
func (of id) String() string {
	return fmt.Sprintf("%s %s", of.typeURL[strings.LastIndexByte(of.typeURL, '.')+1:], of.name)
}

// String returns the resource and its set.
func (k key) String() string { return fmt.Sprintf("%v (%s)", k.id, k.set) }

// An item is a resource of an origin.
type item struct {
	version string
	body    *anypb.Any
	empty   bool // an assignment without endpoints
}

// An observed is a resource as clients receive it.
type observed struct {
	body string
	had  bool      // it is not an empty assignment
	born cache.Seq // when the view added it
}

// An address is one address of the origin, and its state in the model.
type address struct {
	*relaytest.Origin
	running bool
	items   map[id]item
	back    map[id]time.Time // when the address last received a resource that it had lacked
	gone    map[id]time.Time // since when the address lacks a resource that it had
	since   time.Time        // when the present server started, if it can be distinguished from the one before
	replica int              // each replica uses the same versions for other content
}

// lose records that the address lacks a resource. A server that had it for a moment, in which the relay need not have a stream,
// cannot be distinguished from the one before that lacked it, unless it has an identifier.
func (a *address) lose(of id) {
	if time.Since(a.gone[of]) > 15*time.Second && time.Since(a.back[of]) >= 2*time.Second {
		a.gone[of] = time.Now()
	}
}

// A world is one run of a history. It implements testing.TB, so that rapid can shrink a failure.
type world struct {
	testing.TB
	failures []string
	at       int // index of the current step
	start    time.Time
	watched  bool // see history
	silent   bool // origins do not report nonexistent names
	sotw     bool

	*rig
	cfg       upstream.Config
	addresses [2]*address
	database  map[id]int             // version of each existing resource; negative for an empty assignment
	versions  int                    // last version
	large     map[id]bool            // resources that are large
	ever      map[id]map[string]bool // all bodies that an address has had

	observedIn    *cache.Generation // of the last call of observed
	observedThere map[key]observed

	seen     map[key]observed        // at the last check
	knows    map[string]bool         // types whose wildcard set was confirmed at the last check
	began    map[key]time.Time       // when clients began to receive the resource
	holds    map[id][]reconcile.Hold // at the last check of holds
	moved    bool                    // the active address has changed since the last check of holds
	stated   map[id]bool             // explicitly removed at this moment at the active address
	passed   map[id]bool             // passed by an operator in this step
	frozen   time.Time               // since when the view is frozen; zero if it is not
	thawed   bool                    // the view was thawed in this step
	active   int                     // index of the active address
	restless time.Time               // until when the effects of earlier steps may last
}

// Errorf records a failure.
func (w *world) Errorf(format string, args ...any) {
	w.failures = append(w.failures, fmt.Sprintf(format, args...))
}

// Fatalf records a failure and ends the run.
func (w *world) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	panic(errStop)
}

// Fatal records a failure and ends the run.
func (w *world) Fatal(args ...any) { w.Fatalf("%s", fmt.Sprint(args...)) }

// namesOf returns the names of the model's resources of a type.
func namesOf(typeURL string) (names []string) {
	for _, of := range universe {
		if of.typeURL == typeURL {
			names = append(names, of.name)
		}
	}
	return names
}

// make returns a resource of a replica. A negative version means an assignment without endpoints.
func (w *world) make(of id, version, replica int) item {
	tag := fmt.Sprintf("%d of replica %d", version, replica)
	if w.large[of] {
		tag += strings.Repeat(", large", 200)
	}
	last := int(of.name[len(of.name)-1] - '0')
	it := item{version: fmt.Sprint(max(version, -version))}
	var m proto.Message
	switch of.typeURL {
	case clusters:
		c := relaytest.Cluster(of.name, fmt.Sprintf("e%02d", last%8))
		c.AltStatName = tag
		m = c
	case listeners:
		l := relaytest.Listener(of.name, fmt.Sprintf("r%02d", last%4))
		l.StatPrefix = tag
		m = l
	case routes:
		m = relaytest.Route(of.name, []string{tag}, "c00")
	default:
		if it.empty = version < 0; it.empty {
			m = relaytest.Endpoints(of.name)
		} else {
			m = relaytest.Endpoints(of.name, fmt.Sprintf("10.0.%d.1:%d", replica, version))
		}
	}
	value := check.Must(proto.MarshalOptions{Deterministic: true}.Marshal(m))
	it.body = &anypb.Any{TypeUrl: of.typeURL, Value: value}
	return it
}

// run runs a history. The failures are in w.failures.
func (w *world) run(h history) {
	defer func() {
		if r := recover(); r != nil && r != any(errStop) {
			panic(r)
		}
	}()
	w.start = time.Now()
	w.watched, w.sotw, w.silent = h.watched, h.variant == "SotW", h.traits&2 != 0
	w.large, w.database, w.ever, w.holds = make(map[id]bool), make(map[id]int), make(map[id]map[string]bool), make(map[id][]reconcile.Hold)
	w.began, w.stated, w.passed = make(map[key]time.Time), make(map[id]bool), make(map[id]bool)
	for i, name := range []string{"one", "two"} {
		w.addresses[i] = &address{
			Origin:  relaytest.NewOrigin(w, relaytest.OriginOptions{Memory: true, Address: name, Behaviour: h.behaviour()}),
			running: true, items: make(map[id]item), back: make(map[id]time.Time), gone: make(map[id]time.Time),
		}
	}
	one, two := w.addresses[0].Origin, w.addresses[1].Origin
	w.cfg = upstream.Config{
		Targets: []string{one.Target(), two.Target()}, DialOptions: relaytest.DialOptions(one, two),
		Linger: 10000 * time.Hour, Growth: growthLimit,
		Required: func(typeURL, name string) bool { return id{typeURL, name} == required },
	}
	w.bumpVersions(universe...)
	w.rig = viewSync(w, one, w.cfg)
	w.subscribe()
	w.restless = time.Now().Add(settleTime)
	w.advance(2 * time.Minute)
	for i, s := range h.steps {
		w.at = i
		w.step(s)
	}
	w.settle()
	w.stop()
}

// subscribe subscribes to all resources of the model.
func (w *world) subscribe() {
	for _, key := range []string{clusters, listeners, cache.Collection(clusters, modelGlob)} {
		w.watch.SubscribeAll(key)
	}
	for typeURL, names := range wanted {
		w.watch.Subscribe(typeURL, names)
	}
}

// settle thaws the view, starts the addresses, waits for more than an hour without events, and checks that no removal
// is pending.
func (w *world) settle() {
	if !w.frozen.IsZero() {
		w.step(step{what: "thaw"})
	}
	for at := range w.addresses {
		w.step(step{what: "start", at: at})
	}
	w.advance(5 * time.Minute)
	w.advance(80 * time.Minute)
	w.check(true)
	for of, holds := range w.holds {
		for _, h := range holds {
			if !isOfOperator(h) && !w.keptFor(of) && !w.neverRemoved(key{of, members}) {
				w.Errorf("removal of %v is still pending after an hour without events: %+v", of, h)
			}
		}
	}
	if w.restless.After(time.Now()) {
		w.Errorf("effects of earlier steps may last until %v, want none", w.restless)
	}
}

// pick returns resources of a type: one, three, more than half, or all, depending on amount and n.
func pick(typeURL string, amount, n int) (ids []id) {
	names := namesOf(typeURL)
	count := []int{1, 3, len(names)*2/3 + 1, len(names)}[amount]
	for i := range min(count, len(names)) {
		ids = append(ids, id{typeURL, names[(n+i)%len(names)]})
	}
	return ids
}

// step performs one step.
func (w *world) step(s step) {
	a := w.addresses[s.at]
	chosen := pick(types[s.n%len(types)], s.amount, s.n/len(types))
	switch s.what {
	case "put", "grow":
		for _, of := range chosen {
			w.large[of] = s.what == "grow"
		}
		w.bumpVersions(chosen...)
	case "remove":
		w.remove(chosen...)
	case "rename": // listeners get other names
		w.remove(pick(listeners, s.amount, s.n)...)
		w.bumpVersions(pick(listeners, s.amount, s.n+3)...)
	case "refill": // most listeners or clusters are removed, and all return
		all := pick(types[s.n%2], 3, 0)
		w.remove(all[:len(all)*2/3+1]...)
		w.advance(time.Duration(s.amount) * time.Minute)
		w.bumpVersions(all...)
	case "empty":
		w.versions++
		for _, of := range pick(endpoints, s.amount, s.n) {
			w.database[of] = -w.versions
		}
		w.sendRemovals(pick(endpoints, s.amount, s.n))
	case "repeat": // the origin resends all resources
		w.send(a, slices.Collect(maps.Keys(a.items)))
	case "load":
		w.loadPart(a, 10)
	case "load all":
		w.loadPart(a, len(universe))
	default:
		w.fault(s, a)
	}
	w.advance(0)
	clear(w.passed)
	w.thawed = false
}

// fault performs a step that does not change content.
func (w *world) fault(s step, a *address) {
	switch s.what {
	case "restart":
		w.crash(a)
		w.startReplica(a, s)
	case "flap": // a server with a part of the resources responds, and soon a complete one replaces it
		w.crash(a)
		w.startReplica(a, s)
		w.advance(time.Second)
		w.crash(a)
		w.startReplica(a, step{n: s.n})
		w.advance(time.Second)
	case "cut": // streams end after seconds, and the next ones reach the same server, or two in turn of which one lacks a part
		for i := range 2 + s.n%5 {
			w.crash(a)
			w.startReplica(a, step{n: 3*s.n + 1, amount: i * (s.amount % 2) % 2})
			w.advance(time.Duration(1+3*(s.n%3)) * time.Second)
		}
	case "lose": // the origin loses resources, and an operator drops the removals
		w.crash(a)
		w.startReplica(a, step{n: s.n, amount: 2 + s.amount%2})
		w.advance(40 * time.Second)
		w.operate(step{what: "drop", amount: s.amount, n: s.n})
	case "reject":
		w.reject(s)
	case "crash":
		w.crash(a)
	case "start":
		if !a.running {
			w.startReplica(a, s)
		}
	case "relay":
		w.restart()
	case "second":
		w.advance(time.Second)
	case "seconds":
		w.advance(time.Duration(2+s.n%20) * time.Second)
	case "minute":
		w.advance(time.Duration(40+s.n%60) * time.Second)
	case "minutes":
		w.advance(settleTime + 10*time.Second)
	case "hold":
		w.advance(9*time.Minute + time.Duration(s.n%200)*time.Second)
	default:
		w.operate(s)
	}
}

// reject makes clients reject some resources, which the origin is told, or nothing any longer (TENDER_REPORT_REJECTS). An origin that is
// told so changes nothing, and clients do not lose anything.
func (w *world) reject(s step) {
	var all []upstream.Rejection
	for _, of := range pick(types[s.n%len(types)], s.amount, s.n/len(types)) {
		t := w.view.Generation().Type(of.typeURL)
		for _, set := range []*cache.Set{&t.Wildcard, &t.ByName} {
			name := w.view.FindName(of.typeURL, of.name)
			if s.n%4 == 0 || name == nil || !set.Get(name).Present() {
				continue
			}
			all = append(all, upstream.Rejection{
				TypeURL: of.typeURL, Name: of.name, Resource: set.Get(name).Resource, Rejecting: 1, Clients: 1, At: time.Now(), Err: "bad",
			})
		}
	}
	w.control.Report(w.Context(), all)
}

// markUnsettled records that the effect of a step may last for d.
func (w *world) markUnsettled(d time.Duration) {
	if until := time.Now().Add(d); until.After(w.restless) {
		w.restless = until
	}
}

// bumpVersions gives resources new versions.
func (w *world) bumpVersions(ids ...id) {
	w.versions++
	for _, of := range ids {
		w.database[of] = w.versions
	}
	w.publish(ids, time.Second)
}

// remove deletes resources from the database and from the running addresses.
func (w *world) remove(ids ...id) {
	for _, of := range ids {
		delete(w.database, of)
	}
	w.sendRemovals(ids)
}

// sendRemovals makes the running addresses send removals.
func (w *world) sendRemovals(gone []id) {
	if w.addresses[w.active].running {
		for _, of := range gone {
			w.stated[of] = true
		}
	}
	w.publish(gone, settleTime) // suspect on a stream whose set is not confirmed
}

// publish makes the running addresses send a change, whose effect may last for unrest.
func (w *world) publish(ids []id, unrest time.Duration) {
	w.markUnsettled(unrest)
	for _, a := range w.addresses {
		if a.running {
			w.replicate(a, ids)
			w.send(a, ids)
		}
	}
}

// replicate copies resources from the database to an address.
func (w *world) replicate(a *address, ids []id) {
	for _, of := range ids {
		was, had := a.items[of]
		version, there := w.database[of]
		if !there {
			if had {
				a.lose(of)
			}
			delete(a.items, of)
			continue
		}
		is := w.make(of, version, a.replica)
		if is.empty && had && !was.empty {
			a.lose(of)
		}
		if a.items[of] = is; !is.empty && (!had || was.empty) {
			a.back[of] = time.Now()
		}
		if w.ever[of] == nil {
			w.ever[of] = make(map[string]bool)
		}
		w.ever[of][string(is.body.Value)] = true
	}
}

// send makes an address send its state of some resources.
func (w *world) send(a *address, ids []id) {
	slices.SortFunc(ids, func(x, y id) int { return strings.Compare(x.typeURL+x.name, y.typeURL+y.name) })
	a.Apply(func(tx *relaytest.Tx) {
		for _, of := range ids {
			if it, has := a.items[of]; has {
				tx.Set(of.typeURL, of.name, it.body, it.version)
			} else {
				tx.Remove(of.typeURL, of.name)
			}
		}
	})
}

// loadPart makes an address load at most most of the resources that it lacks.
func (w *world) loadPart(a *address, most int) {
	var missing []id
	for _, of := range universe {
		_, there := w.database[of]
		if _, has := a.items[of]; there && !has && len(missing) < most {
			missing = append(missing, of)
		}
	}
	if a.running && len(missing) > 0 {
		w.markUnsettled(settleTime)
		w.replicate(a, missing)
		w.send(a, missing)
	}
}

// crash stops an address without a graceful close.
func (w *world) crash(a *address) {
	w.markUnsettled(settleTime)
	clear(w.stated) // the relay may not have received it
	a.Stop()
	a.running = false
}

// startReplica starts an address with a part of the database, possibly as another replica.
func (w *world) startReplica(a *address, s step) {
	w.markUnsettled(settleTime)
	if s.n%3 == 0 {
		a.replica++
		a.Change(func(b *relaytest.Behaviour) {
			if b.ControlPlane != "" {
				a.since = time.Now()
				b.ControlPlane = fmt.Sprintf("%s, replica %d", a.Target(), a.replica)
			}
		})
	}
	a.Clear()
	old, back := a.items, maps.Clone(a.back)
	a.items = make(map[id]item)
	var has []id
	for i, of := range universe {
		if loaded := []bool{true, i%10 != s.n%10, i%3 == s.n%3, false}[s.amount]; loaded {
			has = append(has, of)
		}
	}
	w.replicate(a, has)
	for of := range old {
		if it, has := a.items[of]; (!has || it.empty) && !old[of].empty {
			a.lose(of)
		}
	}
	for of := range a.items { // the address did not lack resources that it had before the restart
		if was, had := old[of]; had && !was.empty {
			a.back[of] = back[of]
		}
	}
	w.send(a, slices.Collect(maps.Keys(a.items)))
	a.Restart()
	a.running = true
}

// restart ends the relay and starts another one with its snapshot and the decisions of operators.
func (w *world) restart() {
	w.check(true)
	dropped := slices.DeleteFunc(w.control.Operate(w.Context(), reconcile.Command{}), func(h reconcile.Hold) bool { return !isDropped(h) })
	w.stop()
	before := w.observed()
	w.addresses[0].WaitFor(w.Context(), "the end of all streams", func(s *relaytest.OriginState) bool { return len(s.Open()) == 0 })
	s, _ := w.w.Snapshot(true)
	w.rig = decided(w, w.addresses[0].Origin, w.cfg, s, upstream.NewControl(!w.frozen.IsZero(), dropped))
	w.subscribe()
	w.markUnsettled(settleTime)
	w.seen, w.active = w.observed(), 0
	for k, is := range w.seen {
		was, there := before[k]
		if !there && w.inTwoSets(k.id) {
			continue // a snapshot omits removed names, so that the name shows the member
		}
		it, has := w.addresses[0].items[k.id]
		if current := has && string(it.body.Value) == is.body; was.body != is.body && !current { // the origin may have responded
			w.Errorf("%v was restored with other content than was served", k)
		}
	}
	holds := w.holds
	w.holds = w.currentHolds()
	for of, were := range holds {
		if slices.ContainsFunc(were, isDropped) && w.sees(of) && w.stillLacks(of, 0) && !slices.ContainsFunc(w.holds[of], isDropped) {
			w.Errorf("the removal of %v was dropped before a restart, and is no longer dropped after it", of)
		}
	}
}

// advance waits for d, with repeated checks.
func (w *world) advance(d time.Duration) {
	defer w.failNow()
	synctest.Wait()
	w.check(d == 0)
	for d > 0 {
		every := time.Second
		if time.Now().After(w.restless) {
			every = 10 * time.Second
		}
		pause := min(d, every)
		w.pass(pause)
		w.pass(time.Microsecond) // until the actions that are due now are done
		d -= pause
		w.check(w.watched || d == 0)
		clear(w.stated)
		clear(w.passed)
		w.failNow()
	}
}

// failNow ends the run if a check has failed.
func (w *world) failNow() {
	if len(w.failures) > 0 {
		w.Fatalf("in step %d, %v after the start; active address: %d, connected: %v", w.at, time.Since(w.start), w.active, w.connected())
	}
}
