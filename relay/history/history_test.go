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

// A rig is a view that a journal follows.
type rig struct {
	*testing.T
	journal *Journal
	view    *cache.View
	writer  *cache.Writer
	watch   *cache.Watch
}

// follow runs test in a bubble, with a view whose clients want all clusters, and by name the cluster
// named.
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
		go func() { // awaited below
			defer close(ended)
			f.Run(ctx)
		}()
		synctest.Wait()
		test(r)
		cancel()
		<-ended
		if n := r.journal.Bytes(); n != 0 {
			t.Errorf("of a view that is gone, %d bytes are remembered", n)
		}
		r.watch.UnsubscribeAll(wc)
		r.watch.Unsubscribe(wire.ClusterType, names)
		r.watch.Close()
	})
}

// put has the origin say clusters, and lets a second go by.
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

func (r *rig) remove(kind cache.Kind, names ...string) {
	r.apply(kind, wire.Update{TypeURL: wire.ClusterType, Removed: names})
}

func (r *rig) apply(kind cache.Kind, u wire.Update) {
	r.writer.Apply(kind, u)
	r.writer.SetPhase(wire.ClusterType, cache.Confirmed)
	time.Sleep(time.Second) // in the bubble
	synctest.Wait()
}

// is holds what is remembered of a cluster: for each change, newest first, its kind, the way it
// was asked for and a text that the diff, or else its note, has.
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

func cluster(name, stat string) *clusterpb.Cluster {
	return &clusterpb.Cluster{Name: name, AltStatName: stat}
}

// A resource that comes, changes, stays and goes is so remembered, by wildcard and by name apart.
func TestHistory(t *testing.T) {
	follow(t, Config{Changes: 10, Bytes: 1 << 20}, func(r *rig) {
		began := time.Now()
		r.put(cache.Wildcard, cluster("a", "one"), cluster("b", "one"))
		r.put(cache.Wildcard, cluster("a", "two"))
		r.put(cache.Wildcard, cluster("a", "two")) // again
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
			t.Errorf("of the last 3 changes of a the first came at %v, want a second after %v", c[len(c)-1].At, began)
		}
		if c := r.journal.Changes(wire.ClusterType, "a", "another group", 3); len(c) != 0 {
			t.Errorf("in another group there were changes: %v", c)
		}
	})
}

// What changes faster than a follower looks is one change, and what changes back is none.
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
			t.Errorf("50 changes at once were %d, beside the first: want one, or two if it was looked at between", n-1)
		}
		if c := r.journal.Changes(wire.ClusterType, "a", "", 1); !strings.Contains(r.journal.Diff(c[0]).Text, `+alt_stat_name: "9"`) {
			t.Errorf("the newest change has not what there is: %+v", r.journal.Diff(c[0]))
		}
	})
}

// The oldest changes are forgotten: of a resource beyond so many, of all beyond so many bytes.
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
				t.Fatalf("%d bytes are remembered, want at most %d", n, most)
			}
		}
		changes := r.journal.Changes(wire.ClusterType, "a", "", 100)
		oldest := changes[len(changes)-1]
		if len(changes) < 2 || len(changes) > 8 || oldest.Before != nil || r.journal.Diff(oldest).Note != "what there was before is remembered no more" {
			t.Errorf("of a %d changes are remembered, the oldest as %+v: want a few, and nothing of what was before", len(changes), r.journal.Diff(oldest))
		}
		r.is("b0")
		r.is("b19", [3]string{"added", "*", "+name: b19"})
	})
	follow(t, Config{Changes: 100, Bytes: 100}, func(r *rig) { // not even one
		r.put(cache.Wildcard, cluster("a", "a"))
		r.is("a")
	})
}

// B.36: a key that is inline in an Any is not shown; that nothing else differs is.
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
				t.Errorf("a key is shown: %s", d.Text)
			}
		}
	})
}

// B.36, R125: nothing is remembered of a Secret, and of what may not be kept no content.
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
			t.Errorf("of a Secret %d bytes are remembered", n)
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

// A diff is bounded, however much differs.
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
			t.Errorf("a diff of %d bytes that ends with %q", len(d.Text), d.Text[len(d.Text)-10:])
		}
	})
}
