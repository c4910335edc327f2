package upstream_test

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// TestB9_ResponseOverTheLimit: a response over the size limit ends the stream, and the log names the variable. Cached
// resources stay, and the relay retries with the usual backoff.
func TestB9_ResponseOverTheLimit(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{MaxResponseBytes: 4096}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		large := relaytest.Opaque(clusters, "b", make([]byte, 8192))
		r.Apply(func(tx *relaytest.Tx) { tx.Set(clusters, "b", large, "1") })
		r.membersAfter(10*time.Minute, "members", clusters, "a@1")
		if n := r.log.count("ERROR origin response exceeds TENDER_MAX_ORIGIN_RESPONSE_BYTES"); n < 5 || n > 40 {
			t.Errorf("%d log lines in ten minutes, want about 20", n)
		}
		if n := r.session.Stats().Ended["RESOURCE_EXHAUSTED"]; n < 5 {
			t.Errorf("%d streams counted as RESOURCE_EXHAUSTED, want at least 5: %v", n, r.session.Stats().Ended)
		}
		r.put(clusters, "b@2")
		r.membersAfter(time.Minute, "members after a response within the limit", clusters, "a@1 b@2")
	})
}

// TestB9_ResourceOverTheLimit: the cached version of a resource over the size limit stays, also after a reconnect, and
// its clients receive the error. The rest of the response is applied, and the NACK names the resource. Its removal and
// a version within the limit are applied.
func TestB9_ResourceOverTheLimit(t *testing.T) {
	for variant, b := range map[string]relaytest.Behaviour{"delta": {}, "sotw": {SotW: true}} {
		t.Run(variant, func(t *testing.T) {
			inBubble(t, b, upstream.Config{MaxResourceBytes: 4096}, func(t *testing.T, r *rig) {
				putLarge := func(typeURL, name, version string) {
					r.Apply(func(tx *relaytest.Tx) {
						tx.Set(typeURL, name, relaytest.Opaque(typeURL, name, make([]byte, 8192)), version)
					})
				}
				content := func(set *cache.Set) string { // name@version; the last byte of the content is the version
					var out []string
					for e := range set.Since(0) {
						if e.Present() {
							value := e.Resource.Value()
							out = append(out, e.Name.String()+"@"+string(value[len(value)-1:]))
						}
					}
					slices.Sort(out)
					return strings.Join(out, " ")
				}
				members := func() string { return content(&r.view.Generation().Type(clusters).Wildcard) }
				named := func() string { return content(&r.view.Generation().Type(endpoints).ByName) }
				failed := func(typeURL string, kind cache.Kind) string {
					var out []string
					for e := range r.view.Generation().Type(typeURL).Errors(kind).Since(0) {
						out = append(out, e.Name.String()+" "+e.Err.Code.String())
					}
					slices.Sort(out)
					return strings.Join(out, ", ")
				}
				r.put(clusters, "a@1", "b@1")
				r.put(endpoints, "x@1")
				r.watch.SubscribeAll(clusters)
				r.watch.Subscribe(endpoints, []string{"x", "y"})
				r.pass(confirmed)

				r.Apply(func(tx *relaytest.Tx) {
					putIn(tx, clusters, "a@2")
					for _, name := range []string{"b", "c"} {
						tx.Set(clusters, name, relaytest.Opaque(clusters, name, make([]byte, 8192)), "2")
					}
				})
				putLarge(endpoints, "x", "2")
				putLarge(endpoints, "y", "2")
				held := func(when string) {
					t.Helper()
					r.expect("members "+when, members(), "a@2 b@1")
					r.expect("named "+when, named(), "x@1")
					r.expect("errors of clusters "+when, failed(clusters, cache.Wildcard), "b Internal, c Internal")
					r.expect("errors of endpoints "+when, failed(endpoints, cache.ByName), "x Internal, y Internal")
				}
				r.pass(soon)
				held("after the response")
				for _, want := range []string{
					`resource "b" and 1 more refused, all others applied: the resource has 8`,
					`resource "x" refused, all others applied: the resource has 8`,
					`bytes; at most 4096 are allowed (TENDER_MAX_RESOURCE_BYTES)`,
				} {
					if r.log.count(want) == 0 || !strings.Contains(r.State().String(), "error="+want) && want[0] == 'r' {
						t.Errorf("no log line or no NACK contains %s:\n%v\n%v", want, r.log, r.State())
					}
				}
				if st := r.State(); st.Type(clusters).NACKs == 0 || st.Type(endpoints).NACKs == 0 {
					t.Errorf("the origin received %+v for clusters and %+v for endpoints, want a NACK for each", st.Type(clusters), st.Type(endpoints))
				}
				r.pass(longAfter)
				held("long after")
				r.Restart()
				r.pass(longAfter)
				held("after a restart of the origin")

				r.put(clusters, "b@3")
				r.put(endpoints, "y@3")
				r.Apply(func(tx *relaytest.Tx) { tx.Remove(clusters, "a"); tx.Remove(clusters, "c"); tx.Remove(endpoints, "x") })
				r.pass(longAfter)
				r.expect("members at the end", members(), "b@3")
				r.expect("errors of clusters at the end", failed(clusters, cache.Wildcard), "")
				if b.SotW { // a SotW response that omits endpoints does not remove them
					r.expect("named at the end", named(), "x@1 y@3")
					r.expect("errors of endpoints at the end", failed(endpoints, cache.ByName), "x Internal")
				} else {
					r.expect("named at the end", named(), "y@3")
					r.expect("errors of endpoints at the end", failed(endpoints, cache.ByName), "")
				}
			})
		})
	}
}

