package cache

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// A step of an origin that speaks of one name in both sets.
const (
	memberPut  = 'M' // the member changes
	memberGone = 'm' // the member is removed
	namedPut   = 'N' // the named resource changes
	namedGone  = 'n' // the named resource is removed, or said not to exist
	nameAsked  = '?' // the origin is asked for the name, on the stream of the named
)

// play performs a step; every put brings new content.
func play(o *origin, step rune, content string) {
	switch step {
	case memberPut:
		o.put(Wildcard, "a", "", content)
	case memberGone:
		o.remove(Wildcard, "a")
	case namedPut:
		o.put(ByName, "a", "", content)
	case namedGone:
		o.remove(ByName, "a")
	case nameAsked:
		o.Asked([]*Name{o.name("a")}, time.Now())
	}
}

// TestB5_Lookup says what a stream that named a resource sees after the origin has
// spoken. Content is the number of the step; "-" is a resource that does not
// exist.
func TestB5_Lookup(t *testing.T) {
	tests := []struct {
		steps string
		want  string
		news  bool // whether the last step is news to one who saw the others
	}{
		{"", "", false},
		{"M", "1", true},
		{"N", "1", true},
		{"n", "-", true},
		{"m", "", false},
		{"Mm", "", false}, // nothing was said of the name
		{"Nn", "-", true},
		{"nN", "2", true},
		{"MM", "2", true},
		{"NN", "2", true},
		{"MN", "1", false}, // the name may have been answered before the member changed
		{"M?N", "3", true}, // it was not
		{"M?MN", "3", false},
		{"?M?N", "4", true},
		{"NM", "1", false}, // what was asked for by name is answered by name
		{"NMN", "3", true},
		{"NMNM", "3", false},
		{"MNN", "1", false},
		{"MNM", "3", true},
		{"Mn", "1", false}, // the name is a member all the same
		{"nM", "2", true},
		{"nMN", "2", false},
		{"nM?N", "4", true},
		{"nm", "-", false},
		{"nMm", "-", true},
		{"Mnm", "-", true},
		{"NMm", "1", false},
		{"NMn", "-", true}, // it was there by name, and is gone
		{"NMnM", "-", false},
		{"NMnN", "4", true},
		{"MNm", "", false}, // what is older than the member says nothing, now that that is gone
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
		n := o.want(o.view.Watch(), "a")[0]
		before := Seq(0)
		for i, step := range test.steps {
			_, before = o.typ().Lookup(n)
			play(o, step, string(rune('1'+i)))
		}
		e, seq := o.typ().Lookup(n)
		if got := contentOf(e); got != test.want {
			t.Errorf("%q: got %q, want %q", test.steps, got, test.want)
		}
		if got := seq > before; got != test.news {
			t.Errorf("%q: got news %t at %d after %d, want %t", test.steps, got, seq, before, test.news)
		}
	}
}

// TestB5_NoReaderMissesAFallback goes through all conversations of up to four
// steps, with a reader that looks at some moments and not at others, and with the
// cache forgetting removals as soon as it may. A reader keeps, as streams do, only
// the sequence of what it was told; at its last look it must know what is so.
func TestB5_NoReaderMissesAFallback(t *testing.T) {
	const most = 4
	var steps []string
	for last := []string{""}; len(last[0]) < most; {
		var next []string
		for _, s := range last {
			for _, step := range "MmNn?" {
				next = append(next, s+string(step))
			}
		}
		steps, last = append(steps, next...), next
	}
	for _, conversation := range steps {
		for looks := range 1 << (len(conversation) - 1) {
			for _, trim := range []bool{false, true} {
				missed(t, conversation, looks, trim)
			}
		}
	}
}

