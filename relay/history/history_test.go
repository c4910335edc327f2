package history

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is a view with a running follower, in a synctest bubble.
type rig struct {
	*testing.T
	journal *Journal
	view    *cache.View
	writer  *cache.Writer
	watch   *cache.Watch
}

// follow runs test in a bubble. Clients of the view subscribe to clusters by wildcard, and to the cluster "named" by
// name.
func follow(t *testing.T, cfg Config, test func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, journal: New(cfg)}
		r.view, r.writer = cache.New(cache.Config{})
		r.watch = r.view.Watch()
		wc := r.watch.SubscribeAll(wire.ClusterType)
		names := r.watch.Subscribe(wire.ClusterType, []string{"named"})
		r.writer.TakeDemand()
		ctx, cancel := context.WithCancel(t.Context())
		f := r.journal.Follow(r.view, "envoy")
		ended := make(chan struct{})
		go func() { // ends before follow returns
			defer close(ended)
			f.Run(ctx)
		}()
		synctest.Wait()
		test(r)
		cancel()
		<-ended
		if n := r.journal.Bytes(); n != 0 {
			t.Errorf("after the end of Run, the journal has %d bytes, want 0", n)
		}
		r.watch.UnsubscribeAll(wc)
		r.watch.Unsubscribe(wire.ClusterType, names)
		r.watch.Close()
	})
}

// put applies clusters from the origin and waits until the follower has recorded them.
func (r *rig) put(kind cache.Kind, clusters ...*clusterpb.Cluster) {
	r.Helper()
	u := wire.Update{TypeURL: wire.ClusterType}
	for _, c := range clusters {
		value, err := proto.Marshal(c)
		if err != nil {
			r.Fatal(err)
		}
		made, err := wire.NewResource(wire.ClusterType, c.GetName(), "", value)
		if err != nil {
			r.Fatal(err)
		}
		u.Resources = append(u.Resources, made)
	}
	r.apply(kind, u)
}

// remove applies removals of clusters and waits until the follower has recorded them.
func (r *rig) remove(kind cache.Kind, names ...string) {
	r.apply(kind, wire.Update{TypeURL: wire.ClusterType, Removed: names})
}

// apply applies an update, confirms the wildcard set of clusters, and waits until the changes are recorded.
func (r *rig) apply(kind cache.Kind, u wire.Update) {
	r.writer.Apply(kind, u)
	r.writer.SetPhase(wire.ClusterType, cache.Confirmed)
	time.Sleep(time.Second)
	synctest.Wait()
}

// is compares the changes of a cluster, newest first. Each want contains the kind, AskedAs, and a part of the diff or
// of its note.
func (r *rig) is(name string, want ...[3]string) {
	r.Helper()
	changes := r.journal.Changes(wire.ClusterType, name, "", 100)
	var got []string
	for _, c := range changes {
		d := r.journal.Diff(c)
		got = append(got, fmt.Sprintf("%s %q: %q (%s)", c.Kind, c.AskedAs, d.Text, d.Note))
	}
	if len(got) != len(want) {
		r.Fatalf("%s changed %d times, want %d:\n%s", name, len(got), len(want), strings.Join(got, "\n"))
	}
	for i, w := range want {
		d := r.journal.Diff(changes[i])
		if c := changes[i]; string(c.Kind) != w[0] || c.AskedAs != w[1] || !strings.Contains(d.Text+d.Note, w[2]) {
			r.Errorf("change %d of %s: %s, want %q", i, name, got[i], w)
		}
	}
}

// cluster returns a cluster. Clusters with different stat have different content.
func cluster(name, stat string) *clusterpb.Cluster {
	return &clusterpb.Cluster{Name: name, AltStatName: stat}
}

