package downstream

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// The globs of a stream are bounded, and so are those of its group: who asks for one
// more is told so before any is asked for. What others follow already costs nothing.
func TestB35_TooManyGlobs(t *testing.T) {
	glob := func(i int) string { return fmt.Sprintf("xdstp://x/envoy.config.listener.v3.Listener/%d/*", i) }
	for _, tt := range []struct {
		name       string
		delta      bool
		have, asks []string
		others     int // globs of other types
		want       codes.Code
	}{
		{"as many as allowed", true, []string{glob(1)}, []string{glob(2), glob(3)}, 0, codes.OK},
		{"one too many", true, []string{glob(1)}, []string{glob(2), glob(3), glob(4)}, 0, codes.ResourceExhausted},
		{"with those of other types", true, []string{glob(1)}, []string{glob(2), glob(3)}, 1, codes.ResourceExhausted},
		{"one again", true, []string{glob(1)}, []string{glob(1), glob(2), glob(3)}, 0, codes.OK},
		{"SotW, others in their place", false, []string{glob(1), glob(2)}, []string{glob(1), glob(3), glob(4)}, 0, codes.OK},
		{"SotW, too many", false, []string{glob(1)}, []string{glob(1), glob(2), glob(3), glob(4)}, 0,
			codes.ResourceExhausted},
		{"too many of the group", true, nil, []string{glob(1), glob(2), glob(3)}, 0, codes.ResourceExhausted},
		{"such as others follow", true, nil, []string{glob(8), glob(9)}, 0, codes.OK},
		{"one of others, one too many", true, nil, []string{glob(1), glob(2), glob(9)}, 0, codes.OK},
		{"names are none", true, nil, []string{"a", "b", "c", "d", "e"}, 9, codes.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view, _ := cache.New(cache.Config{})
			elsewhere := view.Watch()
			elsewhere.SubscribeAll(cache.Collection(wire.ListenerType, glob(8)))
			elsewhere.SubscribeAll(cache.Collection(wire.ListenerType, glob(9)))
			c, s := newClient(view, wire.ListenerType, tt.delta)
			c.cfg.MaxNames, c.cfg.MaxGlobs, c.cfg.MaxGroupGlobs = 100, 3, 4
			if len(tt.have) > 0 {
				c.cfg.MaxGroupGlobs = 9
				s.ApplyRequest(&wire.Request{Delta: tt.delta, Subscribe: tt.have}, time.Now())
			}
			f := c.checkLimits(s, tt.asks, nil, !tt.delta, usage{s.GlobCount() + tt.others, s.GlobCount() + tt.others})
			got := codes.OK
			for _, over := range f.over {
				if got = status.Code(guard.Status(over.err)); len(over.names) != 1 {
					t.Errorf("%q are refused for %v, want one of them", over.names, over.err)
				}
			}
			if got != tt.want {
				t.Errorf("refused %v, want %v", f.over, tt.want)
			}
		})
	}
}

// A glob that nobody follows any more counts no longer.
func TestB35_UnsubscribedGlobsDoNotCount(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	watch := view.Watch()
	key := cache.Collection(wire.ListenerType, "xdstp://x/envoy.config.listener.v3.Listener/*")
	a, b := watch.SubscribeAll(key), watch.SubscribeAll(key)
	watch.UnsubscribeAll(a)
	if _, followed := watch.Unfollowed(nil); followed != 1 {
		t.Errorf("%d globs are followed, want 1", followed)
	}
	watch.UnsubscribeAll(b)
	if unfollowed, followed := watch.Unfollowed([]string{key}); unfollowed != 1 || followed != 0 {
		t.Errorf("%d globs are followed, and %d of one are not: want none, and the one", followed, unfollowed)
	}
}
