package cache

import "testing"

// TestR040_EqualContentInOtherSetIsNoChange: if the other set of a type gets the same content, or shows it instead,
// that is no change for subscribers to the name, and their content is always the present one. The test runs all
// sequences of up to five steps with two contents and with readers that skip some reads. Readers may be sent a change
// that was undone in the meantime.
func TestR040_EqualContentInOtherSetIsNoChange(t *testing.T) {
	const most = 5
	steps := []struct {
		kind    Kind
		content string // "" removes
	}{{Wildcard, "x"}, {Wildcard, "y"}, {Wildcard, ""}, {ByName, "x"}, {ByName, "y"}, {ByName, ""}}
	total := 1
	for range most {
		total *= len(steps)
	}
	for sequence := range total {
		for _, reads := range []int{0b11111, 0b10101, 0b10010, 0b10000} {
			o := newOrigin(t, Config{})
			n := o.subscribe(o.view.Watch(), "a")[0]
			held, sent, done := "", Seq(0), ""
			for i, left := 0, sequence; i < most; i, left = i+1, left/len(steps) {
				step := steps[left%len(steps)]
				done += [...]string{"M", "N"}[step.kind] + step.content
				if step.content == "" {
					o.remove(step.kind, "a")
				} else {
					o.put(step.kind, "a", "", step.content)
				}
				if reads>>i&1 == 0 {
					continue
				}
				e, seq := o.typ().Lookup(n)
				present := contentOf(e)
				switch {
				case e == nil:
					held = "" // no state is visible
				case reads == 0b11111 && seq > sent && present == held:
					t.Fatalf("%s, reads %b: %q is sent again", done, reads, present)
				case seq <= sent && present != held:
					t.Fatalf("%s, reads %b: the reader has %q and is not sent %q", done, reads, held, present)
				default:
					held, sent = present, max(sent, seq)
				}
			}
		}
	}
}
