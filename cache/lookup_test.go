package cache

import (
	"iter"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A step of an origin that sends one name in both sets.
const (
	memberPut     = 'M' // the member changes
	memberRemoved = 'm' // the member is removed
	namedPut      = 'N' // the named resource changes
	namedRemoved  = 'n' // the named resource is removed, or reported as absent
	nameRequested = '?' // the name is requested, on the stream for names
)

// playStep performs a step; every put brings new content.
func playStep(o *origin, step rune, content string) {
	switch step {
	case memberPut:
		o.put(Wildcard, "a", "", content)
	case memberRemoved:
		o.remove(Wildcard, "a")
	case namedPut:
		o.put(ByName, "a", "", content)
	case namedRemoved:
		o.remove(ByName, "a")
	case nameRequested:
		o.Asked([]*Name{o.name("a")}, time.Now())
	}
}

// TestB5_Lookup lists what a subscriber to a name sees after a sequence of steps. The content is the number of the
// step; "-" is an absent resource.
func TestB5_Lookup(t *testing.T) {
	tests := []struct {
		steps   string
		want    string
		changed bool // whether a reader that has processed the other steps must be sent the last one
	}{
		{"", "", false},
		{"M", "1", true},
		{"N", "1", true},
		{"n", "-", true},
		{"m", "", false},
		{"Mm", "", false}, // no response for the name
		{"Nn", "-", true},
		{"nN", "2", true},
		{"MM", "2", true},
		{"NN", "2", true},
		{"MN", "1", false}, // the response for the name may be older than the member
		{"M?N", "3", true}, // it is newer
		{"M?MN", "3", false},
		{"?M?N", "4", true},
		{"NM", "1", false}, // the response by name takes precedence
		{"NMN", "3", true},
		{"NMNM", "3", false},
		{"MNN", "1", false},
		{"MNM", "3", true},
		{"Mn", "1", false}, // the member exists
		{"nM", "2", true},
		{"nMN", "2", false},
		{"nM?N", "4", true},
		{"nm", "-", false},
		{"nMm", "-", true},
		{"Mnm", "-", true},
		{"NMm", "1", false},
		{"NMn", "-", true}, // removed by name after it existed there
		{"NMnM", "-", false},
		{"NMnN", "4", true},
		{"MNm", "", false}, // the named resource may be older than the removal of the member
		{"MNmM", "4", true},
		{"MNn", "1", false},
		{"MNnm", "-", true},
		{"MNmn", "-", true},
		{"NMmM", "1", false},
		{"NMmn", "-", true},
		{"NMmN", "4", true},
		{"MmN", "", false},
		{"Mm?N", "4", true},
	}
	for _, test := range tests {
		o := newOrigin(t, Config{})
		n := o.subscribe(o.view.Watch(), "a")[0]
		before := Seq(0)
		for i, step := range test.steps {
			_, before = o.typ().Lookup(n)
			playStep(o, step, string(rune('1'+i)))
		}
		e, seq := o.typ().Lookup(n)
		if got := contentOf(e); got != test.want {
			t.Errorf("%q: got %q, want %q", test.steps, got, test.want)
		}
		if got := seq > before; got != test.changed {
			t.Errorf("%q: changed: %t, at %d after %d, want %t", test.steps, got, seq, before, test.changed)
		}
	}
}

// sequences yields each sequence of n steps, always in the same slice.
func sequences[S any](steps []S, n int) iter.Seq[[]S] {
	return func(yield func([]S) bool) {
		sequence := make([]S, n)
		var from func(i int) bool
		from = func(i int) bool {
			if i == n {
				return yield(sequence)
			}
			for _, sequence[i] = range steps {
				if !from(i + 1) {
					return false
				}
			}
			return true
		}
		from(0)
	}
}

// A skippingReader reads a name after some steps of a sequence. Like a stream, it keeps only what it was sent last.
type skippingReader struct {
	steps uint // bit i is set if it reads after step i
	held  string
	sent  Seq
}

// skippingReaders returns a reader for each set of the n steps of a sequence. Those that stop before the last step stand
// for the readers of shorter sequences.
func skippingReaders(n int) []*skippingReader {
	var readers []*skippingReader
	for steps := uint(1); steps < 1<<n; steps++ {
		readers = append(readers, &skippingReader{steps: steps})
	}
	return readers
}

func (r *skippingReader) reads(step int) bool { return r.steps>>step&1 == 1 }

// TestB5_NoReaderMissesAFallback runs all sequences of up to four steps, with readers that read after some steps only,
// and with tombstones that are dropped as early as possible. After each read, a reader must have the present state.
func TestB5_NoReaderMissesAFallback(t *testing.T) {
	const most = 4
	for steps := range sequences([]rune("MmNn?"), most) {
		for _, trim := range []bool{false, true} {
			o := newOrigin(t, Config{})
			n := o.subscribe(o.view.Watch(), "a")[0]
			readers := skippingReaders(most)
			var streams twoStreams
			for i, step := range steps {
				content := string(rune('1' + i))
				playStep(o, step, content)
				streams.step(step, content)
				if trim {
					o.Trim(time.Now())
					streams.changed = streams.changed && streams.member != ""
				}
				e, seq := o.typ().Lookup(n)
				want := streams.visible()
				for _, r := range readers {
					if !r.reads(i) {
						continue
					}
					if e != nil && seq > r.sent {
						r.held, r.sent = contentOf(e), seq
					}
					if want != "" && r.held != want {
						t.Fatalf("%q, reads %b, trimming %t: after step %d the reader has %q, want %q", string(steps), r.steps,
							trim, i+1, r.held, want)
					}
				}
			}
		}
	}
}

// twoStreams is the state that an origin has sent for a name on its two streams.
type twoStreams struct {
	member, named string // "-" is absent, "" is no response
	mayBeOlder    bool   // the named resource may be older than the member
	changed       bool   // the member changed after the last request for the name
}

func (s *twoStreams) step(step rune, content string) {
	switch step {
	case memberPut:
		s.member, s.changed = content, true
	case memberRemoved:
		s.changed = s.changed || s.member != ""
		s.member = ""
	case namedPut:
		if s.named == "" || s.named == "-" && s.mayBeOlder {
			s.mayBeOlder = s.changed
		}
		s.named = content
	case namedRemoved:
		s.mayBeOlder = s.mayBeOlder || s.named == ""
		s.named = "-"
	case nameRequested:
		s.changed = false
	}
}

// visible returns the content that subscribers to the name must see; "" means that it is unchanged.
func (s *twoStreams) visible() string {
	switch {
	case s.member != "" && (s.named == "" || s.mayBeOlder):
		return s.member
	case s.mayBeOlder && s.named != "-":
		return ""
	default:
		return s.named
	}
}

// TestB5_RandomGenerationsAreSentOnce: an origin sends one name on two streams, each of which may lag and skip generations.
// A subscriber to the name is sent no generation older than one that it was sent, and at the end the newest.
func TestB5_RandomGenerationsAreSentOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		o := newOrigin(r, Config{})
		n := o.subscribe(o.view.Watch(), "a")[0]
		history := rapid.SliceOfN(rapid.Bool(), 1, 12).Draw(r, "present") // false means absent
		history[0] = true
		at := map[Kind]int{Wildcard: -1, ByName: -1}
		send := func(kind Kind, generation int) {
			at[kind] = generation
			if history[generation] {
				o.put(kind, "a", "", strconv.Itoa(generation))
			} else {
				o.remove(kind, "a")
			}
		}
		newest, sent, requested := -1, Seq(0), -1
		for last := len(history) - 1; at[Wildcard] < last || at[ByName] < last; {
			switch kind := Kind(rapid.IntRange(0, 2).Draw(r, "stream")); {
			case kind > ByName && requested < 0:
				playStep(o, nameRequested, "")
				requested = max(at[Wildcard], 0)
			case kind > ByName, kind == ByName && requested < 0, at[kind] == last:
			default:
				from := at[kind] + 1
				if kind == ByName && at[kind] < 0 {
					from = requested // the response is not older than the request
				}
				send(kind, rapid.IntRange(from, last).Draw(r, "generation"))
			}
			e, seq := o.typ().Lookup(n)
			if e == nil || seq <= sent {
				continue
			}
			if sent = seq; !e.Present() {
				continue
			}
			generation, _ := strconv.Atoi(contentOf(e))
			if generation <= newest {
				r.Fatalf("sent generation %d after %d; the wildcard set is at %d, the set of names at %d", generation, newest,
					at[Wildcard], at[ByName])
			}
			newest = generation
		}
		e, _ := o.typ().Lookup(n)
		if last := len(history) - 1; history[last] && contentOf(e) != strconv.Itoa(last) || !history[last] && e.Present() {
			r.Fatalf("at the end readers see %q, want generation %d, present: %t", contentOf(e), last, history[last])
		}
	})
}

