package pending

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

const (
	other = "type.googleapis.com/acme.Other"
	shop  = "xdstp://shop/" + "acme.Thing/"
)

var shopKey = cache.Collection(acme, shop+"*")

// A tester is the part of testing.TB that rapid.T has, too.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// An origin states its resources to a list, as an upstream session does.
type origin struct {
	tester
	*List
	view    *cache.View
	cfg     cache.Config // of the view
	typeURL string       // type URL or collection
	counts  Staged       // what waits for stages
}

func newOrigin(t tester, cfg cache.Config) *origin {
	v, w := cache.New(cfg)
	w.SetConnected(true)
	o := &origin{tester: t, List: New(w, nil), view: v, cfg: cfg, typeURL: acme}
	o.ReportStaged(func(s Staged) { o.counts = s })
	return o
}

// views returns the views of all cohorts, and that of the rest.
func (o *origin) views() (all []*cache.View) {
	for cohort := range o.view.Cohorts() + 1 {
		all = append(all, o.view.Cohort(cohort))
	}
	return all
}

// decoded returns a resource that is decoded from its encoding.
func decoded(t tester, typeURL string, r *discoverypb.Resource) *wire.Resource {
	t.Helper()
	msg, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, Resources: []*discoverypb.Resource{r}})
	if err != nil {
		t.Fatal(err)
	}
	u, err := wire.Decoder{}.Decode(msg)
	if err != nil {
		t.Fatal(err)
	}
	return u.Resources[0]
}

// resource returns a resource of the origin's type.
func (o *origin) resource(name, version, content string, aliases ...string) *wire.Resource {
	o.Helper()
	typeURL, _, _ := cache.SplitCollection(o.typeURL)
	r, err := wire.NewResource(typeURL, name, version, []byte(content), aliases...)
	if err != nil {
		o.Fatal(err)
	}
	return r
}

// updateOf returns a response with these resources.
func updateOf(typeURL string, resources ...*wire.Resource) wire.Update {
	return wire.Update{TypeURL: typeURL, Resources: resources}
}

// put has the origin send one resource.
func (o *origin) put(k cache.Kind, name, version, content string, aliases ...string) cache.Change {
	o.Helper()
	return o.Apply(k, updateOf(o.typeURL, o.resource(name, version, content, aliases...)))
}

// putTTL has the origin send a resource with a TTL; zero means none.
func (o *origin) putTTL(kind cache.Kind, name, version, content string, ttl time.Duration) cache.Change {
	o.Helper()
	typeURL := setKey{key: o.typeURL}.typeURL()
	r := &discoverypb.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(content)}}
	if ttl > 0 {
		r.Ttl = durationpb.New(ttl)
	}
	return o.Apply(kind, updateOf(o.typeURL, decoded(o, typeURL, r)))
}

// heartbeat has the origin send a heartbeat.
func (o *origin) heartbeat(kind cache.Kind, name, version string, ttl time.Duration) cache.Change {
	o.Helper()
	r := &discoverypb.Resource{Name: name, Version: version, Ttl: durationpb.New(ttl)}
	return o.Apply(kind, updateOf(o.typeURL, decoded(o, acme, r)))
}

// putUncacheable has the origin send a resource that may not be cached.
func (o *origin) putUncacheable(k cache.Kind, name, version, content string) cache.Change {
	o.Helper()
	return o.Apply(k, updateOf(o.typeURL, decoded(o, acme, &discoverypb.Resource{
		Name: name, Version: version, CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
		Resource: &anypb.Any{TypeUrl: acme, Value: []byte(content)},
	})))
}

// remove has the origin remove names.
func (o *origin) remove(k cache.Kind, names ...string) cache.Change {
	o.Helper()
	return o.Apply(k, wire.Update{TypeURL: o.typeURL, Removed: names})
}

// fail has the origin send an error for a resource.
func (o *origin) fail(k cache.Kind, name string, code codes.Code, message string) cache.Change {
	o.Helper()
	return o.Apply(k,
		wire.Update{TypeURL: o.typeURL, Errors: []*wire.ResourceError{wire.NewResourceError(name, code, message)}})
}

