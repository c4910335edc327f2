package cache

import "testing"

// TestR040_EqualContentInOtherSetIsNoChange: that the other set of a type comes to hold, or is
// left to show, the same content is no change for those who named the resource;
// whenever they look, what they hold is what there is. It goes through all
// conversations of up to five steps over two contents, with readers that skip
// some looks; they may be told of a change that was taken back meanwhile.
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
			n := o.want(o.view.Watch(), "a")[0]
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
					held = "" // nobody has said what became of it
				case looks == 0b11111 && seq > sent && is == held:
					t.Fatalf("%s, looks %b: %q is told again", said, looks, is)
				case seq <= sent && is != held:
					t.Fatalf("%s, looks %b: the reader holds %q and is not told of %q", said, looks, held, is)
				default:
					held, sent = is, max(sent, seq)
				}
			}
		}
	}
}
