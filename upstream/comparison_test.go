package upstream

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
)

var epoch = time.Unix(1000, 0)

// comparing returns a view sync without a loop. Its view has one cluster from the server "one" at the first target.
func comparing(t *testing.T, log slog.Handler, version string) *viewSync {
	t.Helper()
	session := check.Must(New(Config{Targets: []string{"first:1", "second:1"}}))
	t.Cleanup(func() { _ = session.Close() })
	_, w := cache.New(cache.Config{})
	v := session.newViewSync(t.Context(), nil, pending.New(w, nil), slog.New(log), nil)
	v.sub(v.trunk, wire.ClusterType)
	put(v, cluster(version))
	w.SetTarget("first:1")
	v.identifier = "one"
	return v
}

// put adds a cluster to the view.
func put(v *viewSync, r *wire.Resource) {
	v.w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{r}})
}

// cluster returns a cluster with a version. If the version starts with "hash", the hash of the content replaces it.
func cluster(version string) *wire.Resource {
	value := []byte{0x0a, byte(len(version))}
	value = append(value, version...)
	name := version
	if strings.HasPrefix(version, "hash") {
		version = fmt.Sprintf("%x", sha256.Sum256(value))
	}
	return check.Must(wire.NewResource(wire.ClusterType, name, version, value))
}

// openStream records that a stream has opened. The stream reports the cached versions if versions is set.
func openStream(v *viewSync, r role, versions bool, now time.Time) {
	v.scheduleComparison(&adsStream{stream: &stream{role: r}, sentVersions: versions}, now)
}