// endless returns a service that sends a response every 20ms and reads requests. The n-th response contains the
// resource name(n) with version n.
func endless(name func(n int) string) *service {
	return &service{serve: func(rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		go func() { // ends with the stream
			for {
				if _, err := rpc.Recv(); err != nil {
					return
				}
			}
		}()
		for n := 0; ; n++ {
			resp := response(clusters, fmt.Sprintf("%s@%d", name(n), n))
			resp.Nonce = strconv.Itoa(n)
			if err := rpc.Send(resp); err != nil {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-rpc.Context().Done():
				return rpc.Context().Err()
			}
		}
	}}
}

// TestB7_EndlessChanges: if an origin changes resources without end, the view keeps no old versions. The set counts as
// settled during the changes.
func TestB7_EndlessChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := endless(func(n int) string { return strconv.Itoa(n % 4) })
		r := viewSync(t, idleOrigin(t), upstream.Config{Targets: []string{"passthrough:///bare"}, DialOptions: serveRaw(t, s)})
		r.watch.SubscribeAll(clusters)
		r.pass(3 * time.Second)
		members := &r.view.Generation().Type(clusters).Wildcard
		if phase := r.view.Generation().Type(clusters).Phase; phase != cache.Settled || members.Count() != 4 {
			t.Errorf("phase %v with %d members, want settled with 4", phase, members.Count())
		}
		kept := 0
		for range members.Since(0) {
			kept++
		}
		if bytes := members.Bytes(); kept != 4 || bytes > 4*500 {
			t.Errorf("the view keeps %d entries and %d bytes, want 4 and at most 2,000", kept, bytes)
		}
	})
}

// TestB7_EndlessSet: a set to which the origin adds resources without end is neither empty nor confirmed. It is settled
// after 2s, so that clients do not wait.
func TestB7_EndlessSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := endless(strconv.Itoa)
		r := viewSync(t, idleOrigin(t), upstream.Config{Targets: []string{"passthrough:///bare"}, DialOptions: serveRaw(t, s)})
		r.watch.SubscribeAll(clusters)
		for _, want := range []struct {
			after time.Duration
			phase cache.Phase
		}{{time.Second, cache.Unknown}, {2 * time.Second, cache.Settled}} {
			r.pass(want.after)
			c := r.view.Generation().Type(clusters)
			if c.Phase != want.phase || c.Wildcard.Count() < 25 {
				t.Errorf("after %v more: phase %v with %d members, want %v with at least 25", want.after, c.Phase, c.Wildcard.Count(), want.phase)
			}
		}
		check.Equal(t, "refused responses", r.session.Stats().Types[clusters].Refused, 0)
	})
}

// TestB35_ManyResources: an origin may send as many resources as fit in memory. A small resource takes at most 2 KiB.
func TestB35_ManyResources(t *testing.T) {
	const responses, each = 5, 1000
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	watch.SubscribeAll(clusters)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range responses {
		resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: clusters, Nonce: "n"}
		for n := range each {
			resp.Resources = append(resp.Resources, &discoverypb.Resource{Name: fmt.Sprintf("cluster-%d-%d", i, n), Version: "1", Resource: &anypb.Any{TypeUrl: clusters}})
		}
		apply(t, w, resp)
	}
	check.Equal(t, "members", view.Generation().Type(clusters).Wildcard.Count(), responses*each)
	if cost := (heap() - before) / (responses * each); cost > 2048 {
		t.Errorf("a resource takes %d bytes, want at most 2 KiB", cost)
	}
	runtime.KeepAlive(view)
}

// apply applies an encoded response to the wildcard set of a view.
func apply(t *testing.T, w *cache.Writer, resp *discoverypb.DeltaDiscoveryResponse) {
	t.Helper()
	b := check.Must(proto.Marshal(resp))
	u := check.Must(wire.Decoder{}.Decode(b))
	w.Apply(cache.Wildcard, u)
}
