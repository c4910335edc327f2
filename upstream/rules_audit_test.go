package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// found formats an audit. For each type it returns the number of equal resources, ~ and the number of changing ones,
// and each difference as kind:name here/there. A glob precedes the name.
func found(a upstream.Audit) string {
	var out []string
	for _, typ := range a.Types {
		text := fmt.Sprintf("%s %d", typ.TypeURL[strings.LastIndexByte(typ.TypeURL, '.')+1:], typ.Equal)
		if typ.Changing > 0 {
			text += fmt.Sprintf(" ~%d", typ.Changing)
		}
		for _, d := range typ.Differences {
			text += fmt.Sprintf(" %s:%s%s %s/%s", d.Kind, d.Glob, d.Name, d.Here, d.There)
			if d.Held {
				text += " held"
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// audited audits a view, checks that it does not change, and returns the result of found.
func (r *rig) audited(typeURL string) string {
	r.t.Helper()
	before, lines := r.view.Generation(), r.log.count("")
	got, err := r.control.Audit(r.t.Context(), typeURL)
	if err != nil {
		r.t.Fatalf("audit: %v", err)
	}
	if r.view.Generation() != before || r.log.count("") != lines {
		r.t.Error("the audit changed the view or caused a log line")
	}
	if got.Target != r.Target() || got.Took > time.Minute+time.Second {
		r.t.Errorf("audit of %s took %v, want an audit of %s within a minute", got.Target, got.Took, r.Target())
	}
	return found(got)
}

const (
	globbed = "xdstp://auth/envoy.config.cluster.v3.Cluster/"
	glob    = globbed + "*"
)

// wantAll subscribes clients to members, names and a collection.
func (r *rig) wantAll() {
	r.watch.SubscribeAll(clusters)
	r.watch.Subscribe(clusters, []string{"a", "only", "none"})
	r.watch.SubscribeAll(cache.Collection(clusters, glob))
	r.watch.Subscribe(endpoints, []string{"e", "f"})
	r.put(clusters, "a@1", "b@1", "only@1", globbed+"x@1")
	r.put(endpoints, "e@1", "f@1", "g@1")
	r.pass(confirmed)
}

// TestB43_OriginAuditFindsNothing: an audit requests all subscriptions of clients on its own streams, without reporting
// cached versions. It ends once the origin has responded to them.
func TestB43_OriginAuditFindsNothing(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		b := relaytest.Behaviour{SotW: sotw, Wrap: true, NamedOnly: func(_, name string) bool { return name == "only" || strings.HasPrefix(name, globbed) }}
		inBubble(t, b, upstream.Config{}, func(t *testing.T, r *rig) {
			r.wantAll()
			streams, counted, began := r.streams(), r.session.Stats().Streams, time.Now()
			r.expect("audit", r.audited(""), "Cluster 5; ClusterLoadAssignment 2")
			if took := time.Since(began); took > 10*time.Second || !sotw && took > 3*time.Second {
				t.Errorf("sotw=%v: the audit took %v", sotw, took)
			}
			synctest.Wait()
			if got := len(r.State().Open()); got != streams || r.streams() != streams+2 {
				t.Errorf("sotw=%v: %d streams open and %d in total, want %d and two more that have ended", sotw, got, r.streams(), streams)
			}
			for i := streams; i < r.streams(); i++ {
				if text := r.conversation(i); strings.Contains(text, "=1") || !strings.Contains(text, "node") {
					t.Errorf("sotw=%v: the audit sent %s, want the node and no reported versions", sotw, text)
				}
			}
			r.expect("audit of one type", r.audited(endpoints), "ClusterLoadAssignment 2")
			r.expect("audit of a type without subscriptions", r.audited(listeners), "")
			if got := r.session.Stats(); got.Audits != 2 || got.Drifted != 0 || got.Streams != counted {
				t.Errorf("sotw=%v: counted %d audits, %d drifted, %d streams; want 2, 0 and %d", sotw, got.Audits, got.Drifted, got.Streams, counted)
			}
		})
	}
}

// TestB43_OriginAuditFindsDrift: an audit reports resources that the origin has sent to the view and sends differently
// on another stream, with name and versions. It does not change the view.
func TestB43_OriginAuditFindsDrift(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(endpoints, []string{"e", "f"})
		first := r.Accept(t.Context())
		resource := func(typeURL, name, content, version string) *discoverypb.Resource {
			return &discoverypb.Resource{Name: name, Version: version, Resource: relaytest.Opaque(typeURL, name, []byte(content))}
		}
		first.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: clusters, Resources: []*discoverypb.Resource{
			resource(clusters, "same", "1", "1"), resource(clusters, "content", "2", "2"),
			resource(clusters, "version", "1", "2"), resource(clusters, "stale", "1", "1"),
		}})
		first.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: endpoints, Resources: []*discoverypb.Resource{resource(endpoints, "e", "1", "1")}, RemovedResources: []string{"f"}})
		r.Change(func(b *relaytest.Behaviour) { b.Manual = false })
		r.put(clusters, "same@1", "content@1", "version@1", "lost@1")
		r.put(endpoints, "e@1", "f@1")
		r.pass(confirmed)
		want := "Cluster 1 content:*content 2/1 missing_here:*lost /1 missing_there:*stale 1/ version:*version 2/1; " +
			"ClusterLoadAssignment 1 missing_here:f /1"
		r.expect("audit", r.audited(""), want)
		r.control.Freeze(t.Context())
		r.expect("audit of a frozen view", r.audited(""), want)
		check.Equal(t, "drifted", r.session.Stats().Drifted, 10)
	})
}

