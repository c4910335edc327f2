package upstream_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// away takes the origin down, changes what it holds, and brings it back.
func (r *rig) away(change func(tx *relaytest.Tx)) {
	r.Stop()
	r.Apply(change)
	r.pass(time.Second)
	r.Restart()
}

func removing(typeURL string, names ...string) func(*relaytest.Tx) {
	return func(tx *relaytest.Tx) {
		for _, name := range names {
			tx.Remove(typeURL, name)
		}
	}
}

// numbered returns n resources name@1, named alike and in order.
func numbered(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%03d@1", i)
	}
	return out
}

// shown is what members shows of numbered resources.
func shown(resources []string) string { return strings.Join(resources, " ") }

func nameOnly(resources []string) []string {
	out := make([]string, len(resources))
	for i, text := range resources {
		out[i], _, _ = strings.Cut(text, "@")
	}
	return out
}

// confirmed is long enough for a set to be taken for complete.
const confirmed = 12 * time.Second

// With the same origin, a resync that finds nothing new moves nothing.
func TestB15_SameBytesAreNoChange(t *testing.T) {
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
						r.pass(time.Hour)
					}
					check.Equal(t, "position", r.view.Generation().Seq, seq)
					if got := r.State().Last().Requests[0].Message.GetInitialResourceVersions(); full && len(got) > 0 {
						t.Errorf("TENDER_RESYNC=full says what is held: %v", got)
					}
				})
			})
		}
	}
}

// An origin that does not remove by itself is asked for what it no longer
// mentions, on the stream that has not the wildcard, beside a control; then it is
// let go (C14).
func TestB15_C14_Sweep(t *testing.T) {
	tests := []struct {
		name   string
		b      relaytest.Behaviour
		full   bool
		after  time.Duration // gone only then
		before time.Duration // still there
	}{
		{"ignores versions, answers for what is missing", relaytest.Behaviour{IgnoreIRV: true}, false, 17 * time.Second, 15 * time.Second},
		{"ignores versions, silent on what is missing", relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, false, 32 * time.Second, 29 * time.Second},
		{"not told versions", relaytest.Behaviour{}, true, 17 * time.Second, 15 * time.Second},
		{"has no versions", relaytest.Behaviour{IgnoreIRV: true, EmptyVersions: true, SilentOnMissing: true}, false, 32 * time.Second, 29 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.b, upstream.Config{FullResync: tt.full}, func(t *testing.T, r *rig) {
				r.follow(clusters, numbered(20)...)
				r.away(removing(clusters, "n003", "n007"))
				back := time.Now()
				r.pass(tt.before - time.Since(back))
				check.Equal(t, fmt.Sprintf("members %v after the origin came back", tt.before), r.view.Generation().Type(clusters).Wildcard.Count(), 20)
				r.pass(tt.after + 3*time.Second - time.Since(back))
				if n := r.view.Generation().Type(clusters).Wildcard.Count(); n != 18 {
					t.Errorf("%d members %v after the origin came back, want 18:\n%v", n, time.Since(back), r.State())
				}
				open := r.State().Open()
				if len(open) != 1 || !r.State().Subscribed(clusters, "*") {
					t.Errorf("open are %v, want one with the wildcard", open)
				}
				last := r.State().Last()
				check.Equal(t, "asked by", showRequest(last.Requests[0].Message), "[Cluster node +n000 +n003 +n007]")
			})
		})
	}
}

// An origin that ignores versions shows it by what it resends of one type. It sends nothing of a type whose last member
// went, which looks as if nothing had changed.
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
				r.away(removing(listeners, "l"))
				r.pass(20 * time.Second)
				r.holding("the only listener", 1, 0)
				r.pass(15 * time.Minute)
				r.expect("listeners", present(r.members(listeners)), "")
				r.expect("clusters", r.members(clusters), "c@1")
			})
		})
	}
}

// A member that is found by name is not gone. All that was asked for is given up
// on a stream that stays open for a client's names.
func TestB15_FoundByNameAndLetGo(t *testing.T) {
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
			t.Errorf("members are %s, want n004 and not n003", got)
		}
		r.expect("subscribed", strings.Join(r.State().Names(clusters), " "), "* n005 other")
		r.expect("named", r.named(clusters), "n005@1 other@1")
	})
}