func missed(t *testing.T, conversation string, looks int, trim bool) {
	o := newOrigin(t, Config{})
	n := o.want(o.view.Watch(), "a")[0]
	var (
		said   twoStreams
		held   string
		sent   Seq
		before = len(conversation) - 1
	)
	for i, step := range conversation {
		content := string(rune('1' + i))
		play(o, step, content)
		said.play(step, content)
		if trim {
			o.Trim(time.Now())
			said.changed = said.changed && said.member != ""
		}
		if i < before && looks>>i&1 == 0 {
			continue
		}
		if e, seq := o.typ().Lookup(n); e != nil && seq > sent {
			held, sent = contentOf(e), seq
		}
	}
	if want := said.seen(); want != "" && held != want {
		t.Errorf("%q, looks %b, forgetting %t: the reader holds %q, want %q", conversation, looks, trim, held, want)
	}
}

// twoStreams is what an origin has said of a name on its two streams.
type twoStreams struct {
	member, named string // "-" is gone, "" is nothing
	doubtful      bool   // what was said by name may be older than the member
	changed       bool   // the member did, since the name was asked for
}

func (s *twoStreams) play(step rune, content string) {
	switch step {
	case memberPut:
		s.member, s.changed = content, true
	case memberGone:
		s.changed = s.changed || s.member != ""
		s.member = ""
	case namedPut:
		if s.named == "" || s.named == "-" && s.doubtful {
			s.doubtful = s.changed
		}
		s.named = content
	case namedGone:
		s.doubtful = s.doubtful || s.named == ""
		s.named = "-"
	case nameAsked:
		s.changed = false
	}
}

// seen is what whoever named the name is to know; "" is what was told before.
func (s *twoStreams) seen() string {
	switch {
	case s.member != "" && (s.named == "" || s.doubtful):
		return s.member
	case s.doubtful && s.named != "-":
		return ""
	default:
		return s.named
	}
}

// TestB5_NoGenerationIsSentTwice has an origin speak of one name on two streams, either of which lags
// and skips generations as it likes: who names the name is told no generation that is
// older than one that it was told, and in the end the newest.
func TestB5_NoGenerationIsSentTwice(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		o := newOrigin(r, Config{})
		n := o.want(o.view.Watch(), "a")[0]
		history := rapid.SliceOfN(rapid.Bool(), 1, 12).Draw(r, "is there") // or it is gone
		history[0] = true
		at := map[Kind]int{Wildcard: -1, ByName: -1}
		say := func(kind Kind, generation int) {
			at[kind] = generation
			if history[generation] {
				o.put(kind, "a", "", strconv.Itoa(generation))
			} else {
				o.remove(kind, "a")
			}
		}
		told, sent, asked := -1, Seq(0), -1
		for last := len(history) - 1; at[Wildcard] < last || at[ByName] < last; {
			switch kind := Kind(rapid.IntRange(0, 2).Draw(r, "who speaks")); {
			case kind > ByName && asked < 0:
				play(o, nameAsked, "")
				asked = max(at[Wildcard], 0)
			case kind > ByName, kind == ByName && asked < 0, at[kind] == last:
			default:
				from := at[kind] + 1
				if kind == ByName && at[kind] < 0 {
					from = asked // the answer is not older than the question
				}
				say(kind, rapid.IntRange(from, last).Draw(r, "generation"))
			}
			e, seq := o.typ().Lookup(n)
			if e == nil || seq <= sent {
				continue
			}
			if sent = seq; !e.Present() {
				continue
			}
			generation, _ := strconv.Atoi(contentOf(e))
			if generation <= told {
				r.Fatalf("told of generation %d after %d; the members are at %d, the named at %d", generation, told, at[Wildcard], at[ByName])
			}
			told = generation
		}
		e, _ := o.typ().Lookup(n)
		if last := len(history) - 1; history[last] && contentOf(e) != strconv.Itoa(last) || !history[last] && e.Present() {
			r.Fatalf("in the end %q is seen, want generation %d, which is there: %t", contentOf(e), last, history[last])
		}
	})
}

