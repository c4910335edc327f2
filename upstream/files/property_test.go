package files

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TestB15_RandomDirectories compares random histories of a directory, with commands of operators, to a model. It is the
// counterpart of TestB15_RandomHistories for files. Readers see the content of the files, and resources whose removal
// is pending or dropped. A resource may be removed only if no file contains it, and if one of these is true:
//
//   - an operator has passed the removal
//   - its file still exists
//   - the hold of the removal has ended
//   - few resources are missing
//
// Of too many additions, readers see none before their hold has ended or an operator has passed it (B.51).
func TestB15_RandomDirectories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) dirStep {
			return dirStep{
				what: rapid.SampledFrom([]string{
					"write", "write", "drop", "drop", "delete", "delete", "delete", "break", "delete all", "write all",
					"let pass", "keep", "let dropped pass", "freeze", "thaw", "pass", "pass", "hold",
				}).Draw(t, "what"),
				file: rapid.IntRange(0, 2).Draw(t, "file"),
				n:    rapid.IntRange(0, 5).Draw(t, "n"),
			}
		}), 0, 25).Draw(rt, "steps")
		var failures []string
		synctest.Test(t, func(t *testing.T) {
			m := &dirModel{t: t, dir: t.TempDir(), ever: make(map[string]bool), passed: make(map[string]bool)}
			m.run(steps)
			failures = m.failures
		})
		if len(failures) > 0 {
			rt.Fatalf("%s", strings.Join(failures, "\n"))
		}
	})
}

// TestMain runs each property with 15 random inputs, times -rounds.
func TestMain(m *testing.M) { check.MainOfRapid(m, 15) }

// A dirStep is one action; see dirModel.step.
type dirStep struct {
	what    string
	file, n int // index of the file, and number of resources that "drop" omits
}

// A dirModel is a directory of three files, and the expected state of its view. The names of the resources in a file
// begin with the index of the file.
type dirModel struct {
	t        *testing.T
	failures []string
	dir      string
	files    *Origin
	control  *upstream.Control
	view     *cache.View

	there    [3]bool           // whether the file exists
	good     [3]map[string]int // last good content of the file, as versions by name; nil if it does not exist
	versions int               // last version that was written
	ever     map[string]bool   // all resources that were ever written, as clusterText

	seen   map[string]string         // members at the last look, by name
	holds  map[string]reconcile.Hold // holds at the last look, by name
	passed map[string]bool           // names that were passed in this step
	frozen bool
	thawed bool // the view was thawed in this step
}

// errorf records a failure. The bubble must end before the test may fail.
func (m *dirModel) errorf(format string, args ...any) {
	m.failures = append(m.failures, fmt.Sprintf(format, args...))
}

// reasonIf returns the reason of dropped changes if dropped is set, and otherwise none.
func reasonIf(dropped bool) reconcile.Reason {
	if dropped {
		return reconcile.Dropped
	}
	return ""
}

// held returns the number of removals that are held.
func (m *dirModel) held() int { return heldRemovals(m.files.cfg.counts) }

// heldRemovals returns the number of removals that are held.
func heldRemovals(c *reconcile.Counts) int {
	pending := c.Pending()
	return pending[reconcile.SecondLook] + pending[reconcile.LargeRemoval]
}

// run performs the steps until one fails. At the end, it thaws the view and checks that all holds end.
func (m *dirModel) run(steps []dirStep) {
	for file := range m.good {
		m.write(file, 0)
	}
	files := check.Must(Open(Config{Dir: m.dir, disableEvents: true, Growth: growthLimit}))
	view, w := cache.New(cache.Config{})
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan struct{})
	m.files, m.view, m.control = files, view, upstream.NewControl(false, nil)
	go func() { // awaited below
		defer close(ended)
		files.Sync(ctx, pending.New(w, nil), m.control)
	}()
	view.Watch().SubscribeAll(wire.ClusterType)
	m.pass(time.Second)
	for i, s := range steps {
		if m.step(s); len(m.failures) > 0 {
			m.errorf("in step %d of %v", i, steps)
			break
		}
	}
	if len(m.failures) == 0 {
		m.step(dirStep{what: "thaw"})
		m.pass(25 * time.Minute)
		for name, h := range m.holds {
			if h.Reason != reconcile.Dropped {
				m.errorf("%s is still held at the end: %+v", name, h)
			}
		}
	}
	cancel()
	<-ended
}

// write writes a file with new versions of its resources. It omits the first resources, as many as without says.
func (m *dirModel) write(file, without int) {
	m.versions++
	m.there[file], m.good[file] = true, make(map[string]int)
	var content []string
	for i := without; i < 6; i++ {
		name := fmt.Sprintf("%d%d", file, i)
		m.good[file][name] = m.versions
		content = append(content, fmt.Sprintf("%s=%d", name, m.versions))
		m.ever[content[len(content)-1]] = true
	}
	writeFiles(m.t, m.dir, m.file(file), clusters(content...))
}

// file returns the name of a file.
func (m *dirModel) file(i int) string { return fmt.Sprintf("%d.yaml", i) }

// remove deletes a file if it exists.
func (m *dirModel) remove(file int) {
	if m.there[file] {
		check.OK(m.t, os.Remove(filepath.Join(m.dir, m.file(file))))
	}
	m.there[file], m.good[file] = false, nil
}