// Silence proves nothing where the origin is silent on the control, too: here it
// reads nothing from the second stream.
func TestB15_SilenceOnTheControlProvesNothing(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(20)...)
		r.away(removing(clusters, "n003"))
		r.pass(10 * time.Second)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true }) // streams opened from now on
		r.membersAfter(time.Hour, "members", clusters, shown(numbered(20)))
	})
}

// A sweep that the loss of the origin cut short proves nothing for the next one.
func TestB15_SweepBeginsAnew(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(20)...)
		r.away(removing(clusters, "n003"))
		r.pass(20 * time.Second) // asked, and the control was answered
		if n := len(r.State().Open()); n != 2 {
			t.Fatalf("%d streams open, want 2: the sweep must have begun", n)
		}
		r.put(clusters, "n003@1")
		r.Stop()
		r.Apply(removing(clusters, "n003"))
		r.Restart()
		r.pass(10 * time.Second)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		r.pass(time.Hour)
		if got := r.members(clusters); !strings.Contains(got, "n003@1") {
			t.Errorf("members are %s: n003 was removed though nothing was answered", got)
		}
	})
}

// A name is never inferred to be gone: it stays as it was until the origin says
// so.
func TestB15_NamedIsNeverInferred(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, numbered(20)...)
		r.watch.Subscribe(endpoints, nameOnly(numbered(20)))
		r.pass(confirmed)
		r.away(removing(endpoints, "n003"))
		r.namedAfter(24*time.Hour, "named", endpoints, shown(numbered(20)))
	})
}

// A set that was not confirmed cannot say what is held: the origin is asked for
// all of it.
func TestB15_IncompleteSetSaysNothing(t *testing.T) {
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

// What is held is not said where that would take more than 3.5 MB.
func TestB15_C21_VersionsThatDoNotFit(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want bool
	}{{3300, true}, {3600, false}} {
		t.Run(fmt.Sprint(tt.n), func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.Apply(func(tx *relaytest.Tx) {
					for i := range tt.n {
						putIn(tx, clusters, fmt.Sprintf("%04d%s@1", i, strings.Repeat("x", 980)))
					}
				})
				r.watch.SubscribeAll(clusters)
				r.pass(confirmed)
				r.Restart()
				r.pass(confirmed)
				got := r.State().Last().Requests[0].Message.GetInitialResourceVersions()
				if want := map[bool]int{true: tt.n}[tt.want]; len(got) != want {
					t.Errorf("%d versions, want %d", len(got), want)
				}
				check.Equal(t, "members", r.view.Generation().Type(clusters).Wildcard.Count(), tt.n)
			})
		})
	}
}

// When another instance speaks for the origin after a reconnect, it is asked for
// everything once, on both streams, without being told what is held.
func TestB15_OtherControlPlane(t *testing.T) {
	inBubble(t, relaytest.Behaviour{ControlPlane: "one"}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "b@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Second)
		r.watch.Subscribe(clusters, []string{"a"})
		r.pass(confirmed)
		r.Stop()
		r.SetControlPlane("two")
		// The same version with another content: it would not be sent.
		r.Set(clusters, "a", relaytest.Opaque(clusters, "a", []byte("new")), "1")
		r.put(clusters, "b@2")
		seq := r.view.Generation().Seq
		before := r.streams()
		r.Restart()
		r.pass(time.Hour)
		var first []string
		for _, st := range r.State().Streams[before:] {
			if len(st.Requests) > 0 {
				first = append(first, showRequest(st.Requests[0].Message))
			}
		}
		if got := strings.Join(first, " "); strings.Count(got, "a=1") != 2 || !strings.HasSuffix(got, "[Cluster node] [Cluster node +a]") && !strings.HasSuffix(got, "[Cluster node +a] [Cluster node]") || len(first) != 4 {
			t.Errorf("streams began with %s, want two that say what is held, then two that do not", got)
		}
		// a and b changed among the members, a among the named.
		check.Equal(t, "position", r.view.Generation().Seq, seq+3)
	})
}

// saying returns how many streams of the origin began with a request that says what is held, and how many with one that does not.
func (r *rig) saying() (held, nothing int) {
	for _, st := range r.State().Streams {
		switch {
		case len(st.Requests) == 0:
		case len(st.Requests[0].Message.GetInitialResourceVersions()) > 0:
			held++
		default:
			nothing++
		}
	}
	return held, nothing
}