// errorText returns the message of the error of a resource that readers see, "" if there is none.
func (o *origin) errorText(k cache.Kind, name string) string {
	o.Helper()
	if !o.hasName(name) {
		return ""
	}
	if e := o.typ().Errors(k).Get(o.name(name)); e != nil {
		return e.Err.Code.String() + " " + e.Err.Message
	}
	return ""
}

// confirm states the members of a type as version 1, and confirms the set.
func (o *origin) confirm(typeURL string, names ...string) {
	o.Helper()
	o.typeURL = typeURL
	for _, name := range names {
		o.put(cache.Wildcard, name, "1", name+"1")
	}
	o.SetPhase(typeURL, cache.Confirmed)
}

// subscribe subscribes a stream to names. The session takes the demand.
func (o *origin) subscribe(w *cache.Watch, names ...string) []*cache.Name {
	o.Helper()
	out := w.Subscribe(o.typeURL, names)
	o.Writer().TakeDemand()
	return out
}

// expire processes the timers that are due, as the owner of the list does.
func (o *origin) expire(now time.Time) {
	o.Step(now)
	o.Expire(now)
}

// typ returns the type that readers see.
func (o *origin) typ() *cache.Type { return o.view.Generation().Type(o.typeURL) }

// name returns the cache.Name of a text, which must be in the index.
func (o *origin) name(text string) *cache.Name {
	o.Helper()
	n := o.view.FindName(o.typeURL, text)
	if n == nil {
		o.Fatalf("name %q is not in the index", text)
	}
	return n
}

// hasName reports whether the index has a name.
func (o *origin) hasName(text string) bool { return o.view.FindName(o.typeURL, text) != nil }

// newSubscribed returns an origin, and a watch that subscribes to names.
func newSubscribed(t tester, names ...string) (*origin, *cache.Watch) {
	o := newOrigin(t, cache.Config{})
	watch := o.view.Watch()
	o.subscribe(watch, names...)
	return o, watch
}

// withClock runs a test of both sets, each in a synctest bubble, in which a stream subscribes to the wildcard and to the names
// a and b.
func withClock(t *testing.T, test func(t *testing.T, o *origin, kind cache.Kind)) {
	t.Helper()
	for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
		t.Run([...]string{"members", "named"}[kind], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, watch := newSubscribed(t)
				watch.SubscribeAll(acme)
				o.subscribe(watch, "a", "b")
				test(t, o, kind)
			})
		})
	}
}

