package subscription

import (
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestRefusalsAreBounded: a client that refuses changes again and again costs a bounded number of refusals. Where each
// response holds the complete set, only the newest counts.
func TestRefusalsAreBounded(t *testing.T) {
	for whole, want := range map[bool]int{false: maxRefusals - 1, true: 0} {
		var r *Refusal
		for i := range 2 * maxRefusals {
			r = newRefusal(&wire.Request{Nonce: "1", ErrorMessage: "no"}, r, whole, cache.Seq(i), cache.Seq(i+1), "", time.Now())
		}
		if len(r.earlier) != want {
			t.Fatalf("complete sets %v: %d refusals before the newest, want %d", whole, len(r.earlier), want)
		}
		for _, e := range r.earlier {
			if len(e.earlier) > 0 {
				t.Errorf("an earlier refusal keeps %d of its own", len(e.earlier))
			}
		}
	}
}
