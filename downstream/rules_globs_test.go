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

// B.35: the globs of a stream are limited, and so are those of its group. A glob over a limit is refused before the
// relay requests it from an origin. A glob that another client of the group subscribed to does not count for the group.
func TestB35_TooManyGlobs(t *testing.T) {
	glob := func(i int) string { return fmt.Sprintf("xdstp://x/envoy.config.listener.v3.Listener/%d/*", i) }
	for _, tt := range []struct {
		name       string
		delta      bool
		have, adds []string
		others     int // further globs of the stream
		elsewhere  int // globs of other clients of the group, two of which are 8 and 9
		want       codes.Code
	}{
		{"as many as allowed", true, []string{glob(1)}, []string{glob(2), glob(3)}, maxGlobs - 3, 2, codes.OK},
		{"one too many", true, []string{glob(1)}, []string{glob(2), glob(3)}, maxGlobs - 2, 2, codes.ResourceExhausted},
		{"one already subscribed", true, []string{glob(1)}, []string{glob(1), glob(2), glob(3)}, maxGlobs - 3, 2, codes.OK},
		{"SotW, replaced", false, []string{glob(1), glob(2)}, []string{glob(1), glob(3), glob(4)}, maxGlobs - 3, 2, codes.OK},
		{"SotW, too many", false, []string{glob(1)}, []string{glob(1), glob(2), glob(3), glob(4)}, maxGlobs - 3, 2,
			codes.ResourceExhausted},
		{"too many in the group", true, nil, []string{glob(1), glob(2), glob(3)}, 0, maxGroupGlobs - 2,
			codes.ResourceExhausted},
		{"with other subscribers", true, nil, []string{glob(8), glob(9)}, 0, maxGroupGlobs, codes.OK},
		{"some with other subscribers", true, nil, []string{glob(1), glob(2), glob(9)}, 0, maxGroupGlobs - 2, codes.OK},
		{"names are not globs", true, nil, []string{"a", "b", "c", "d", "e"}, maxGlobs, 2, codes.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view, _ := cache.New(cache.Config{})
			elsewhere := view.Watch()
			elsewhere.SubscribeAll(cache.Collection(wire.ListenerType, glob(8)))
			elsewhere.SubscribeAll(cache.Collection(wire.ListenerType, glob(9)))
			for i := range tt.elsewhere - 2 {
				elsewhere.SubscribeAll(cache.Collection(wire.ListenerType, glob(100+i)))
			}
			c, s := newClient(view, wire.ListenerType, tt.delta)
			c.cfg.MaxNames = 2 * maxGlobs
			if len(tt.have) > 0 {
				s.ApplyRequest(&wire.Request{Delta: tt.delta, Subscribe: tt.have}, time.Now())
			}
			k := c.checkLimits(s, tt.adds, nil, !tt.delta, usage{s.GlobCount() + tt.others, s.GlobCount() + tt.others})
			got := codes.OK
			for _, over := range k.over {
				if got = status.Code(guard.Status(over.err)); len(over.names) != 1 {
					t.Errorf("%q are over the limit (%v), want one glob", over.names, over.err)
				}
			}
			if got != tt.want {
				t.Errorf("over limits: %v, want %v", k.over, tt.want)
			}
		})
	}
}

// B.35: a glob without subscribers no longer counts.
func TestB35_UnsubscribedGlobsDoNotCount(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	watch := view.Watch()
	key := cache.Collection(wire.ListenerType, "xdstp://x/envoy.config.listener.v3.Listener/*")
	a, b := watch.SubscribeAll(key), watch.SubscribeAll(key)
	watch.UnsubscribeAll(a)
	if _, followed := watch.CountUnsubscribed(nil); followed != 1 {
		t.Errorf("%d globs have subscribers, want 1", followed)
	}
	watch.UnsubscribeAll(b)
	if unfollowed, followed := watch.CountUnsubscribed([]string{key}); unfollowed != 1 || followed != 0 {
		t.Errorf("%d globs have subscribers and %d do not, want 0 and 1", followed, unfollowed)
	}
}
