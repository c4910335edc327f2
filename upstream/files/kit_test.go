package files

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// A fileLog is a log handler that passes records to the test.
type fileLog struct {
	records chan fileRecord
	attrs   []slog.Attr
}

// A fileRecord is a log record, with its attributes as text.
type fileRecord struct {
	level slog.Level
	msg   string
	attrs map[string]string
}

// newFileLog returns a handler for at most 1,000 unread records. Further records block the logger.
func newFileLog() *fileLog { return &fileLog{records: make(chan fileRecord, 1000)} }

// Enabled implements slog.Handler.
func (l *fileLog) Enabled(context.Context, slog.Level) bool { return true }

// WithGroup implements slog.Handler. It ignores the group.
func (l *fileLog) WithGroup(string) slog.Handler { return l }

// WithAttrs implements slog.Handler. Both handlers pass their records to the same channel.
func (l *fileLog) WithAttrs(a []slog.Attr) slog.Handler {
	return &fileLog{l.records, slices.Concat(l.attrs, a)}
}

// Handle implements slog.Handler.
func (l *fileLog) Handle(_ context.Context, r slog.Record) error {
	rec := fileRecord{r.Level, r.Message, make(map[string]string)}
	r.Attrs(func(a slog.Attr) bool { rec.attrs[a.Key] = a.Value.String(); return true })
	l.records <- rec
	return nil
}

// await returns the next record of a level or above that contains a text, and drops all records before it.
func (l *fileLog) await(t *testing.T, level slog.Level, part string) fileRecord {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case r := <-l.records:
			if r.level >= level && strings.Contains(r.msg, part) {
				return r
			}
		case <-deadline:
			t.Fatalf("no log record with %q at level %v or above within 20s", part, level)
		}
	}
}

// logged returns the unread records of a level or above.
func (l *fileLog) logged(level slog.Level) (got []string) {
	for {
		select {
		case r := <-l.records:
			if r.level >= level {
				got = append(got, r.msg+" "+r.attrs["err"])
			}
		default:
			return got
		}
	}
}

// A mirrored is a directory and a view that Origin.Sync keeps in sync with it.
type mirrored struct {
	t     *testing.T
	dir   string
	log   *fileLog
	files *Origin
	view  *cache.View
	watch *cache.Watch
	stop  func() // ends Sync and waits for it
}

// mirrorDir starts to sync a view with a directory. A client of the view subscribes to clusters by wildcard.
func mirrorDir(t *testing.T, cfg Config) *mirrored {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	m := &mirrored{t: t, dir: cfg.Dir, log: newFileLog()}
	cfg.Logger = slog.New(m.log)
	files := check.Must(Open(cfg))
	m.files = files
	m.view, m.stop = startMirror(t, files)
	m.watch = m.view.Watch()
	m.watch.SubscribeAll(wire.ClusterType)
	return m
}

// startMirror starts to sync a new view. The function that it returns ends the sync and waits for it.
func startMirror(t *testing.T, files *Origin) (*cache.View, func()) {
	view, w := cache.New(cache.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { files.Sync(ctx, pending.New(w, nil), upstream.NewControl(false, nil)) })
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return view, stop
}

// until waits until the view contains exactly the given clusters; see clustersOf for the format.
func (m *mirrored) until(want string) {
	m.t.Helper()
	awaitHead(m.t, m.view, m.watch, func(g *cache.Generation) string { return clustersOf(g) }, want)
}

// awaitHead waits until the state of the view's newest generation is want.
func awaitHead(t *testing.T, view *cache.View, watch *cache.Watch, state func(*cache.Generation) string, want string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		got := state(view.Generation())
		if got == want {
			return
		}
		select {
		case <-watch.C:
		case <-deadline:
			t.Fatalf("after 20s, the view contains %q, want %q", got, want)
		}
	}
}

// clustersOf returns the members as name=alt_stat_name, sorted by name, and the phase if the set may be incomplete.
func clustersOf(g *cache.Generation) string {
	var got []string
	t := g.Type(wire.ClusterType)
	for e := range t.Wildcard.Since(0) {
		if e.Present() {
			got = append(got, clusterText(e))
		}
	}
	slices.Sort(got)
	if t.Phase != cache.Confirmed {
		got = append(got, t.Phase.String())
	}
	return strings.Join(got, " ")
}

// clusterText returns a cluster as name=alt_stat_name, or as name if that is empty.
func clusterText(e *cache.Entry) string {
	var c clusterpb.Cluster
	if err := proto.Unmarshal(e.Resource.Value(), &c); err != nil {
		return err.Error()
	}
	if c.AltStatName == "" {
		return c.Name
	}
	return c.Name + "=" + c.AltStatName
}

// clusters returns a YAML file of clusters given as name or name=alt_stat_name.
func clusters(names ...string) string {
	var b strings.Builder
	b.WriteString("resources:\n")
	for _, text := range names {
		name, alt, _ := strings.Cut(text, "=")
		fmt.Fprintf(&b, "- {'@type': %s, name: '%s', alt_stat_name: '%s'}\n", wire.ClusterType, name, alt)
	}
	return b.String()
}

// many returns the names c00, c01 and so on.
func many(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("c%02d", i))
	}
	return names
}

// writeFiles writes files atomically, and returns dir.
func writeFiles(t *testing.T, dir string, nameAndContent ...string) string {
	t.Helper()
	for i := 0; i < len(nameAndContent); i += 2 {
		name, hidden := filepath.Join(dir, nameAndContent[i]), filepath.Join(dir, ".writing")
		check.OK(t, os.WriteFile(hidden, []byte(nameAndContent[i+1]), 0o600), os.Rename(hidden, name))
	}
	return dir
}