// TestHistory checks that additions, changes and removals are recorded, separately for subscriptions by wildcard and by
// name. An update with the same content is not a change.
func TestHistory(t *testing.T) {
	follow(t, Config{Changes: 10, Bytes: 1 << 20}, func(r *rig) {
		began := time.Now()
		r.put(cache.Wildcard, cluster("a", "one"), cluster("b", "one"))
		r.put(cache.Wildcard, cluster("a", "two"))
		r.put(cache.Wildcard, cluster("a", "two")) // the same content
		r.put(cache.ByName, cluster("named", "x"))
		r.remove(cache.ByName, "named")
		r.remove(cache.Wildcard, "a")
		r.put(cache.Wildcard, cluster("a", "three"))

		r.is("a",
			[3]string{"added", "*", "+alt_stat_name: three"}, [3]string{"removed", "*", "-alt_stat_name: two"},
			[3]string{"changed", "*", "-alt_stat_name: one\n+alt_stat_name: two\n name: a\n"}, [3]string{"added", "*", "+name: a"})
		r.is("b", [3]string{"added", "*", "+alt_stat_name: one"})
		r.is("named", [3]string{"removed", "", "-name: named"}, [3]string{"added", "", "+name: named"})
		r.is("nobody")
		if c := r.journal.Changes(wire.ClusterType, "a", "", 3); len(c) != 3 || !c[2].At.Equal(began.Add(time.Second)) {
			t.Errorf("the first of the last 3 changes of a is from %v, want one second after %v", c[len(c)-1].At, began)
		}
		if c := r.journal.Changes(wire.ClusterType, "a", "another group", 3); len(c) != 0 {
			t.Errorf("changes in another group: %v, want none", c)
		}
	})
}

// TestHistory_Fast checks that several changes between two looks of the follower are recorded as one.
func TestHistory_Fast(t *testing.T) {
	follow(t, Config{Changes: 10, Bytes: 1 << 20}, func(r *rig) {
		r.put(cache.Wildcard, cluster("a", "0"))
		r.apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType})
		for i := range 50 {
			value, _ := proto.Marshal(cluster("a", fmt.Sprint(i%10)))
			made, err := wire.NewResource(wire.ClusterType, "a", "", value)
			if err != nil {
				t.Fatal(err)
			}
			r.writer.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{made}})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(r.journal.Changes(wire.ClusterType, "a", "", 100)); n < 2 || n > 3 {
			t.Errorf("50 changes at once are recorded as %d, want 1, or 2 if the follower looked in between", n-1)
		}
		if c := r.journal.Changes(wire.ClusterType, "a", "", 1); !strings.Contains(r.journal.Diff(c[0]).Text, `+alt_stat_name: "9"`) {
			t.Errorf("the newest change does not contain the current content: %+v", r.journal.Diff(c[0]))
		}
	})
}

// TestHistory_Bounds checks that the oldest changes are dropped, above a number of changes per resource and above a
// number of bytes in total.
func TestHistory_Bounds(t *testing.T) {
	follow(t, Config{Changes: 3, Bytes: 1 << 20}, func(r *rig) {
		for i := range 6 {
			r.put(cache.Wildcard, cluster("a", fmt.Sprint("v", i)))
		}
		r.is("a",
			[3]string{"changed", "*", "-alt_stat_name: v4\n+alt_stat_name: v5"}, [3]string{"changed", "*", "-alt_stat_name: v3\n+alt_stat_name: v4"},
			[3]string{"changed", "*", "-alt_stat_name: v2\n+alt_stat_name: v3"})
	})
	const most = 8 << 10
	follow(t, Config{Changes: 100, Bytes: most}, func(r *rig) {
		for i := range 20 {
			r.put(cache.Wildcard, cluster("a", strings.Repeat(fmt.Sprint(i, " "), 200)), cluster(fmt.Sprint("b", i), "b"))
			if i < 10 {
				r.journal.Diff(r.journal.Changes(wire.ClusterType, "a", "", 1)[0])
			}
			if n := r.journal.Bytes(); n > most {
				t.Fatalf("the journal has %d bytes, want at most %d", n, most)
			}
		}
		changes := r.journal.Changes(wire.ClusterType, "a", "", 100)
		oldest := changes[len(changes)-1]
		if len(changes) < 2 || len(changes) > 8 || oldest.Before != nil || r.journal.Diff(oldest).Note != "the previous state is no longer in the history" {
			t.Errorf("%d changes of a, the oldest is %+v; want 2 to 8, and an oldest one without Before", len(changes), r.journal.Diff(oldest))
		}
		r.is("b0")
		r.is("b19", [3]string{"added", "*", "+name: b19"})
	})
	follow(t, Config{Changes: 100, Bytes: 100}, func(r *rig) { // less than one change
		r.put(cache.Wildcard, cluster("a", "a"))
		r.is("a")
	})
}