// TestH07_ServerAfterResume: the server that answers after a resume decides whether content is compared, and which
// target a snapshot names.
func TestH07_ServerAfterResume(t *testing.T) {
	due := epoch.Add(comparisonDelay)
	again := func(v *viewSync, err error) {
		v.comparison.streamEnded(err)
		openStream(v, main, true, epoch)
	}
	answers := func(identifiers ...string) func(v *viewSync) {
		return func(v *viewSync) {
			for _, identifier := range identifiers {
				v.noteServer(identifier)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		do     func(v *viewSync) // after the stream was resumed
		due    time.Time
		target string
		logged int
	}{
		{"no response", answers(), due, "first:1", 0},
		{"server without an identifier", answers(""), due, "first:1", 0},
		{"same server", answers("one"), time.Time{}, "first:1", 0},
		{"other server", answers("two"), due, "", 1},
		{"other server responds twice", answers("two", "two"), due, "", 1},
		{"other server, then the same server", answers("two", "one"), due, "", 2},
		{"same server after one without an identifier", func(v *viewSync) { answers("one", "")(v); again(v, io.EOF); answers("one")(v) }, time.Time{}, "first:1", 0},
		{"first server with an identifier", func(v *viewSync) { v.identifier = ""; again(v, io.EOF); answers("two")(v) }, due, "", 0},
		{"other server, then the auxiliary stream opens", func(v *viewSync) {
			answers("two")(v)
			openStream(v, auxiliary, true, epoch.Add(time.Second))
			answers("two")(v)
		}, due, "", 1},
		{"other server, only the auxiliary stream reports versions", func(v *viewSync) {
			v.comparison.streamEnded(io.EOF)
			openStream(v, main, false, epoch)
			answers("two")(v)
			openStream(v, auxiliary, true, epoch)
			answers("two")(v)
		}, due, "", 1},
		{"other server, then the relay reopens the stream", func(v *viewSync) { answers("two")(v); again(v, errResync); answers("two")(v) }, due, "", 1},
		{"other server before the stream was lost", func(v *viewSync) { answers("two")(v); again(v, io.EOF); answers("two")(v) }, due, "", 1},
		{"same server, then the relay reopens the stream", func(v *viewSync) { answers("one")(v); again(v, errResync) }, time.Time{}, "first:1", 0},
		{"same server, some resources from another target", func(v *viewSync) { v.w.SetTarget("second:1"); again(v, io.EOF); answers("one")(v) }, due, "", 0},
		{"other server, no stream reports versions", func(v *viewSync) {
			v.comparison.streamEnded(io.EOF)
			openStream(v, main, false, epoch)
			answers("two")(v)
		}, time.Time{}, "first:1", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log strings.Builder
			v := comparing(t, slog.NewTextHandler(&log, nil), "1")
			again(v, io.EOF)
			tt.do(v)
			if got := v.comparison.dueAt; got != tt.due {
				t.Errorf("comparison due at %v, want %v", got, tt.due)
			}
			check.Equal(t, "target of the view", v.w.Source().Target, tt.target)
			check.Equal(t, "log lines about another instance", strings.Count(log.String(), "another origin instance"), tt.logged)
		})
	}
}

// TestH07_VersionsAreHashes: no comparison is needed if the reported versions are content hashes. At most 100 resources
// per set are checked.
func TestH07_VersionsAreHashes(t *testing.T) {
	compared := func(v *viewSync) bool {
		v.comparison.streamEnded(io.EOF)
		openStream(v, main, true, epoch)
		return !v.comparison.dueAt.IsZero()
	}
	v := comparing(t, slog.DiscardHandler, "hash")
	dropped := cluster("dropped")
	dropped.DoNotCache = true
	put(v, dropped.DropContent())
	if compared(v) {
		t.Error("comparison scheduled although the version is a content hash")
	}
	put(v, cluster("1"))
	if !compared(v) {
		t.Error("no comparison scheduled although a version is not a content hash")
	}
	v = comparing(t, slog.DiscardHandler, "hash")
	for i := range hashSampleSize {
		put(v, cluster(fmt.Sprint("hash", i)))
	}
	put(v, cluster("1"))
	if compared(v) {
		t.Error("comparison scheduled although the first 100 versions are content hashes")
	}
}

// TestH07_ComparisonEnds: a comparison ends when the origin has answered and sends nothing more, or after 10s.
func TestH07_ComparisonEnds(t *testing.T) {
	line := func(open, responded bool) adsStream {
		return adsStream{stream: &stream{role: main, cancel: func(error) {}, responded: responded}, open: open}
	}
	last := epoch.Add(comparisonMax)
	for _, tt := range []struct {
		name  string
		line  adsStream     // after the request for all content
		heard time.Duration // time of the last response, after epoch
		ends  time.Time
	}{
		{"no stream", line(false, true), time.Second, last},
		{"no response", line(true, false), -time.Second, last},
		{"one response", line(true, true), time.Second, epoch.Add(time.Second + 150*time.Millisecond)},
		{"endless responses", line(true, true), comparisonMax - time.Millisecond, last},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := comparing(t, slog.DiscardHandler, "1")
			v.comparison.dueAt = epoch
			v.trunk.byRole[main] = line(false, false)
			if next := v.compare(epoch); !next.IsZero() || v.comparison.running {
				t.Errorf("without a stream: next call at %v, running %t; want none and false", next, v.comparison.running)
			}
			v.trunk.byRole[main] = line(true, false)
			if next := v.compare(epoch.Add(-1)); next != epoch || v.comparison.running {
				t.Errorf("before it is due: next call at %v, want %v; running %t", next, epoch, v.comparison.running)
			}
			if next := v.compare(epoch); next != last || v.trunk.byRole[main].open {
				t.Errorf("when it is due: next call at %v, want %v; resync requested: %t", next, last, !v.trunk.byRole[main].open)
			}
			v.trunk.byRole[main], v.comparison.lastResponse = tt.line, epoch.Add(tt.heard)
			if next := v.compare(tt.ends.Add(-1)); next != tt.ends || len(v.session.comparisonSlot) != 1 {
				t.Errorf("before the end: next call at %v, want %v; %d views compare, want 1", next, tt.ends, len(v.session.comparisonSlot))
			}
			if next := v.compare(tt.ends); !next.IsZero() || len(v.session.comparisonSlot) != 0 {
				t.Errorf("at the end: next call at %v, want none; %d views compare, want 0", next, len(v.session.comparisonSlot))
			}
		})
	}
}