// TestH07_ContentIsComparedAfterAResume: another server may have other content under the same versions, and the identifier that
// would tell is empty by default.
func TestH07_ContentIsComparedAfterAResume(t *testing.T) {
	hashed := func(content string) string {
		value := relaytest.Opaque(clusters, "a", []byte(content)).GetValue()
		return fmt.Sprintf("%x", sha256.Sum256(value))
	}
	for _, tt := range []struct {
		name     string
		b        relaytest.Behaviour
		version  string
		change   bool // the restarted server has other content
		silent   bool // and nothing to say when it is told what is held
		compared bool
	}{
		{"no identifier", relaytest.Behaviour{}, "1", true, true, true},
		{"no identifier, the same content", relaytest.Behaviour{}, "1", false, true, true},
		{"the same identifier", relaytest.Behaviour{ControlPlane: "one"}, "1", false, false, false},
		{"the same identifier, unheard", relaytest.Behaviour{ControlPlane: "one"}, "1", false, true, true},
		{"versions are hashes", relaytest.Behaviour{}, hashed("content"), false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.b, upstream.Config{}, func(t *testing.T, r *rig) {
				content := func(text string) {
					r.Set(clusters, "a", relaytest.Opaque(clusters, "a", []byte(text)), tt.version)
				}
				content("content")
				r.watch.SubscribeAll(clusters)
				r.pass(confirmed)
				before := r.view.Generation().Type(clusters).Wildcard.Sum()
				r.Stop()
				if tt.change {
					content("another")
				}
				r.Restart()
				r.pass(time.Second)
				if !tt.silent {
					r.put(clusters, "new@1")
				}
				r.pass(15 * time.Second)
				if held, nothing := r.saying(); held != 1 || nothing != 1 {
					t.Errorf("%d streams say what is held and %d do not, want 1 and the first: clients come first", held, nothing)
				}
				r.pass(time.Minute)
				if _, nothing := r.saying(); (nothing == 2) != tt.compared {
					t.Errorf("%d streams do not say what is held; compared: want %v", nothing, tt.compared)
				}
				if after := r.view.Generation().Type(clusters).Wildcard.Sum(); tt.silent && (after != before) != tt.change {
					t.Errorf("the set changed: %v, want %v", after != before, tt.change)
				}
				streams := r.streams()
				r.pass(24 * time.Hour)
				if r.streams() != streams {
					t.Errorf("%d further streams in a day, want none", r.streams()-streams)
				}
			})
		})
	}
}

// TestH07_AnotherServerThatAnswersTwice is still another one than before.
func TestH07_AnotherServerThatAnswersTwice(t *testing.T) {
	servedByAnother(t, func(_ *testing.T, r *rig) *rig { return r })
}

// TestH07_AnOriginThatRepeatedItself is compared too: it was taken for one that resends everything, and is not.
func TestH07_AnOriginThatRepeatedItself(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		r.Restart()
		r.pass(time.Second)
		r.put(clusters, "a@1")
		r.pass(time.Minute)
		r.Stop()
		want := relaytest.Opaque(clusters, "a", []byte("another"))
		r.Set(clusters, "a", want, "1")
		r.Restart()
		r.pass(time.Minute)
		e := r.view.Generation().Type(clusters).Wildcard.Get(r.view.Find(clusters, []string{"a"})[0])
		if !bytes.Equal(e.Resource.Value(), want.GetValue()) {
			t.Errorf("a minute later a is %q, want what the new server has: %q", e.Resource.Value(), want.GetValue())
		}
	})
}

// TestH07_AnOriginThatIsAskedByName is compared too: it resent everything before, and now does not. That it answers for
// what it is asked for by name is no resend.
func TestH07_AnOriginThatIsAskedByName(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "b@1", "c@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Second)
		r.watch.Subscribe(clusters, []string{"a"})
		r.pass(confirmed)
		r.Restart()
		r.pass(time.Minute)
		r.Stop()
		r.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = false })
		want := relaytest.Opaque(clusters, "b", []byte("another"))
		r.Set(clusters, "b", want, "1")
		r.Restart()
		r.pass(time.Second)
		r.put(clusters, "c@2") // 15s later, the others are asked for by name
		r.pass(2 * time.Minute)
		e := r.view.Generation().Type(clusters).Wildcard.Get(r.view.Find(clusters, []string{"b"})[0])
		if !bytes.Equal(e.Resource.Value(), want.GetValue()) {
			t.Errorf("two minutes later b is %q, want what the new server has: %q", e.Resource.Value(), want.GetValue())
		}
	})
}

