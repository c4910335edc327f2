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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// TestB15_OtherControlPlane: if another instance responds after a reconnect, the relay requests all resources once on
// both streams, without reporting versions.
func TestB15_OtherControlPlane(t *testing.T) {
	inBubble(t, relaytest.Behaviour{ControlPlane: "one"}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "b@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Second)
		r.watch.Subscribe(clusters, []string{"a"})
		r.pass(confirmed)
		r.Stop()
		r.SetControlPlane("two")
		// The origin does not send this content to a stream that reports version 1.
		r.Set(clusters, "a", relaytest.Opaque(clusters, "a", []byte("new")), "1")
		r.put(clusters, "b@2")
		seq := r.view.Generation().Seq
		before := r.streams()
		r.Restart()
		r.pass(longAfter)
		var first []string
		for _, st := range r.State().Streams[before:] {
			if len(st.Requests) > 0 {
				first = append(first, described(st.Requests[0]))
			}
		}
		if got := strings.Join(first, " "); strings.Count(got, "a=1") != 2 || !strings.HasSuffix(got, "[cds node] [cds node +a]") && !strings.HasSuffix(got, "[cds node +a] [cds node]") || len(first) != 4 {
			t.Errorf("first requests %s, want two that report versions, then two that do not", got)
		}
		// The wildcard set changes for a and b, the named resources for a.
		check.Equal(t, "position", r.view.Generation().Seq, seq+3)
	})
}

// resumeCounts returns how many streams started with a request that reports versions, and how many with one that does
// not.
func (r *rig) resumeCounts() (held, nothing int) {
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

// TestH07_ContentComparedAfterResume: another server may have other content under the same versions. The control plane
// identifier, which distinguishes servers, is empty by default.
func TestH07_ContentComparedAfterResume(t *testing.T) {
	hashed := func(content string) string {
		value := relaytest.Opaque(clusters, "a", []byte(content)).GetValue()
		return fmt.Sprintf("%x", sha256.Sum256(value))
	}
	for _, tt := range []struct {
		name     string
		b        relaytest.Behaviour
		version  string
		change   bool // the restarted server has other content
		silent   bool // the restarted server sends no response to the reported versions
		compared bool
	}{
		{"no identifier", relaytest.Behaviour{}, "1", true, true, true},
		{"no identifier, same content", relaytest.Behaviour{}, "1", false, true, true},
		{"same identifier", relaytest.Behaviour{ControlPlane: "one"}, "1", false, false, false},
		{"same identifier without a response", relaytest.Behaviour{ControlPlane: "one"}, "1", false, true, true},
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
				if held, nothing := r.resumeCounts(); held != 1 || nothing != 1 {
					t.Errorf("%d streams report versions and %d do not, want 1 and 1: the comparison must not delay clients", held, nothing)
				}
				r.pass(time.Minute)
				if _, nothing := r.resumeCounts(); (nothing == 2) != tt.compared {
					t.Errorf("%d streams do not report versions, want 2 only if compared=%v", nothing, tt.compared)
				}
				if after := r.view.Generation().Type(clusters).Wildcard.Sum(); tt.silent && (after != before) != tt.change {
					t.Errorf("wildcard set changed: %v, want %v", after != before, tt.change)
				}
				streams := r.streams()
				r.pass(longAfter)
				if r.streams() != streams {
					t.Errorf("%d further streams, want none", r.streams()-streams)
				}
			})
		})
	}
}

// TestH07_OtherServerRespondsTwice: a server that has responded twice still differs from the previous one.
func TestH07_OtherServerRespondsTwice(t *testing.T) {
	servedByAnother(t, func(_ *testing.T, r *rig) *rig { return r })
}

// TestH07_OriginResendsReportedResources: content is also compared for an origin that was wrongly taken for one that
// resends everything.
func TestH07_OriginResendsReportedResources(t *testing.T) {
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
			t.Errorf("content of a after a minute: %q, want that of the new server: %q", e.Resource.Value(), want.GetValue())
		}
	})
}

// TestH07_OriginQueriedByName: content is also compared for an origin that resent everything before and no longer does.
// An answer to a query by name is not a resend.
func TestH07_OriginQueriedByName(t *testing.T) {
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
		r.put(clusters, "c@2") // 15s later, the relay queries the others by name
		r.pass(2 * time.Minute)
		e := r.view.Generation().Type(clusters).Wildcard.Get(r.view.Find(clusters, []string{"b"})[0])
		if !bytes.Equal(e.Resource.Value(), want.GetValue()) {
			t.Errorf("content of b after two minutes: %q, want that of the new server: %q", e.Resource.Value(), want.GetValue())
		}
	})
}

// TestH07_RestartBeforeComparison: a relay that restarts before the comparison requests all content, though the
// snapshot names the new server. After the comparison, it need not.
func TestH07_RestartBeforeComparison(t *testing.T) {
	for _, compared := range []bool{false, true} {
		t.Run(fmt.Sprintf("compared=%v", compared), func(t *testing.T) {
			servedByAnother(t, func(t *testing.T, r *rig) *rig {
				if compared {
					r.pass(time.Minute)
				}
				r.stop()
				s, _ := r.w.Snapshot(true)
				if hasTarget := s.Target != ""; hasTarget != compared {
					t.Errorf("target of the snapshot: %q, want one only after the comparison (%v)", s.Target, compared)
				}
				r = restored(t, r.Origin, upstream.Config{}, s)
				r.pass(time.Second)
				r.put(clusters, "d@1")
				return r
			})
		})
	}
}

// servedByAnother replaces the server of an origin by one with other content under the same versions, which responds
// twice. It calls then, which may replace the rig. A minute later, the new content must be served.
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
			t.Errorf("content of a after a minute: %q, want that of the new server: %q", e.Resource.Value(), want)
		}
	})
}

// TestH07_StreamsReopenedByTheRelay: streams that the relay reopens reach the same server. A scheduled comparison stays
// scheduled.
func TestH07_StreamsReopenedByTheRelay(t *testing.T) {
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
			t.Fatal("the relay did not reopen the streams")
		}
		r.pass(time.Minute)
		if r.view.Generation().Type(clusters).Wildcard.Sum() == before {
			t.Error("the relay did not compare the content")
		}
	})
}

// TestH07_ViewsCompareOneAtATime: after the restart of an origin, views compare one at a time.
func TestH07_ViewsCompareOneAtATime(t *testing.T) {
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
				r.session.Sync(ctx, &corepb.Node{Id: fmt.Sprint("relay-", i)}, pending.New(w, nil), slog.New(slog.DiscardHandler), upstream.NewControl(false, nil))
			})
		}
		defer mirrors.Wait()
		defer cancel()
		r.pass(confirmed)
		r.Restart()
		r.pass(18 * time.Second)
		compared, most := 0, 0
		for range 300 {
			_, nothing := r.resumeCounts()
			nothing -= further + 1 // the first streams
			most, compared = max(most, nothing-compared), nothing
			r.pass(500 * time.Millisecond)
		}
		if compared != further+1 || most != 1 {
			t.Errorf("%d views compared, up to %d of them within half a second; want all %d, one at a time", compared, most, further+1)
		}
	})
}
