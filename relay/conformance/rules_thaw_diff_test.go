package conformance_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// thawDiff returns the changes of a thaw, such as "cds a changed", and checks that a dry run has the same result.
func thawDiff(t testing.TB, r *running) (changes []string) {
	t.Helper()
	diff := getJSON[admin.RolloutDiff](t, r, "/api/v1/thaw/diff")
	dry := operate[admin.FreezeScope, admin.Freezes](t, r, "thaw", admin.FreezeScope{DryRun: true})
	if dry.Diff == nil || !dry.DryRun || cmp.Diff(diff, *dry.Diff) != "" {
		t.Errorf("got the dry run %+v, want %+v", dry, diff)
	}
	if diff.Total != len(diff.Changes) {
		t.Errorf("the diff has %d of %d changes", len(diff.Changes), diff.Total)
	}
	for _, c := range diff.Changes {
		changes = append(changes, shortName(c.TypeURL)+" "+c.Name+" "+c.Change)
	}
	return changes
}

// changesBetween returns the differences of two client states in the format of thawDiff.
func changesBetween(was, is relaytest.State) (changes []string) {
	for short, typeURL := range typeURLs {
		before, after := was.Names(typeURL), is.Names(typeURL)
		for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(before, after)))) {
			switch {
			case !slices.Contains(after, name):
				changes = append(changes, short+" "+name+" removed")
			case !slices.Contains(before, name):
				changes = append(changes, short+" "+name+" added")
			case was.Digest(typeURL, name) != is.Digest(typeURL, name):
				changes = append(changes, short+" "+name+" changed")
			}
		}
	}
	return changes
}

// After a freeze and after a rollback, the diff of a thaw has exactly the changes that clients receive. A dry run
// changes nothing; a freeze has none.
func TestH13_AThawShowsItsChanges(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		for _, rollback := range []bool{false, true} {
			t.Run(map[bool]string{false: "freeze", true: "rollback"}[rollback], func(t *testing.T) {
				worldBubble(t, []string{operated}, func(w *world) {
					w.change("cds a@1", "cds b@1", "lds l@1", "eds e@1")
					c := w.autoClient(v).subscribe("cds", "").subscribe("lds", "").subscribe("eds", "e")
					w.sleep(time.Minute)
					if changes := thawDiff(w.t, w.relay); len(changes) != 0 {
						w.t.Errorf("the diff of a thaw without a freeze is %q, want none", changes)
					}
					good := generationsOf(w.t, w.relay)[0].Generation
					if rollback {
						w.change("cds a@2", "cds c@1", "lds l@2")
						w.settle()
						w.relay.rollback(good)
					} else {
						w.relay.freeze(admin.FreezeScope{})
					}
					w.settle()
					w.change("cds a@3", "cds c@2", "cds -b", "eds e@2")
					w.settle()
					c.ackPending()

					was := c.State()
					changes := thawDiff(w.t, w.relay)
					w.settle()
					c.expect()
					if o := statusOf(w.t, w.relay).Origins[0]; !o.Frozen || (o.Freeze.Rollback != nil) != rollback {
						w.t.Errorf("after the dry run: got %+v, want the freeze unchanged", o.Freeze)
					}
					one := getJSON[admin.RolloutDiff](w.t, w.relay, "/api/v1/thaw/diff?type=cds&name=a")
					if len(one.Changes) != 1 || len(one.Bodies) != 2 {
						w.t.Errorf("the diff of one resource is %+v, want its content before and after", one)
					}

					answer := w.relay.thaw()
					if answer.Diff != nil || answer.DryRun {
						w.t.Errorf("thaw: got %+v, want no dry run", answer)
					}
					w.settle()
					slices.Sort(changes)
					want := changesBetween(was, c.State())
					if slices.Sort(want); len(want) < 3 || !slices.Equal(changes, want) {
						w.t.Errorf("the diff was %q, but the client received %q", changes, want)
					}
					code, text := post(w.t, w.relay, "freeze", admin.FreezeScope{DryRun: true})
					frozen := statusOf(w.t, w.relay).Origins[0].Frozen
					if code != http.StatusBadRequest || !strings.Contains(text, "only thaw accepts it") || frozen {
						w.t.Errorf("a dry run of a freeze: got %d %s, want an error", code, text)
					}
				})
			})
		}
	})
}

// With rollouts, the diff of a thaw has no changes that are rolled out in stages afterwards.
func TestI14_ThawDiffOmitsRollouts(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.sleep(time.Minute)
		w.relay.freeze(admin.FreezeScope{})
		w.change("cds a@2", "eds a@2")
		w.sleep(time.Minute)
		if changes := thawDiff(w.t, w.relay); !slices.Equal(changes, []string{"eds a changed"}) {
			w.t.Errorf("the diff is %q, want only the endpoints", changes)
		}
		w.expectResources("cds a@1 b@1", all...)
		w.expectResources("eds a@1 b@1", all...)
		w.relay.thaw()
		w.sleep(time.Second)
		w.expectResources("eds a@2 b@1", all...)
		w.expectResources("cds a@1 b@1", all[1:]...)
	})
}