// TestB36_HistoryIsRedacted checks that a diff does not contain an inline key in an Any. If only the key differs, the
// diff has a note instead.
func TestB36_HistoryIsRedacted(t *testing.T) {
	withKey := func(key string) *clusterpb.Cluster {
		socket, err := anypb.New(&tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{{
			PrivateKey: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: key}},
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		return &clusterpb.Cluster{Name: "a", TransportSocket: &corepb.TransportSocket{Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: socket}}}
	}
	follow(t, Config{Changes: 10, Bytes: 1 << 20}, func(r *rig) {
		r.put(cache.Wildcard, withKey("tweedledum"))
		r.put(cache.Wildcard, withKey("tweedledee"))
		r.is("a", [3]string{"changed", "*", "only redacted fields differ"}, [3]string{"added", "*", "[redacted]"})
		for _, c := range r.journal.Changes(wire.ClusterType, "a", "", 10) {
			if d := r.journal.Diff(c); strings.Contains(d.Text, "tweedle") {
				t.Errorf("diff contains a key: %s", d.Text)
			}
		}
	})
}

// TestB36_NoHistoryOfSecrets checks that changes of Secrets are not recorded, and that the content of a resource with
// do_not_cache is not recorded (R125).
func TestB36_NoHistoryOfSecrets(t *testing.T) {
	follow(t, Config{Changes: 10, Bytes: 1 << 20}, func(r *rig) {
		names := r.watch.Subscribe(wire.SecretType, []string{"s"})
		r.writer.TakeDemand()
		made, err := wire.NewResource(wire.SecretType, "s", "1", []byte("\x0a\x01s"))
		if err != nil {
			t.Fatal(err)
		}
		r.apply(cache.ByName, wire.Update{TypeURL: wire.SecretType, Resources: []*wire.Resource{made}})
		if n := r.journal.Bytes(); n != 0 {
			t.Errorf("after a change of a Secret, the journal has %d bytes, want 0", n)
		}
		r.watch.Unsubscribe(wire.SecretType, names)

		made, err = wire.NewResource(wire.ClusterType, "a", "1", []byte("\x0a\x01a"))
		if err != nil {
			t.Fatal(err)
		}
		made.DoNotCache = true
		r.apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{made}})
		r.is("a", [3]string{"added", "*", "the content may not be kept"})
	})
}

// TestHistory_LongDiff checks the limits of the content and of the diff.
func TestHistory_LongDiff(t *testing.T) {
	long := func(n int) *clusterpb.Cluster {
		c := cluster("a", "")
		for i := range n {
			c.Filters = append(c.Filters, &clusterpb.Filter{Name: fmt.Sprint("filter ", i)})
		}
		return c
	}
	follow(t, Config{Changes: 10, Bytes: 1 << 30}, func(r *rig) {
		r.put(cache.Wildcard, long(1))
		r.put(cache.Wildcard, long(10_000))
		r.put(cache.Wildcard, long(100_000))
		r.is("a", [3]string{"changed", "*", "more than 1 MiB"}, [3]string{"changed", "*", "cut off"}, [3]string{"added", "*", "+- name: filter 0"})
		if d := r.journal.Diff(r.journal.Changes(wire.ClusterType, "a", "", 2)[1]); len(d.Text) > maxDiff || !strings.HasSuffix(d.Text, "\n") {
			t.Errorf("diff of %d bytes ends with %q, want at most maxDiff bytes and whole lines", len(d.Text), d.Text[len(d.Text)-10:])
		}
	})
}
