package cache

import (
	"slices"
	"testing"
)

// A seenStep is a response with a content for a name in one of the sets, or with its removal.
type seenStep struct {
	kind    Kind
	content string // "" removes
}

func (s seenStep) String() string { return [...]string{"M", "N"}[s.kind] + s.content }

// TestR040_EqualContentInOtherSetIsNoChange: if the other set of a type gets the same content, or shows it instead,
// that is no change for subscribers to the name, and their content is always the present one. The test runs all
// sequences of up to five steps with two contents, with readers that skip some reads. Such readers may be sent a change
// that was undone in the meantime.
func TestR040_EqualContentInOtherSetIsNoChange(t *testing.T) {
	const most = 5
	const everyStep = 1<<most - 1
	steps := []seenStep{{Wildcard, "x"}, {Wildcard, "y"}, {Wildcard, ""}, {ByName, "x"}, {ByName, "y"}, {ByName, ""}}
	for sequence := range sequences(steps, most) {
		first := slices.IndexFunc(sequence, func(s seenStep) bool { return s.content != "" })
		if first >= 0 && sequence[first].content == "y" {
			continue // another sequence differs only in the names of the contents
		}
		o := newOrigin(t, Config{})
		n := o.subscribe(o.view.Watch(), "a")[0]
		readers := skippingReaders(most)
		for i, step := range sequence {
			if step.content == "" {
				o.remove(step.kind, "a")
			} else {
				o.put(step.kind, "a", "", step.content)
			}
			e, seq := o.typ().Lookup(n)
			present := contentOf(e)
			for _, r := range readers {
				switch {
				case !r.reads(i):
				case e == nil:
					r.held = "" // no state is visible
				case r.steps == everyStep && seq > r.sent && present == r.held:
					t.Fatalf("%v, reads %b: after step %d, %q is sent again", sequence, r.steps, i+1, present)
				case seq <= r.sent && present != r.held:
					t.Fatalf("%v, reads %b: after step %d, the reader has %q and is not sent %q", sequence, r.steps, i+1, r.held,
						present)
				default:
					r.held, r.sent = present, max(r.sent, seq)
				}
			}
		}
	}
}
