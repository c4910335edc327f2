package partition

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestJoinedKeysAreOneSet: keys are in one set if a chain of joins connects them, and in no other case.
func TestJoinedKeysAreOneSet(t *testing.T) {
	var p Partition[string]
	if _, known := p.Find("a"); known {
		t.Error("the zero value has a key")
	}
	a, b, c, d := p.Add("a"), p.Add("b"), p.Add("c"), p.Add("d")
	check.Equal(t, "number of a key that is added again", p.Add("b"), b)
	p.Join(a, b)
	p.Join(c, b)
	p.Join(a, c) // again
	check.Equal(t, "root of c", p.Root(c), p.Root(a))
	if p.Root(d) == p.Root(a) {
		t.Error("d is in the set of a")
	}
	if number, known := p.Find("d"); number != d || !known {
		t.Errorf("d has number %d (%t), want %d", number, known, d)
	}
	check.Equal(t, "keys", len(p.Keys()), 4)
	check.Equal(t, "key of a number", p.Keys()[c], "c")
}

// TestPartitionAgreesWithAModel compares a partition with a model that has the name of a set for each key.
func TestPartitionAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Partition[int]
		model := make(map[int]int)
		key := rapid.IntRange(0, 15)
		for range rapid.IntRange(0, 40).Draw(t, "joins") {
			a, b := key.Draw(t, "a"), key.Draw(t, "b")
			p.Join(p.Add(a), p.Add(b))
			for _, k := range []int{a, b} {
				if _, known := model[k]; !known {
					model[k] = k
				}
			}
			for k, of := range model {
				if from := model[a]; of == from && from != model[b] && k != a {
					model[k] = model[b]
				}
			}
			model[a] = model[b]
		}
		for a, setOfA := range model {
			for b, setOfB := range model {
				if got, want := p.Root(p.Add(a)) == p.Root(p.Add(b)), setOfA == setOfB; got != want {
					t.Fatalf("%d and %d are in one set: %t, want %t", a, b, got, want)
				}
			}
		}
		if len(p.Keys()) != len(model) {
			t.Fatalf("%d keys, want %d", len(p.Keys()), len(model))
		}
	})
}