// TestB5_NamedEntryEventuallyTakesPrecedence: where the two streams never come to say the same, what
// was asked for by name is answered by name, a little later; and what expires meanwhile still does.
func TestB5_NamedEntryEventuallyTakesPrecedence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, watch := watched(t)
		n := o.want(watch, "a")[0]
		o.put(Wildcard, "a", "", "1")
		o.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{expiring(t, "a", "", "2")}})
		expire := func(in time.Duration, want string) {
			t.Helper()
			time.Sleep(in)
			awake(watch)
			next := o.Expire(time.Now())
			if e, _ := o.typ().Lookup(n); contentOf(e) != want {
				t.Errorf("got %q, next at %v, want %q", contentOf(e), next, want)
			}
		}
		expire(maxShadowed-time.Nanosecond, "1")
		_, before := o.typ().Lookup(n)
		expire(time.Nanosecond, "2")
		if _, seq := o.typ().Lookup(n); seq <= before || !awake(watch) {
			t.Errorf("believed at %d after %d, and nobody was told", seq, before)
		}
		expire(time.Minute-maxShadowed, "1")
	})
}

// TestB5_EqualContentKeepsDeadlines: a resource that was in doubt until the member was the same
// goes when its time is up.
func TestB5_EqualContentKeepsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(t, Config{})
		n := o.want(o.view.Watch(), "a")[0]
		o.put(Wildcard, "a", "", "1")
		o.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{expiring(t, "a", "", "2")}})
		o.put(Wildcard, "a", "", "2")
		o.put(Wildcard, "a", "", "3")
		if e, _ := o.typ().Lookup(n); contentOf(e) != "2" {
			t.Errorf("both streams said 2, and %q is seen", contentOf(e))
		}
		for next := o.Expire(time.Now()); !next.IsZero(); next = o.Expire(time.Now()) {
			time.Sleep(time.Until(next))
		}
		if e, _ := o.typ().Lookup(n); contentOf(e) != "3" {
			t.Errorf("a minute later %q is seen, want the member", contentOf(e))
		}
	})
}

func TestB5_ForgottenWildcardShowsNamedEntries(t *testing.T) {
	tests := []struct{ steps, want string }{{"NM", "1"}, {"nM", "-"}, {"MN", "2"}, {"Mn", "-"}}
	for _, test := range tests {
		o, watch := watched(t)
		n := o.want(watch, "a")[0]
		for i, step := range test.steps {
			play(o, step, string(rune('1'+i)))
		}
		held, sent := o.typ().Lookup(n)
		same := contentOf(held) == test.want
		awake(watch)
		o.ForgetWildcard(acme)
		e, seq := o.typ().Lookup(n)
		if contentOf(e) != test.want || !same && (seq <= sent || !awake(watch)) {
			t.Errorf("%q: got %q at %d after %d, want %q", test.steps, contentOf(e), seq, sent, test.want)
		}
	}
}

// TestB5_SetsDoNotMix: what was named is no member, and the other way round.
func TestB5_SetsDoNotMix(t *testing.T) {
	o := newOrigin(t, Config{})
	n := o.want(o.view.Watch(), "a")[0]
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
		t.Errorf("removed among the members: got %d members and %d named, want 0 and 1", typ.Wildcard.Count(), typ.ByName.Count())
	}
}

// TestB5_UncoveringDoesNotPileUp: a member that comes and goes over a resource
// that was named leaves no more in the log of the named than other changes do.
func TestB5_UncoveringDoesNotPileUp(t *testing.T) {
	o, _ := watched(t, "a")
	o.put(ByName, "a", "1", "x")
	for range 500 {
		o.put(Wildcard, "a", "1", "x")
		o.remove(Wildcard, "a")
		o.Trim(time.Now())
	}
	if typ := o.typ(); len(typ.ByName.log) > 66 || len(typ.Wildcard.log) > 66 {
		t.Errorf("got logs of %d and %d, want at most 66", len(typ.Wildcard.log), len(typ.ByName.log))
	}
}
