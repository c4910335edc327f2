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

// A clock is the wall clock of the process, which starts with one that is right.
type clock struct {
	ahead time.Duration // of the clock of the test
	moved bool          // it was set forward since the process was started last

	set  *os.File // written to: how far it is ahead; nil before the process was started
	done *bufio.Reader
	ends []*os.File // of pipes, here
}

// overlay writes the files that go build is to read in the place of those of the program, and returns the file that lists them: each
// call of time.Now becomes one of testdata/setclock.go.
func overlay(t *testing.T) string {
	t.Helper()
	dir, root := t.TempDir(), must(t, filepath.Abs, "../..")
	replace := map[string]string{filepath.Join(root, "relay/soak/setclock/setclock.go"): must(t, filepath.Abs, "testdata/setclock.go")}
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
		text = bytes.Replace(text, []byte("\nimport "), []byte("\nimport \"github.com/xdstender/tender/relay/soak/setclock\"\nimport "), 1)
		text = append(text, "\nvar _ time.Time\n"...) // the import may have no other use
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

// pipes makes what a process that is started is told of its clock by, and returns its ends of them.
func (c *clock) pipes() (ends []*os.File, env string, err error) {
	for _, f := range c.ends {
		_ = f.Close() // of a process that has ended
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

// setClock sets the process's clock so far ahead, and returns once it is. If the process does not run, it starts with that.
func (p *process) setClock(ahead time.Duration) {
	p.t.Helper()
	p.clock.moved = p.clock.moved || ahead > p.clock.ahead
	p.clock.ahead = ahead
	if !runs(p.ended) {
		return
	}
	if _, err := fmt.Fprintln(p.clock.set, int64(ahead/time.Second)); err != nil {
		return // it ends
	}
	line, err := p.clock.done.ReadString('\n')
	if err != nil {
		return
	}
	at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if off := time.Until(time.Unix(at, 0).Add(-ahead)).Abs(); err != nil || off > time.Minute {
		p.t.Errorf("the process's clock was set %v ahead, and is %v off, %v", ahead, off, err)
	}
}

// settings are how far the process's clock may be set ahead.
var settings = []time.Duration{-23 * time.Hour, -time.Hour, -10 * time.Second, 10 * time.Second, time.Hour, 23 * time.Hour}

// resetClock sets the clock of the process back and forth, until it is right again.
func (w *world) resetClock() (heal func()) {
	set := func(ahead time.Duration) {
		w.process.setClock(ahead)
		w.seen.add("times that a clock was set", 1)
		w.timely()
	}
	for range 1 + w.random.IntN(4) {
		set(settings[w.random.IntN(len(settings))])
		w.churn(1 + w.random.IntN(5))
	}
	w.timely()
	return func() { set(0) }
}

// timely looks whether the process counts what lasts by its monotonic clock.
func (w *world) timely() {
	w.t.Helper()
	values, _ := w.process.operator().metrics() // it may not run
	for series, value := range values {
		lag := strings.HasPrefix(series, "tender_client_lag_seconds")
		if (lag || strings.HasPrefix(series, "tender_view_stale_seconds")) && value < 0 || lag && value > (*soakFor+spare).Seconds() {
			w.t.Errorf("the clock was set, and a relay says %s %v", series, value)
		}
	}
}

// holdOver has origins return without what there is, and the clock of the process set while it holds that back: the time of
// a hold is not over sooner for it.
func (w *world) holdOver() (heal func()) {
	w.agree("before origins return")
	load := w.unload(w.origins[:2], relaytest.ClusterType, relaytest.RouteType)
	w.heldBack(relaytest.ClusterType, true)
	for _, ahead := range []time.Duration{-time.Hour, 23 * time.Hour} {
		w.process.setClock(ahead)
		w.seen.add("times that a clock was set while removals were held back", 1)
		w.churnEndpoints(3)
		w.heldBack(relaytest.ClusterType, true)
	}
	load()
	return func() { w.process.setClock(0) }
}

// freezeFor is a freeze of the soak, which lasts longer than clocks are set ahead while it does.
var freezeFor = admin.FreezeScope{Why: admin.Why{Reason: "the soak"}, ForSeconds: (5 * time.Hour).Seconds()}