// step performs an action and checks the view.
func (m *dirModel) step(s dirStep) {
	defer clear(m.passed)
	ctx := m.t.Context()
	switch s.what {
	case "write":
		m.write(s.file, 0)
	case "drop":
		m.write(s.file, s.n)
	case "write all":
		for file := range m.good {
			m.write(file, 0)
		}
	case "delete":
		m.remove(s.file)
	case "delete all":
		for file := range m.good {
			m.remove(file)
		}
	case "break":
		if m.there[s.file] {
			writeFiles(m.t, m.dir, m.file(s.file), "resources: [")
		}
	case "let pass", "let dropped pass":
		for _, h := range m.files.Operate(ctx, reconcile.Command{Do: reconcile.Pass, Reason: reasonIf(s.what != "let pass")}) {
			for _, name := range h.Names {
				m.passed[name] = true
			}
		}
	case "keep":
		m.files.Operate(ctx, reconcile.Command{Do: reconcile.Drop})
	case "freeze":
		m.control.Freeze(ctx)
		m.frozen = true
	case "thaw":
		want := m.afterThaw()
		m.control.Thaw(ctx)
		m.frozen, m.thawed = false, m.frozen
		synctest.Wait()
		if seen := m.members(); !maps.Equal(seen, want) {
			m.errorf("after the thaw, readers see %v, want %v by the changes shown before", seen, want)
		}
	case "hold":
		m.pass(9 * time.Minute)
	}
	m.pass(11 * time.Second) // the directory is read every 10s
}

// pass waits for a duration, and checks the view every 11s.
func (m *dirModel) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && len(m.failures) == 0; {
		time.Sleep(min(11*time.Second, time.Until(end)))
		synctest.Wait()
		m.look()
		synctest.Wait() // the directory is read after each call
	}
}

// found returns the last good content of all files: versions by name.
func (m *dirModel) found() map[string]int {
	found := make(map[string]int)
	for _, of := range m.good {
		maps.Copy(found, of)
	}
	return found
}

// members returns the resources that clients receive, by name.
func (m *dirModel) members() map[string]string {
	seen := make(map[string]string)
	for e := range m.view.Generation().Type(wire.ClusterType).Wildcard.Since(0) {
		if e.Present() {
			seen[e.Name.String()] = clusterText(e)
		}
	}
	return seen
}

// afterThaw returns the members after a thaw, computed from the changes that Thawing returns to operators.
func (m *dirModel) afterThaw() map[string]string {
	seen := m.members()
	for change := range strings.FieldsSeq(thawing(m.t, m.files, m.control)) {
		name, _, _ := strings.Cut(change[1:], "=")
		if seen[name] = change[1:]; change[0] == '-' {
			delete(seen, name)
		}
	}
	return seen
}

// growthLimit is what may grow in one change.
var growthLimit = reconcile.GrowthLimit{Factor: 2, Names: 6, Bytes: 1 << 20}

// compareAdditions checks that additions since the last look are few, or had waited.
func (m *dirModel) compareAdditions(seen map[string]string) {
	added, waited := 0, false
	for name := range seen {
		if m.seen[name] == "" {
			h := m.holds[name]
			added, waited = added+1, waited || h.Kind == reconcile.Addition && !h.Until.After(time.Now()) || m.passed[name]
		}
	}
	if n := len(m.seen); n > 0 && !m.thawed && added >= growthLimit.Names && n+added > growthLimit.Factor*n && !waited {
		m.errorf("%d resources were added to %d at once without a hold", added, n)
	}
}

// look checks the holds and the members of the view.
func (m *dirModel) look() {
	seen := m.members()
	holds, held := make(map[string]reconcile.Hold), 0
	for _, h := range m.files.Operate(m.t.Context(), reconcile.Command{}) {
		for _, name := range h.Names {
			holds[name] = h
		}
		switch {
		case h.Reason == reconcile.Growth && h.Until.After(time.Now().Add(-11*time.Second)), h.Reason == reconcile.Dropped:
		case h.Undecided(), h.Since.IsZero(), !h.Until.After(time.Now().Add(-11 * time.Second)):
			m.errorf("pending removals of %v without a start or with an expired deadline: %+v", h.Names, h)
		default:
			held += len(h.Names)
		}
	}
	if n := m.held(); n != held {
		m.errorf("Held returns %d, but the holds contain %d pending removals", n, held)
	}
	for name, content := range seen {
		if !m.ever[content] {
			m.errorf("%s has content that was in no file: %s", name, content)
		}
	}
	if m.frozen {
		if m.seen != nil && !maps.Equal(seen, m.seen) {
			m.errorf("the frozen view changed from %v to %v", m.seen, seen)
		}
		return
	}
	m.compare(seen, holds)
	m.seen, m.holds, m.thawed = seen, holds, false
}

// compare checks that the members have the content of the files, and that each removal since the last look is allowed.
func (m *dirModel) compare(seen map[string]string, holds map[string]reconcile.Hold) {
	found := m.found()
	for name, version := range found {
		waits := seen[name] == "" && holds[name].Kind == reconcile.Addition
		if want := fmt.Sprintf("%s=%d", name, version); seen[name] != want && !waits {
			m.errorf("readers see %q, want %s as in the file", seen[name], want)
		}
	}
	for name := range seen {
		if _, is := holds[name]; found[name] == 0 && !is {
			m.errorf("readers see %s, which is in no file and not held", name)
		}
	}
	m.compareAdditions(seen)
	judged := 0
	for name := range m.seen {
		if _, there := seen[name]; there || m.passed[name] || m.thawed {
			continue
		}
		h, was := m.holds[name]
		replaced := h.Reason == reconcile.Growth && len(found) > 0 // it ends with the additions that may replace its resource
		switch {
		case was && !replaced && (h.Reason == reconcile.Dropped || h.Until.After(time.Now())):
			m.errorf("%s was removed although it is held: %+v", name, h)
		case !was && !m.there[name[0]-'0']:
			judged++
		}
	}
	if had := len(m.seen); judged > 0 && judged == had || 2*judged > had || judged > 0 && !slices.Contains(m.there[:], true) {
		m.errorf("%d of %d resources were removed at once, with their files, without a hold", judged, had)
	}
}
