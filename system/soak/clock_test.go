package soak

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A clock controls the wall clock of the relay process. The zero clock is correct.
type clock struct {
	ahead time.Duration // offset from the clock of the test
	moved bool          // set forward since the last start of the process

	set  *os.File      // takes the offset in seconds, one per line; nil before the first start
	done *bufio.Reader // returns the time of the process after each change, one per line
	ends []*os.File    // the test's ends of the pipes
}

// overlay writes an overlay for go build and returns its file name. In the overlay, each call of time.Now is replaced
// by a call of Now in testdata/setclock.go.
func overlay(t *testing.T) string {
	t.Helper()
	dir, root := t.TempDir(), must(t, filepath.Abs, "../..")
	replace := map[string]string{filepath.Join(root, "system/soak/setclock/setclock.go"): must(t, filepath.Abs, "testdata/setclock.go")}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if base := entry.Name(); name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bench" || base == "relaytest") {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(text, []byte("time.Now")) {
			return err
		}
		text = bytes.ReplaceAll(text, []byte("time.Now"), []byte("setclock.Now"))
		text = bytes.Replace(text, []byte("\nimport "), []byte("\nimport \"github.com/xdstender/tender/system/soak/setclock\"\nimport "), 1)
		text = append(text, "\nvar _ time.Time\n"...) // keeps the import of time used
		replace[name] = certs.WriteFile(t, dir, fmt.Sprintf("%d.go", len(replace)), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	return certs.WriteFile(t, dir, "overlay.json", list)
}

func must(t *testing.T, f func(string) (string, error), arg string) string {
	t.Helper()
	result, err := f(arg)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// pipes creates the pipes that control the clock of a new process. It returns the files that the process inherits,
// and the environment variable with the initial offset.
func (c *clock) pipes() (ends []*os.File, env string, err error) {
	for _, f := range c.ends {
		_ = f.Close() // pipes of the previous process
	}
	reads, set, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	done, writes, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	c.set, c.done, c.ends = set, bufio.NewReader(done), []*os.File{set, done}
	return []*os.File{reads, writes}, fmt.Sprintf("SOAK_CLOCK=%d", c.ahead/time.Second), nil
}

// setClock sets the offset of the process's clock and waits until the process has applied it. A process that does not
// run applies the offset when it starts.
func (p *process) setClock(ahead time.Duration) {
	p.t.Helper()
	p.clock.moved = p.clock.moved || ahead > p.clock.ahead
	p.clock.ahead = ahead
	if !runs(p.ended) {
		return
	}
	if _, err := fmt.Fprintln(p.clock.set, int64(ahead/time.Second)); err != nil {
		return // the process is ending
	}
	line, err := p.clock.done.ReadString('\n')
	if err != nil {
		return
	}
	at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if off := time.Until(time.Unix(at, 0).Add(-ahead)).Abs(); err != nil || off > time.Minute {
		p.t.Errorf("process clock was set %v ahead, but is off by %v, %v", ahead, off, err)
	}
}

// settings are the offsets to which resetClock sets the clock.
var settings = []time.Duration{-23 * time.Hour, -time.Hour, -10 * time.Second, 10 * time.Second, time.Hour, 23 * time.Hour}

// resetClock sets the clock of the process forward and back several times. heal sets it right.
func (w *world) resetClock() (heal func()) {
	set := func(ahead time.Duration) {
		w.process.setClock(ahead)
		w.seen.add("changes of a clock", 1)
		w.timely()
	}
	for range 1 + w.random.IntN(4) {
		set(settings[w.random.IntN(len(settings))])
		w.churn(1 + w.random.IntN(5))
	}
	w.timely()
	return func() { set(0) }
}

// timely checks that the process measures durations with its monotonic clock.
func (w *world) timely() {
	w.t.Helper()
	values, _ := w.process.operator().metrics() // the process may not run
	for series, value := range values {
		lag := strings.HasPrefix(series, "tender_client_lag_seconds")
		if (lag || strings.HasPrefix(series, "tender_view_stale_seconds")) && value < 0 || lag && value > (*soakFor+spare).Seconds() {
			w.t.Errorf("after the clock was set, a relay reports %s %v", series, value)
		}
	}
}

// holdOver makes origins return without their resources, and sets the clock of the process while the relays hold the
// removals back. The clock must not shorten the hold.
func (w *world) holdOver() (heal func()) {
	w.agree("before origins return")
	load := w.unload(w.origins[:2], relaytest.ClusterType, relaytest.RouteType)
	w.heldBack(relaytest.ClusterType, true)
	for _, ahead := range []time.Duration{-time.Hour, 23 * time.Hour} {
		w.process.setClock(ahead)
		w.seen.add("changes of a clock while removals were held back", 1)
		w.churnEndpoints(3)
		w.heldBack(relaytest.ClusterType, true)
	}
	load()
	return func() { w.process.setClock(0) }
}

// freezeFor is a freeze that lasts longer than any offset to which freezeOver sets the clock.
var freezeFor = admin.FreezeScope{Why: admin.Why{Reason: "the soak"}, ForSeconds: (5 * time.Hour).Seconds()}
