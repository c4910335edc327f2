package cache

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/immutable"
	"github.com/xdstender/tender/cache/wire"
)

func proceed() bool { return true }

// findings returns the faults that an audit finds, sorted, one line each.
func findings(faults iter.Seq[Fault]) (lines []string) {
	for f := range faults {
		lines = append(lines, strings.TrimPrefix(fmt.Sprintf("%s %s: %s", f.Part, f.Name, f.Problem), " "))
	}
	slices.Sort(lines)
	return lines
}

// TestB43_AuditOfRandomViewsFindsNothing: an audit finds no fault after any sequence of responses and subscriptions.
func TestB43_AuditOfRandomViewsFindsNothing(t *testing.T) {
	texts := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		o, watch := newSubscribed(t)
		var all *WildcardWatch
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			text := rapid.SampledFrom(texts).Draw(t, "name")
			kind := Kind(rapid.IntRange(0, 1).Draw(t, "kind"))
			step := rapid.SampledFrom([]string{"put", "put", "put", "expiring", "remove", "fail", "subscribe", "unsubscribe",
				"forget", "wildcard", "reconnect", "trim", "expire", "take demand"}).Draw(t, "step")
			switch step {
			case "put":
				o.put(kind, text, "", fmt.Sprint(i%7), rapid.SampledFrom(texts).Draw(t, "alias"))
			case "expiring":
				o.Apply(kind, updateOf(acme, expiring(t, text, "1", fmt.Sprint(i%7))))
			case "remove":
				o.remove(kind, text)
			case "fail":
				o.fail(kind, text,
					rapid.SampledFrom([]codes.Code{codes.NotFound, codes.PermissionDenied, codes.Internal}).Draw(t, "code"), "no")
			case "subscribe":
				watch.Subscribe(acme, []string{text})
			case "unsubscribe":
				if o.hasName(text) {
					watch.Unsubscribe(acme, []*Name{o.name(text)})
				}
			case "forget":
				o.TakeDemand()
				if n := o.view.index.types[acme].namesOrNil()[text]; n != nil && n.tracked {
					o.Forget(acme, []*Name{n})
				}
			case "wildcard":
				if all == nil {
					all = watch.SubscribeAll(acme)
				} else {
					watch.UnsubscribeAll(all)
					all = nil
					o.ForgetWildcard(acme)
				}
			case "reconnect":
				o.SetConnected(false)
				o.SetConnected(true)
			case "trim":
				o.Trim(time.Now().Add(time.Hour))
			case "expire":
				o.Expire(time.Now().Add(2 * time.Minute))
			case "take demand":
				o.TakeDemand()
			}
			if found := findings(o.view.Audit(proceed)); len(found) > 0 {
				t.Fatalf("after %s of %s, step %d: %q", step, text, i, found)
			}
		}
	})
}

// A damage is a fault that a test causes in a view, without its writer.
type damage struct {
	name  string
	apply func(o *origin)
	want  []string // findings
}

// tamper replaces the wildcard set by a copy that f has changed.
func (o *origin) tamper(f func(s *Set)) {
	o.view.index.mu.Lock()
	defer o.view.index.mu.Unlock()
	generation, typ := *o.view.Generation(), *o.typ()
	f(&typ.Wildcard)
	generation.types.put(&typ)
	o.view.current.Store(&generation)
}

// swap replaces the entry of a name by a copy that f has changed.
func (o *origin) swap(text string, f func(e *Entry)) {
	n := o.name(text)
	o.tamper(func(s *Set) {
		e := *s.Get(n)
		f(&e)
		s.table = s.table.Set(new(immutable.Edit), n.id, &e)
	})
}

var damages = []damage{
	{"modified byte of shared content", func(o *origin) {
		o.typ().Wildcard.Get(o.name("b")).Resource.Value()[0] ^= 1
	}, []string{"members b: content does not match its digest"}},
	{"wrong sum", func(o *origin) {
		o.tamper(func(s *Set) { s.sum = s.sum.Add(sum(0, 1)) })
	}, []string{"members : version does not match the resources"}},
	{"leaf of other content", func(o *origin) {
		o.swap("b", func(e *Entry) { e.Leaf = e.Leaf.Add(sum(1, 0)) })
	}, []string{
		"members : version does not match the resources",
		"members b: leaf of the version does not match the content",
	}},
	{"missing entry", func(o *origin) {
		n := o.name("b")
		o.tamper(func(s *Set) { s.table = s.table.Set(new(immutable.Edit), n.id, nil) })
	}, []string{
		"interest b: number of entries does not match the sets",
		"members : totals do not match the resources",
		"members : version does not match the resources",
	}},
	{"entry under another id", func(o *origin) {
		n, e := o.name("b"), o.typ().Wildcard.Get(o.name("a"))
		o.tamper(func(s *Set) { s.table = s.table.Set(new(immutable.Edit), n.id, e) })
	}, []string{
		"interest b: number of entries does not match the sets",
		"members : version does not match the resources",
		"members a: entry is stored under the id of another name",
	}},
	{"change missing from the log", func(o *origin) {
		o.tamper(func(s *Set) { s.log = slices.Delete(slices.Clone(s.log), 1, 2) })
	}, []string{"members b: last change is missing from the log"}},
	{"unsorted log", func(o *origin) {
		o.tamper(func(s *Set) {
			s.log = slices.Clone(s.log)
			s.log[0], s.log[1] = s.log[1], s.log[0]
		})
	}, []string{
		"members : log is not sorted",
		"members a: last change is missing from the log",
		"members b: last change is missing from the log",
	}},
	{"last change too early", func(o *origin) {
		o.tamper(func(s *Set) { s.last-- })
	}, []string{"members : log has items after the last change"}},
	{"wrong totals", func(o *origin) {
		o.tamper(func(s *Set) {
			s.count, s.live, s.ttls, s.contentDropped = s.count+1, s.live-1, s.ttls+1, s.contentDropped+1
		})
	}, []string{"members : totals do not match the resources"}},
	{"missing alias", func(o *origin) {
		o.subscribe(o.view.Watch(), "z")
		o.put(ByName, "d", "", "content 3", "z")
		delete(o.rest().aliases[acme], "d")
	}, []string{"interest z: alias or variant is missing from the index"}},
	{"missing upstream subscription", func(o *origin) {
		o.name("c").tracked = false
	}, []string{"interest c: name has subscribers, but no upstream subscription"}},
	{"wrong number of entries", func(o *origin) {
		o.name("c").entries++
	}, []string{"interest c: number of entries does not match the sets"}},
}

