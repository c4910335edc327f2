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
	for conversation := range total {
		for _, looks := range []int{0b11111, 0b10101, 0b10010, 0b10000} {
			o := newOrigin(t, Config{})
			n := o.subscribe(o.view.Watch(), "a")[0]
			held, sent, said := "", Seq(0), ""
			for i, rest := 0, conversation; i < most; i, rest = i+1, rest/len(steps) {
				step := steps[rest%len(steps)]
				said += [...]string{"M", "N"}[step.kind] + step.content
				if step.content == "" {
					o.remove(step.kind, "a")
				} else {
					o.put(step.kind, "a", "", step.content)
				}
				if looks>>i&1 == 0 {
					continue
				}
				e, seq := o.typ().Lookup(n)
				is := contentOf(e)
				switch {
				case e == nil:
					held = "" // no state is visible
				case looks == 0b11111 && seq > sent && is == held:
					t.Fatalf("%s, reads %b: %q is sent again", said, looks, is)
				case seq <= sent && is != held:
					t.Fatalf("%s, reads %b: the reader has %q and is not sent %q", said, looks, held, is)
				default:
					held, sent = is, max(sent, seq)
				}
			}
		}
	}
}