// setOf returns one of the sets of a type.
func setOf(t *cache.Type, kind cache.Kind) *cache.Set {
	if kind == cache.ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// woken reports whether a watch was woken, and clears the wake-up.
func woken(w *cache.Watch) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

func wantLog(t tester, entries iter.Seq[*cache.Entry], want ...string) {
	t.Helper()
	var got []string
	for e := range entries {
		if e.Present() {
			got = append(got, e.Name.String())
		} else {
			got = append(got, "-"+e.Name.String())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("log: got %q, want %q", got, want)
	}
}

// contentOf returns the content of an entry for messages: "" for nil, "-" for an absent resource.
func contentOf(e *cache.Entry) string {
	switch {
	case e == nil:
		return ""
	case !e.Present():
		return "-"
	default:
		return string(e.Resource.Value())
	}
}

// cacheable reports whether content may be cached.
func cacheable(r *wire.Resource) bool {
	return r == nil || !r.DoNotCache && !r.Unresolved() && !r.ContentDropped()
}

// A frozenOrigin has been frozen. Its wildcard set is confirmed and has a, b and c of version 1. A stream subscribes to
// the wildcard and to the names n, which exists, and gone, which does not.
type frozenOrigin struct {
	*origin
	watch    *cache.Watch
	frozenAt cache.Seq // position of the readers
}

func newFrozenOrigin(t tester) *frozenOrigin {
	o := newConfirmedOrigin(t, cache.Config{})
	o.Freeze()
	if !woken(o.watch) {
		t.Errorf("the freeze did not wake the readers: what waits for the origin may be due")
	}
	return o
}

// newConfirmedOrigin returns the origin of newFrozenOrigin without the freeze, for a view with a configuration.
func newConfirmedOrigin(t tester, cfg cache.Config) *frozenOrigin {
	o := &frozenOrigin{origin: newOrigin(t, cfg)}
	o.watch = o.view.Watch()
	o.watch.SubscribeAll(acme)
	o.subscribe(o.watch, "n", "gone")
	for _, name := range []string{"a", "b", "c"} {
		o.put(cache.Wildcard, name, "1", name+"1")
	}
	o.put(cache.ByName, "n", "1", "n1")
	o.remove(cache.ByName, "gone")
	o.SetPhase(acme, cache.Confirmed)
	o.frozenAt = o.view.Generation().Seq
	woken(o.watch)
	return o
}

// wantVisible fails the test unless readers see these contents by name: "-" if a resource is absent, "" if there is no
// entry.
func (o *frozenOrigin) wantVisible(when string, want map[string]string) {
	o.Helper()
	for name, content := range want {
		got := ""
		if o.hasName(name) {
			e, _ := o.typ().Lookup(o.name(name))
			got = contentOf(e)
		}
		if got != content {
			o.Errorf("%s: readers see %q of %s, want %q", when, got, name, content)
		}
	}
}

// randomStep applies one step of a random test to an origin.
func (o *origin) randomStep(step string, kind cache.Kind, name, version string, watch *cache.Watch, subscribed map[string][]*cache.Name) {
	switch step {
	case "put":
		o.put(kind, name, version, name+version)
	case "put alias":
		o.put(cache.ByName, "real", version, "real"+version, name)
	case "remove":
		o.remove(kind, name)
	case "fail":
		o.fail(kind, name, codes.Internal, version)
	case "not found":
		o.fail(kind, name, codes.NotFound, version)
	case "fail set":
		whole := wire.Wildcard
		if _, glob, is := cache.SplitCollection(o.typeURL); is {
			whole = glob
		}
		o.fail(cache.Wildcard, whole, codes.Internal, version)
	case "expire":
		for _, after := range []time.Duration{2 * uncached, 2 * shadowed, time.Hour, 2 * time.Hour} {
			o.expire(time.Now().Add(after))
		}
	case "subscribe":
		subscribed[name] = watch.Subscribe(o.typeURL, []string{name})
		o.Writer().TakeDemand()
	case "unsubscribe":
		watch.Unsubscribe(o.typeURL, subscribed[name])
		o.Writer().TakeDemand()
		o.Forget(o.typeURL, subscribed[name])
		delete(subscribed, name)
	case "confirm":
		o.SetPhase(o.typeURL, cache.Confirmed)
	case "reconnect":
		o.SetConnected(false)
		o.SetConnected(true)
	case "trim":
		o.Writer().Trim(time.Now().Add(time.Hour))
	case "put TTL":
		o.putTTL(kind, name, version, name+version, time.Minute)
	case "put uncacheable":
		o.putUncacheable(kind, name, version, name+version)
	default:
		o.Fatalf("unknown step %q", step)
	}
}

// resubscribeAll ends the only wildcard subscription to a type, so that its wildcard set is dropped, and begins
// another.
func (o *origin) resubscribeAll(w *cache.Watch, all *cache.WildcardWatch, typeURL string) *cache.WildcardWatch {
	w.UnsubscribeAll(all)
	o.Writer().TakeDemand()
	o.ForgetWildcard(typeURL)
	all = w.SubscribeAll(typeURL)
	o.Writer().TakeDemand()
	return all
}

// exempt returns the keys of visible that a freeze does not keep: resources that expire or have expired, and content
// that may not be cached, also if it is visible by name through the wildcard set.
func exempt(g *cache.Generation) map[string]bool { return exemptOf(g.Type(acme)) }

// exemptOf is exempt for a type.
func exemptOf(t *cache.Type) map[string]bool {
	out := map[string]bool{}
	add := func(what string, e *cache.Entry) {
		out[what+" "+e.Name.String()], out["error of "+what+" "+e.Name.String()] = true, true
	}
	for e := range t.Wildcard.Since(0) {
		if e.Expires() || !cacheable(e.Resource) {
			add("member", e)
		}
		if !cacheable(e.Resource) {
			add("named", e)
		}
	}
	for e := range t.ByName.Since(0) {
		if e.Expires() || e.Expired || !cacheable(e.Resource) {
			add("named", e)
		}
	}
	return out
}

// visible returns the contents and errors that readers see in a generation, by set and name.
func visible(g *cache.Generation) map[string]string { return visibleIn(g.Type(acme)) }

// visibleIn is visible for a type.
func visibleIn(t *cache.Type) map[string]string {
	out := map[string]string{}
	for kind, what := range map[cache.Kind]string{cache.Wildcard: "member ", cache.ByName: "named "} {
		for e := range setOf(t, kind).Since(0) {
			if e.Present() || kind == cache.ByName {
				out[what+e.Name.String()] = contentOf(e)
			}
		}
		for e := range t.Errors(kind).Since(0) {
			out["error of "+what+e.Name.String()] = e.Err.Message
		}
	}
	return out
}

// mustKeep returns the part of visible that a freeze must keep: without errors of members while the wildcard set is not
// confirmed.
func mustKeep(g *cache.Generation) map[string]string {
	out := visible(g)
	if g.Type(acme).Phase < cache.Confirmed {
		maps.DeleteFunc(out, func(key, _ string) bool { return strings.HasPrefix(key, "error of member ") })
	}
	return out
}

// checkEntries fails the test unless the audit of the view finds no fault.
func (o *origin) checkEntries() {
	o.Helper()
	for f := range o.view.Audit(func() bool { return true }) {
		o.Fatalf("the audit finds %+v", f)
	}
}

// contents returns the contents that readers see in each set of a type, by name.
func contents(t *cache.Type) map[string][2]string {
	out := make(map[string][2]string)
	for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
		for e := range setOf(t, kind).Since(0) {
			if e.Present() {
				of := out[e.Name.String()]
				of[kind] = contentOf(e)
				out[e.Name.String()] = of
			}
		}
	}
	return out
}

// checkThaw thaws the origin, and fails the test unless PinThawed has the state before and after the thaw of each
// resource that changes for readers.
func (o *origin) checkThaw() {
	o.Helper()
	before, diff := o.view.Generation(), make(map[string]map[string]Difference)
	for d := range o.PinThawed(o.Thawed()).Diff() {
		if diff[d.Key] == nil {
			diff[d.Key] = make(map[string]Difference)
		}
		diff[d.Key][d.Name] = d
	}
	if o.view.Generation() != before {
		o.Fatal("PinThawed changes what readers see")
	}
	o.Thaw()
	after := o.view.Generation()
	for t := range after.ChangedSince(0) {
		oldContents, newContents := contents(before.Type(t.URL)), contents(t)
		names := maps.Clone(oldContents)
		maps.Copy(names, newContents)
		for name := range names {
			if _, any := diff[t.URL][name]; oldContents[name] != newContents[name] && !any {
				o.Fatalf("the thaw changes %q of %s from %q to %q, but the diff of PinThawed does not have it",
					name, t.URL, oldContents[name], newContents[name])
			}
		}
		for name, d := range diff[t.URL] {
			for r, seen := range map[*wire.Resource][2]string{d.Was: oldContents[name], d.Is: newContents[name]} {
				if r != nil && !slices.Contains(seen[:], string(r.Value())) {
					o.Fatalf("the thaw changes %q of %s from %q to %q, but the diff of PinThawed has %v, then %v",
						name, t.URL, oldContents[name], newContents[name], d.Was, d.Is)
				}
			}
			if d.Is == nil && newContents[name][cache.Wildcard] != "" && newContents[name][cache.ByName] != "" {
				o.Fatalf("diff of PinThawed removes %q of %s, but readers see %q", name, t.URL, newContents[name])
			}
		}
	}
}

// shadowed is how long a member takes the place of a named resource that may be older.
const shadowed = 5 * time.Second

// uncached is how long content that may not be cached is kept.
const uncached = time.Second
