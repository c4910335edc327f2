package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// changeWhileDown stops the origin, changes its resources, and starts it again.
func (r *rig) changeWhileDown(change func(tx *relaytest.Tx)) {
	r.Stop()
	r.Apply(change)
	r.pass(time.Second)
	r.Restart()
}

// removing returns a change that removes resources.
func removing(typeURL string, names ...string) func(*relaytest.Tx) {
	return func(tx *relaytest.Tx) {
		for _, name := range names {
			tx.Remove(typeURL, name)
		}
	}
}

// numbered returns n resources name@1 with sorted names.
func numbered(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%03d@1", i)
	}
	return out
}

// joined returns the result of members for numbered resources.
func joined(resources []string) string { return strings.Join(resources, " ") }

// nameOnly returns resources, each written name@version, without their versions.
func nameOnly(resources []string) []string {
	out := make([]string, len(resources))
	for i, text := range resources {
		out[i], _, _ = strings.Cut(text, "@")
	}
	return out
}

// confirmed is a time after which a set with a response is confirmed.
const confirmed = 12 * time.Second

// TestB15_EqualBytesAreUnchanged: a resync with an unchanged origin does not change the view.
func TestB15_EqualBytesAreUnchanged(t *testing.T) {
	for _, b := range []relaytest.Behaviour{{}, {IgnoreIRV: true}, {EmptyVersions: true}, {IgnoreIRV: true, EmptyVersions: true}} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("ignore=%v empty=%v full=%v", b.IgnoreIRV, b.EmptyVersions, full), func(t *testing.T) {
				inBubble(t, b, upstream.Config{FullResync: full}, func(t *testing.T, r *rig) {
					r.put(clusters, numbered(20)...)
					r.put(endpoints, "a@1")
					r.watch.SubscribeAll(clusters)
					r.watch.Subscribe(endpoints, []string{"a"})
					r.pass(confirmed)
					seq := r.view.Generation().Seq
					for range 3 {
						r.Restart()
						r.pass(longAfter)
					}
					check.Equal(t, "position", r.view.Generation().Seq, seq)
					if got := r.State().Last().Requests[0].Message.GetInitialResourceVersions(); full && len(got) > 0 {
						t.Errorf("the relay reported versions with FullResync: %v", got)
					}
				})
			})
		}
	}
}

// TestB15_C14_Sweep: if an origin does not report removals, the relay queries unmentioned resources by name, together
// with a control query. It uses the stream without the wildcard, and unsubscribes after that (C14).
func TestB15_C14_Sweep(t *testing.T) {
	tests := []struct {
		name   string
		b      relaytest.Behaviour
		full   bool
		after  time.Duration // time after the restart when the resources are removed
		before time.Duration // time after the restart when they are still served
	}{
		{"ignores versions, reports missing names", relaytest.Behaviour{IgnoreIRV: true}, false, 17 * time.Second, 15 * time.Second},
		{"ignores versions, silent on missing names", relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, false, 32 * time.Second, 29 * time.Second},
		{"receives no versions", relaytest.Behaviour{}, true, 17 * time.Second, 15 * time.Second},
		{"has no versions", relaytest.Behaviour{IgnoreIRV: true, EmptyVersions: true, SilentOnMissing: true}, false, 32 * time.Second, 29 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.b, upstream.Config{FullResync: tt.full}, func(t *testing.T, r *rig) {
				r.follow(clusters, numbered(20)...)
				r.changeWhileDown(removing(clusters, "n003", "n007"))
				back := time.Now()
				r.pass(tt.before - time.Since(back))
				check.Equal(t, fmt.Sprintf("members %v after the restart", tt.before), r.view.Generation().Type(clusters).Wildcard.Count(), 20)
				r.pass(tt.after + 3*time.Second - time.Since(back))
				if n := r.view.Generation().Type(clusters).Wildcard.Count(); n != 18 {
					t.Errorf("%d members %v after the restart, want 18:\n%v", n, time.Since(back), r.State())
				}
				open := r.State().Open()
				if len(open) != 1 || !r.State().Subscribed(clusters, "*") {
					t.Errorf("open streams %v, want one with the wildcard", open)
				}
				last := r.State().Last()
				check.Equal(t, "query by name", showRequest(last.Requests[0].Message), "[Cluster node +n000 +n003 +n007]")
			})
		})
	}
}