// TestB5_NamedEntryEventuallyTakesPrecedence: if the two streams never have the same content, subscribers see the named
// resource after maxShadowed. Resources that expire in the meantime are removed.
func TestB5_NamedEntryEventuallyTakesPrecedence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, watch := newSubscribed(t)
		n := o.subscribe(watch, "a")[0]
		o.put(Wildcard, "a", "", "1")
		o.Apply(ByName, updateOf(acme, expiring(t, "a", "", "2")))
		expire := func(in time.Duration, want string) {
			t.Helper()
			time.Sleep(in)
			woken(watch)
			next := o.Expire(time.Now())
			if e, _ := o.typ().Lookup(n); contentOf(e) != want {
				t.Errorf("got %q, next at %v, want %q", contentOf(e), next, want)
			}
		}
		expire(maxShadowed-time.Nanosecond, "1")
		_, before := o.typ().Lookup(n)
		expire(time.Nanosecond, "2")
		if _, seq := o.typ().Lookup(n); seq <= before || !woken(watch) {
			t.Errorf("unshadowed at %d after %d, without a wake-up", seq, before)
		}
		expire(time.Minute-maxShadowed, "1")
	})
}

// TestB5_EqualContentKeepsDeadlines: a named resource that was shadowed until the member had the same content expires
// after its TTL.
func TestB5_EqualContentKeepsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(t, Config{})
		n := o.subscribe(o.view.Watch(), "a")[0]
		o.put(Wildcard, "a", "", "1")
		o.Apply(ByName, updateOf(acme, expiring(t, "a", "", "2")))
		o.put(Wildcard, "a", "", "2")
		o.put(Wildcard, "a", "", "3")
		if e, _ := o.typ().Lookup(n); contentOf(e) != "2" {
			t.Errorf("both streams sent 2, and readers see %q", contentOf(e))
		}
		for next := o.Expire(time.Now()); !next.IsZero(); next = o.Expire(time.Now()) {
			time.Sleep(time.Until(next))
		}
		if e, _ := o.typ().Lookup(n); contentOf(e) != "3" {
			t.Errorf("a minute later readers see %q, want the member", contentOf(e))
		}
	})
}