// newThreeMembers returns an origin with three resources in the wildcard set, and a stream that subscribes to the
// wildcard and to the third name.
func newThreeMembers(t tester) (*origin, *Watch) {
	o, watch := newSubscribed(t)
	watch.SubscribeAll(acme)
	o.subscribe(watch, "c")
	for i, text := range []string{"a", "b", "c"} {
		o.put(Wildcard, text, "", fmt.Sprint("content ", i))
	}
	o.put(ByName, "c", "", "content 2")
	return o, watch
}

// TestB43_PlantedFaultsAreFound: an audit finds each kind of damage.
func TestB43_PlantedFaultsAreFound(t *testing.T) {
	for _, p := range damages {
		o, _ := newThreeMembers(t)
		p.apply(o)
		if got := findings(o.view.Audit(proceed)); !slices.Equal(got, p.want) {
			t.Errorf("%s:\n got %q\nwant %q", p.name, got, p.want)
		}
	}
	o, _ := newThreeMembers(t)
	o.name("b").watchers = &watchers{ids: []uint32{0, 0}, names: 1}
	want := "interest b: watchers contain a closed watch or a duplicate"
	if got := findings(o.view.Audit(proceed)); !slices.Contains(got, want) {
		t.Errorf("duplicate watch: got %q, want %q among the findings", got, want)
	}
}

// TestB43_DamagedContentIsNotStored: a snapshot omits damaged content, so that a restarted relay requests it again.
func TestB43_DamagedContentIsNotStored(t *testing.T) {
	o, _ := newThreeMembers(t)
	o.SetPhase(acme, Confirmed)
	o.typ().Wildcard.Get(o.name("b")).Resource.Value()[0] ^= 1
	s, _ := o.Snapshot(true)
	for _, e := range s.Types[0].Wildcard.Entries {
		if got, want := e.Resource.ContentDropped(), e.Name == "b"; got != want {
			t.Errorf("content of %s dropped: %t, want %t", e.Name, got, want)
		}
	}
}

// TestB43_AnAuditPausesAndEnds: an audit pauses after each batch without holding a lock, and ends when pace returns
// false.
func TestB43_AnAuditPausesAndEnds(t *testing.T) {
	const resources = 5 * auditBatch
	o, _, _ := newFilled(t, resources)
	pauses := 0
	for range o.view.Audit(func() bool {
		pauses++
		o.put(Wildcard, "new", "", fmt.Sprint(pauses)) // which takes the lock
		return true
	}) {
		t.Error("unexpected fault")
	}
	if min := 3 * resources / auditBatch; pauses < min {
		t.Errorf("got %d pauses, want at least %d", pauses, min)
	}
	for stop := range pauses {
		left := stop
		for range o.view.Audit(func() bool { left--; return left >= 0 }) {
			t.Error("unexpected fault")
		}
		if left != -1 {
			t.Fatalf("pace returned false at pause %d: audit paused %d more times", stop, -1-left)
		}
	}
	if typ := o.view.index.types[acme]; typ.names["new"] == nil {
		t.Error("audit blocked the writer")
	}
}

// BenchmarkAudit measures the audit of resources of 1 KiB in the wildcard set.
func BenchmarkAudit(b *testing.B) {
	const n = 10_000
	o, content := newOrigin(b, Config{}), strings.Repeat("x", 1024)
	u := wire.Update{TypeURL: acme}
	for i := range n {
		u.Resources = append(u.Resources, o.resource(fmt.Sprintf("resource-%05d", i), "1", content))
	}
	o.Apply(Wildcard, u)
	b.ReportAllocs()
	for b.Loop() {
		for f := range o.view.Audit(proceed) {
			b.Fatal(f)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/resource")
}