// TestB43_OriginAuditAmidChanges: changes during an audit are not differences, however many there are. A change that
// one stream receives later is compared again.
func TestB43_OriginAuditAmidChanges(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		first := r.Accept(t.Context())
		send := func(typeURL string, resources ...string) {
			resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL}
			for _, text := range resources {
				name, version, _ := strings.Cut(text, "@")
				resp.Resources = append(resp.Resources, &discoverypb.Resource{
					Name: name, Version: version, Resource: relaytest.Opaque(typeURL, name, []byte(version))})
			}
			first.Send(resp)
		}
		r.put(clusters, numbered(20)...)
		send(clusters, append(numbered(20), "stale@1")...)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = false })
		r.pass(confirmed)

		changing, end := context.WithCancel(t.Context())
		var late sync.WaitGroup // awaited below
		late.Go(func() {
			for i := 0; changing.Err() == nil; i++ {
				change := fmt.Sprintf("n%03d@%d", i%20, i+2)
				r.put(clusters, change)
				late.Go(func() {
					time.Sleep(time.Second)
					send(clusters, change)
				})
				time.Sleep(70 * time.Millisecond)
			}
		})
		late.Go(func() {
			time.Sleep(30 * time.Second)
			end()
		})
		got, err := r.control.Audit(t.Context(), clusters)
		if err != nil || len(got.Types) != 1 {
			t.Fatalf("audit: %v, %v", found(got), err)
		}
		if of := got.Types[0]; len(of.Differences) != 1 || of.Differences[0].Name != "stale" || of.Changing < 10 || of.Equal+of.Changing != 20 {
			t.Errorf("found %s, want one difference, ten changing resources, and 20 equal or changing ones", found(got))
		}
		late.Wait()
		r.pass(time.Minute)
		r.expect("audit after the changes", r.audited(clusters), "Cluster 20 missing_there:*stale 1/")
	})
}

// TestB43_OriginAuditOfUnsubscribedResources: a resource that the view unsubscribes from during an audit is not a
// difference.
func TestB43_OriginAuditOfUnsubscribedResources(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{Linger: time.Second}, func(t *testing.T, r *rig) {
		names := r.watch.Subscribe(endpoints, []string{"a", "b"})
		r.Accept(t.Context()).Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: endpoints, RemovedResources: []string{"a", "b"}})
		r.Change(func(b *relaytest.Behaviour) { b.Manual = false })
		r.put(endpoints, "a@1", "b@1")
		r.pass(time.Second)
		unsubscribed := make(chan struct{})
		go func() { // awaited below
			defer close(unsubscribed)
			time.Sleep(time.Second)
			r.watch.Unsubscribe(endpoints, names[:1])
		}()
		got, err := r.control.Audit(t.Context(), "")
		<-unsubscribed
		if found(got) != "ClusterLoadAssignment 0 missing_here:b /1" || err != nil {
			t.Errorf("found %s, %v; want only the name that is still subscribed to", found(got), err)
		}
	})
}