// TestB5_RestoredAsSeen: a name has other content than the wildcard set. After a restart readers see the entry that they
// saw before it.
func TestB5_RestoredAsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, watch := newSubscribed(t)
		n := o.subscribe(watch, "a")
		o.put(Wildcard, "a", "", "1")
		o.SetPhase(o.typeURL, Confirmed)
		o.put(ByName, "a", "", "2")
		for _, want := range []string{"1", "2"} { // shadowed by the wildcard set, and no longer
			e, _ := o.typ().Lookup(n[0])
			restored := o.restart(true, time.Now())
			is, _ := restored.typ().Lookup(restored.view.Find(restored.typeURL, []string{"a"})[0])
			if contentOf(e) != want || contentOf(is) != want {
				t.Errorf("readers saw %q, and see %q after a restart, want %q", contentOf(e), contentOf(is), want)
			}
			time.Sleep(maxShadowed)
			o.Expire(time.Now())
		}
	})
}

func TestB5_ForgottenWildcardShowsNamedEntries(t *testing.T) {
	tests := []struct{ steps, want string }{{"NM", "1"}, {"nM", "-"}, {"MN", "2"}, {"Mn", "-"}}
	for _, test := range tests {
		o, watch := newSubscribed(t)
		n := o.subscribe(watch, "a")[0]
		for i, step := range test.steps {
			playStep(o, step, string(rune('1'+i)))
		}
		held, sent := o.typ().Lookup(n)
		same := contentOf(held) == test.want
		woken(watch)
		o.ForgetWildcard(acme)
		e, seq := o.typ().Lookup(n)
		if contentOf(e) != test.want || !same && (seq <= sent || !woken(watch)) {
			t.Errorf("%q: got %q at %d after %d, want %q", test.steps, contentOf(e), seq, sent, test.want)
		}
	}
}

// TestB5_SetsDoNotMix: a named resource is no member, and a member is no named resource.
func TestB5_SetsDoNotMix(t *testing.T) {
	o := newOrigin(t, Config{})
	n := o.subscribe(o.view.Watch(), "a")[0]
	o.put(ByName, "a", "1", "x")
	o.put(Wildcard, "b", "1", "x")
	if typ := o.typ(); typ.Wildcard.Get(n) != nil || typ.Wildcard.Count() != 1 || typ.ByName.Count() != 1 {
		t.Errorf("got %d members and %d named, want one each", typ.Wildcard.Count(), typ.ByName.Count())
	}
	sum := o.typ().Wildcard.Sum()
	o.remove(ByName, "a", "b")
	if typ := o.typ(); typ.Wildcard.Count() != 1 || typ.Wildcard.Sum() != sum || typ.ByName.Count() != 0 {
		t.Errorf("removed by name: got %d members and %d named, want 1 and 0", typ.Wildcard.Count(), typ.ByName.Count())
	}
	o.put(ByName, "a", "1", "x")
	o.remove(Wildcard, "a", "b")
	if typ := o.typ(); typ.Wildcard.Count() != 0 || typ.ByName.Count() != 1 {
		t.Errorf("removed among the members: got %d members and %d named, want 0 and 1", typ.Wildcard.Count(),
			typ.ByName.Count())
	}
}