// TestB15_IgnoresVersionsOfAllTypes: resent resources of one type show that an origin ignores versions of all types.
// Such an origin sends nothing for a type whose last member was removed, as if nothing had changed.
func TestB15_IgnoresVersionsOfAllTypes(t *testing.T) {
	for _, order := range [][]string{{clusters, listeners}, {listeners, clusters}} {
		t.Run(order[0], func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{IgnoreIRV: true}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.put(clusters, "c@1")
				r.put(listeners, "l@1")
				for _, typeURL := range order {
					r.watch.SubscribeAll(typeURL)
					r.pass(time.Second)
				}
				r.pass(confirmed)
				r.changeWhileDown(removing(listeners, "l"))
				r.pass(20 * time.Second)
				r.expectHolds("hold of the only listener", 1, 0)
				r.pass(15 * time.Minute)
				r.expect("listeners", present(r.members(listeners)), "")
				r.expect("clusters", r.members(clusters), "c@1")
			})
		})
	}
}

// TestB15_FoundByNameAndUnsubscribed: a member that is found by name is not removed. The relay unsubscribes from all
// queried names, on a stream that stays open for the names of clients.
func TestB15_FoundByNameAndUnsubscribed(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		hidden := false
		r.Change(func(b *relaytest.Behaviour) {
			b.NamedOnly = func(_, name string) bool { return name == "other" || hidden && name == "n004" }
		})
		r.put(clusters, numbered(20)...)
		r.put(clusters, "other@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Second)
		r.watch.Subscribe(clusters, []string{"other", "n005"})
		r.pass(confirmed)
		r.Stop()
		r.Change(func(*relaytest.Behaviour) { hidden = true })
		r.Apply(removing(clusters, "n003"))
		r.Restart()
		r.pass(time.Minute)
		if got := r.members(clusters); strings.Contains(present(got), "n003") || !strings.Contains(got, "n004@1") {
			t.Errorf("members %s, want n004 and not n003", got)
		}
		r.expect("subscribed", strings.Join(r.State().Names(clusters), " "), "* n005 other")
		r.expect("named", r.named(clusters), "n005@1 other@1")
	})
}

// TestB15_SilenceOnControlQueryProvesNothing: silence about a queried name is no evidence without a response to the
// control query. Here, the origin does not read the second stream.
func TestB15_SilenceOnControlQueryProvesNothing(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(20)...)
		r.changeWhileDown(removing(clusters, "n003"))
		r.pass(10 * time.Second)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true }) // for streams opened from now on
		r.membersAfter(longAfter, "members", clusters, joined(numbered(20)))
	})
}

// TestB15_SweepRestarts: a sweep that a disconnect interrupts is no evidence for the next one.
func TestB15_SweepRestarts(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(20)...)
		r.changeWhileDown(removing(clusters, "n003"))
		r.pass(20 * time.Second) // the query was sent, and the origin has responded to the control query
		if n := len(r.State().Open()); n != 2 {
			t.Fatalf("%d streams open, want 2 during the sweep", n)
		}
		r.put(clusters, "n003@1")
		r.Stop()
		r.Apply(removing(clusters, "n003"))
		r.Restart()
		r.pass(10 * time.Second)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		r.pass(longAfter)
		if got := r.members(clusters); !strings.Contains(got, "n003@1") {
			t.Errorf("members %s, want n003 too: the origin has not responded to the second sweep", got)
		}
	})
}

// TestB15_NamedResourceRemovalIsNeverInferred: the removal of a resource subscribed to by name is never inferred. It
// stays until the origin removes it.
func TestB15_NamedResourceRemovalIsNeverInferred(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, numbered(20)...)
		r.watch.Subscribe(endpoints, nameOnly(numbered(20)))
		r.pass(confirmed)
		r.changeWhileDown(removing(endpoints, "n003"))
		r.namedAfter(longAfter, "named", endpoints, joined(numbered(20)))
	})
}

// TestB15_IncompleteSetIsNotReported: the versions of an unconfirmed set are not reported. The relay requests all of
// it.
func TestB15_IncompleteSetIsNotReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.pass(2 * time.Second) // settled
		r.Restart()
		r.pass(3 * time.Second)
		r.expect("last stream", r.conversation(r.streams()-1), "[Cluster node] [Cluster ack 1]")
		r.pass(confirmed)
		r.Restart()
		r.pass(3 * time.Second)
		r.expect("last stream", r.conversation(r.streams()-1), "[Cluster node a=1]")
	})
}

// TestB15_C21_VersionsExceedRequestSize: versions are not reported if they take more than 3.5 MB.
func TestB15_C21_VersionsExceedRequestSize(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		const n = 36
		r.Apply(func(tx *relaytest.Tx) {
			for i := range n {
				putIn(tx, clusters, fmt.Sprintf("%02d%s@1", i, strings.Repeat("x", 100_000)))
			}
		})
		r.watch.SubscribeAll(clusters)
		r.pass(confirmed)
		r.Restart()
		r.pass(confirmed)
		r.expect("stream after a restart", r.conversation(1), "[Cluster node] [Cluster ack 1]")
		check.Equal(t, "members", r.view.Generation().Type(clusters).Wildcard.Count(), n)
	})
}