// TestH07_ARelayThatRestartsBeforeItHasCompared asks for all content, though the snapshot has the identifier of the new server.
// One that restarts later need not.
func TestH07_ARelayThatRestartsBeforeItHasCompared(t *testing.T) {
	for _, compared := range []bool{false, true} {
		t.Run(fmt.Sprintf("compared=%v", compared), func(t *testing.T) {
			servedByAnother(t, func(t *testing.T, r *rig) *rig {
				if compared {
					r.pass(time.Minute)
				}
				r.stop()
				s, _ := r.w.Snapshot(true)
				if told := s.Target != ""; told != compared {
					t.Errorf("the snapshot is of the target %q", s.Target)
				}
				r = restored(t, r.Origin, upstream.Config{}, s)
				r.pass(time.Second)
				r.put(clusters, "d@1")
				return r
			})
		})
	}
}

// servedByAnother has another server take the place of an origin, with other content under the same versions, and answer twice.
// A minute after then, which may go on with another mirror, its content is to be served.
func servedByAnother(t *testing.T, then func(*testing.T, *rig) *rig) {
	t.Helper()
	inBubble(t, relaytest.Behaviour{ControlPlane: "one"}, upstream.Config{}, func(t *testing.T, r *rig) {
		content := func(text string) { r.Set(clusters, "a", relaytest.Opaque(clusters, "a", []byte(text)), "1") }
		content("content")
		r.watch.SubscribeAll(clusters)
		r.pass(confirmed)
		r.Stop()
		content("another")
		r.SetControlPlane("two")
		r.Restart()
		r.pass(time.Second)
		r.put(clusters, "b@1")
		r.pass(time.Second)
		r.put(clusters, "c@1")
		r.pass(time.Second)
		r = then(t, r)
		r.pass(time.Minute)
		e := r.view.Generation().Type(clusters).Wildcard.Get(r.view.Find(clusters, []string{"a"})[0])
		if want := relaytest.Opaque(clusters, "a", []byte("another")).GetValue(); !bytes.Equal(e.Resource.Value(), want) {
			t.Errorf("a minute later a is %q, want what the new server has: %q", e.Resource.Value(), want)
		}
	})
}

// TestH07_StreamsThatTheRelayReopened are to the same server, and what is due stays due.
func TestH07_StreamsThatTheRelayReopened(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.put(listeners, "l@1")
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(listeners, []string{"l"})
		r.pass(confirmed)
		r.Stop()
		r.Set(clusters, "a", relaytest.Opaque(clusters, "a", []byte("another")), "1")
		before := r.view.Generation().Type(clusters).Wildcard.Sum()
		r.Restart()
		r.pass(5 * time.Second)
		streams := r.streams()
		r.watch.SubscribeAll(listeners) // the names move to the other stream
		r.pass(5 * time.Second)
		if r.streams() == streams {
			t.Fatal("no stream was reopened")
		}
		r.pass(time.Minute)
		if r.view.Generation().Type(clusters).Wildcard.Sum() == before {
			t.Error("the content was not compared")
		}
	})
}

// TestH07_OneViewAfterTheOther: after the restart of an origin, views compare one at a time.
func TestH07_OneViewAfterTheOther(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Delay: time.Second}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, numbered(10)...)
		r.watch.SubscribeAll(clusters)
		const further = 4
		ctx, cancel := context.WithCancel(t.Context())
		var mirrors sync.WaitGroup
		for i := range further {
			view, w := cache.New(cache.Config{})
			view.Watch().SubscribeAll(clusters)
			mirrors.Go(func() {
				r.session.Sync(ctx, &corepb.Node{Id: fmt.Sprint("relay-", i)}, w, slog.New(slog.DiscardHandler), upstream.NewControl(false, nil))
			})
		}
		defer mirrors.Wait()
		defer cancel()
		r.pass(confirmed)
		r.Restart()
		r.pass(18 * time.Second)
		compared, most := 0, 0
		for range 300 {
			_, nothing := r.saying()
			nothing -= further + 1 // the first streams
			most, compared = max(most, nothing-compared), nothing
			r.pass(500 * time.Millisecond)
		}
		if compared != further+1 || most != 1 {
			t.Errorf("%d views compared, up to %d of them within half a second; want all %d, one at a time", compared, most, further+1)
		}
	})
}
