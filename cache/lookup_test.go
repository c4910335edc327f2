package cache

import (
	"strings"
	"testing"
	"time"
)

// A step of an origin that speaks of one name in both sets.
const (
	memberPut  = 'M' // the member changes
	memberGone = 'm' // the member is removed
	namedPut   = 'N' // the named resource changes
	namedGone  = 'n' // the named resource is removed, or said not to exist
)

// play performs a step; every put brings new content.
func play(o *origin, step rune, content string) {
	switch step {
	case memberPut:
		o.put(Members, "a", "", content)
	case memberGone:
		o.remove(Members, "a")
	case namedPut:
		o.put(Named, "a", "", content)
	case namedGone:
		o.remove(Named, "a")
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
		{"MN", "2", true},
		{"NM", "2", true},
		{"MNM", "3", true},
		{"NMN", "3", true},
		{"Mn", "1", false}, // the name is a member all the same
		{"nM", "2", true},
		{"nm", "-", false},
		{"nMm", "-", true},
		{"Mnm", "-", true},
		{"NMm", "1", true}, // falls back to the named
		{"MNn", "1", true}, // falls back to the member
		{"MNm", "2", false},
		{"NMn", "2", false},
		{"NMmM", "4", true},
		{"MNnN", "4", true},
		{"NMmn", "-", true},
		{"MNnm", "-", true},
		{"NMmN", "4", true},
		{"MNnM", "4", true},
		{"MNmM", "4", true},
		{"MmN", "3", true},
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
			for _, step := range "MmNn" {
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
	var member, named, held string
	var newest rune
	var sent Seq
	for i, step := range conversation {
		content := string(rune('1' + i))
		play(o, step, content)
		switch step {
		case memberPut:
			member, newest = content, step
		case memberGone:
			member = ""
		case namedPut:
			named, newest = content, step
		case namedGone:
			named = "-"
		}
		if trim {
			o.Trim(time.Now())
		}
		if i < len(conversation)-1 && looks>>i&1 == 0 {
			continue
		}
		if e, seq := o.typ().Lookup(n); e != nil && seq > sent {
			held, sent = contentOf(e), seq
		}
	}
	want := named
	if member != "" && (!strings.ContainsAny(named, "12345") || newest == memberPut) {
		want = member
	}
	if want != "" && held != want {
		t.Errorf("%q, looks %b, forgetting %t: the reader holds %q, want %q", conversation, looks, trim, held, want)
	}
}

func TestB5_ForgottenMembersUncoverTheNamed(t *testing.T) {
	tests := []struct{ steps, want string }{{"NM", "1"}, {"nM", "-"}, {"MN", "2"}, {"Mn", "-"}}
	for _, test := range tests {
		o := newOrigin(t, Config{})
		watch := o.view.Watch()
		n := o.want(watch, "a")[0]
		for i, step := range test.steps {
			play(o, step, string(rune('1'+i)))
		}
		held, sent := o.typ().Lookup(n)
		same := contentOf(held) == test.want
		awake(watch)
		o.ForgetMembers(acme)
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
	o.put(Named, "a", "1", "x")
	o.put(Members, "b", "1", "x")
	if typ := o.typ(); typ.Members.Get(n) != nil || typ.Members.Count() != 1 || typ.Named.Count() != 1 {
		t.Errorf("got %d members and %d named, want one each", typ.Members.Count(), typ.Named.Count())
	}
	sum := o.typ().Members.Sum()
	o.remove(Named, "a", "b")
	if typ := o.typ(); typ.Members.Count() != 1 || typ.Members.Sum() != sum || typ.Named.Count() != 0 {
		t.Errorf("removed by name: got %d members and %d named, want 1 and 0", typ.Members.Count(), typ.Named.Count())
	}
	o.put(Named, "a", "1", "x")
	o.remove(Members, "a", "b")
	if typ := o.typ(); typ.Members.Count() != 0 || typ.Named.Count() != 1 {
		t.Errorf("removed among the members: got %d members and %d named, want 0 and 1", typ.Members.Count(), typ.Named.Count())
	}
}

// TestB5_UncoveringDoesNotPileUp: a member that comes and goes over a resource
// that was named leaves no more in the log of the named than other changes do.
func TestB5_UncoveringDoesNotPileUp(t *testing.T) {
	o := newOrigin(t, Config{})
	o.want(o.view.Watch(), "a")
	o.put(Named, "a", "1", "x")
	for range 500 {
		o.put(Members, "a", "1", "x")
		o.remove(Members, "a")
		o.Trim(time.Now())
	}
	if typ := o.typ(); len(typ.Named.log) > 66 || len(typ.Members.log) > 66 {
		t.Errorf("got logs of %d and %d, want at most 66", len(typ.Members.log), len(typ.Named.log))
	}
}