// TestB43_OriginAuditOfPendingRemovals: a difference with a pending removal is marked as held.
func TestB43_OriginAuditOfPendingRemovals(t *testing.T) {
	losesHalf(t, func(t *testing.T, r *rig) {
		got := r.audited(clusters)
		if !strings.HasPrefix(got, "Cluster 50 missing_there:*n050 1/ held ") || strings.Count(got, " held") != 50 {
			t.Errorf("found %s, want 50 that are missing there with a pending removal", got)
		}
		r.expectHolds("after the audit", 50, 0)
	})
}

// TestB43_B11_OriginAuditOfWaitingAdditions: a resource that waits, because an operator keeps the one that excludes it, is marked as
// held.
func TestB43_B11_OriginAuditOfWaitingAdditions(t *testing.T) {
	inBubble(t, forgetful, upstream.Config{}, func(t *testing.T, r *rig) {
		for i, name := range []string{"a", "b", "c"} {
			r.set(listeners, name, "1", relaytest.ListenerAt(name, "routes", fmt.Sprint("127.0.0.1:", 80+i)))
		}
		r.follow(listeners)
		r.changeWhileDown(removing(listeners, "a", "b", "c"))
		r.pass(2 * time.Minute)
		r.control.Operate(t.Context(), drop)
		r.set(listeners, "new", "1", relaytest.ListenerAt("new", "routes", "127.0.0.1:80"))
		r.pass(time.Minute)
		want := "Listener 0 missing_there:*a 1/ held missing_there:*b 1/ held missing_there:*c 1/ held missing_here:*new /1 held"
		if got := r.audited(listeners); got != want {
			t.Errorf("found %s, want %s", got, want)
		}
	})
}

// TestB43_OriginAuditEnds: an origin has one audit at a time. An audit ends with its context, or when the origin closes
// the stream, and causes no failover.
func TestB43_OriginAuditEnds(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		if a, err := r.control.Audit(t.Context(), ""); err != nil || len(a.Types) != 0 || r.streams() != 0 {
			t.Errorf("audit of a view without subscriptions: %s, %v, on %d streams; want no types, no error, no stream", found(a), err, r.streams())
		}
		r.follow(clusters, "a@1")
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true })

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		waits := make(chan error)
		go func() {
			time.Sleep(time.Millisecond)
			_, err := r.control.Audit(ctx, "")
			waits <- err
		}()
		_, err := r.control.Audit(t.Context(), "")
		if !errors.Is(err, upstream.ErrAuditEnded) || !strings.Contains(err.Error(), "no response for") {
			t.Errorf("audit of a silent origin: %v, want ErrAuditEnded", err)
		}
		if err := <-waits; !errors.Is(err, context.DeadlineExceeded) || r.streams() != 2 {
			t.Errorf("audit that waits for another one: %v after %d streams; want DeadlineExceeded and two streams", err, r.streams())
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.control.Audit(ctx, ""); !errors.Is(err, context.DeadlineExceeded) || r.streams() != 3 {
			t.Errorf("audit whose context ends: %v after %d streams; want DeadlineExceeded and three streams", err, r.streams())
		}

		for range 3 {
			r.Accept(t.Context())
		}
		go func() { r.Accept(t.Context()).Close(unavailable) }()
		if _, err := r.control.Audit(t.Context(), ""); !errors.Is(err, upstream.ErrAuditEnded) || !strings.Contains(err.Error(), "go away") {
			t.Errorf("audit of an origin that closes the stream: %v, want ErrAuditEnded with the reason", err)
		}
		if got := r.session.Stats(); got.Failovers != 0 || len(got.Ended) != 0 || got.Audits != 0 || r.session.Status().Failure.Err != nil {
			t.Errorf("failed audits counted as %+v with the failure %v, want neither", got, r.session.Status().Failure.Err)
		}
		go func() {
			time.Sleep(time.Second)
			r.Stop()
		}()
		if _, err := r.control.Audit(t.Context(), ""); !errors.Is(err, upstream.ErrAuditEnded) && !errors.Is(err, upstream.ErrNotConnected) {
			t.Errorf("audit of an origin that stops: %v, want ErrAuditEnded or ErrNotConnected", err)
		}
		r.stop()
		if _, err := r.control.Audit(t.Context(), ""); !errors.Is(err, upstream.ErrNotConnected) {
			t.Errorf("audit after the sync has ended: %v, want ErrNotConnected", err)
		}
	})
}
