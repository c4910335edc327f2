package upstream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TestH04_RandomReports starts with an empty view. Its origin has loaded a random part, and random clients report
// resources. It checks repeatedly, for each client that connected before the set was confirmed:
//
//  1. The client receives no removal of a resource that the origin has, and none at all before the set is confirmed.
//  2. If the confirmed set lacks few of the resources that the client reported, it receives their removal at once,
//     whatever others reported.
//  3. If the set lacks many, the client receives no removal before the hold expires, unless an operator passes it or
//     the origin removes it.
//  4. What is withheld from a client is in the holds with a deadline, or was dropped.
//  5. After an hour without events only dropped removals are withheld. They are dropped when their clients have
//     disconnected.
func TestH04_RandomReports(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		loaded := rapid.SliceOfNDistinct(rapid.IntRange(0, 19), 0, 20, rapid.ID).Draw(rt, "loaded")
		reports := rapid.SliceOfN(rapid.SliceOfNDistinct(rapid.IntRange(0, 29), 1, 30, rapid.ID), 1, 4).Draw(rt, "reports")
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"load", "remove", "restart", "pass", "drop", "leave", "second", "minute", "minutes"}), 0, 12).Draw(rt, "steps")
		numbers := rapid.SliceOfN(rapid.IntRange(0, 29), 12, 12).Draw(rt, "numbers")
		var failures []string
		synctest.Test(t, func(t *testing.T) {
			w := &world{TB: t}
			defer func() { failures = w.failures }()
			runReports(w, loaded, reports, steps, numbers)
		})
		if len(failures) > 0 {
			rt.Fatalf("%s", strings.Join(failures, "\n"))
		}
	})
}

// A reporter is a client that reports its resources.
type reporter struct {
	names  []string
	report *cache.Report
	large  bool // the confirmed set lacked so much of names that the removals are held
	left   bool // the client has disconnected
}

// A reportsRun is one run of TestH04_RandomReports.
type reportsRun struct {
	*world
	*rig
	has, gone map[string]bool // resources of the origin, and those that it removed or an operator passed
	clients   []*reporter
	confirmed time.Time // when the set was confirmed
}

// runReports runs the test with the numbers of loaded resources, the numbers in each report, and the steps.
func runReports(w *world, loaded []int, reports [][]int, steps []string, numbers []int) {
	defer func() {
		if r := recover(); r != nil && r != any(errStop) {
			panic(r)
		}
	}()
	o := relaytest.NewOrigin(w, relaytest.OriginOptions{Memory: true})
	m := &reportsRun{world: w, has: make(map[string]bool), gone: make(map[string]bool)}
	putAll := func(numbers []int) {
		o.Apply(func(tx *relaytest.Tx) {
			for _, n := range numbers {
				putIn(tx, clusters, fmt.Sprintf("n%02d@1", n))
				m.has[fmt.Sprintf("n%02d", n)] = true
			}
		})
	}
	putAll(loaded)
	m.rig = viewSync(w, o, upstream.Config{})
	for _, held := range reports {
		c := &reporter{}
		for _, n := range held {
			c.names = append(c.names, fmt.Sprintf("n%02d", n))
		}
		c.report = m.watch.Report(clusters, cache.Wildcard, c.names, len(c.names))
		m.clients = append(m.clients, c)
	}
	m.watch.SubscribeAll(clusters)
	for m.view.Generation().Type(clusters).Phase < cache.Confirmed {
		m.check()
		m.pass(time.Second)
	}
	m.confirmed = time.Now()
	for _, c := range m.clients {
		lacking := slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return m.has[name] })
		c.large = cache.LargeRemoval(clusters, len(lacking), len(c.names), 0)
	}
	m.check()
	for i, step := range steps {
		m.step(step, numbers[i], putAll)
		m.check()
	}
	m.end()
	m.stop()
}

// step performs one step. n selects a resource or a client.
func (m *reportsRun) step(step string, n int, load func([]int)) {
	name := fmt.Sprintf("n%02d", n)
	switch step {
	case "load":
		load([]int{n})
	case "remove": // on the established stream
		m.Apply(removing(clusters, name))
		m.gone[name] = true
		delete(m.has, name)
	case "restart":
		m.Restart()
	case "pass":
		for _, h := range m.control.Operate(m.Context(), reconcile.Command{Do: reconcile.Pass}) {
			for _, name := range h.Names {
				m.gone[name] = true
			}
		}
	case "drop":
		m.control.Operate(m.Context(), reconcile.Command{Do: reconcile.Drop})
	case "leave":
		c := m.clients[n%len(m.clients)]
		if !c.left {
			c.report.Close()
		}
		c.left = true
	case "second":
		m.pass(time.Second)
	case "minute":
		m.pass(time.Minute)
	case "minutes":
		m.pass(8 * time.Minute)
	}
	m.pass(2 * time.Second)
}

// check checks the removals that each client receives.
func (m *reportsRun) check() {
	held := make(map[string]bool)
	for _, h := range m.reported() {
		for _, name := range h.Names {
			held[name] = held[name] || h.Reason == reconcile.Dropped || !h.Until.IsZero() || time.Since(m.confirmed) > 9*time.Minute
		}
	}
	for _, c := range m.clients {
		if c.left {
			continue
		}
		lacking := slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return m.has[name] })
		if len(lacking) == 0 {
			continue
		}
		removable := c.report.Removable(lacking)
		if m.confirmed.IsZero() {
			if len(removable) > 0 {
				m.Errorf("client received removals %q before the set was confirmed", removable)
			}
			continue
		}
		for _, name := range lacking {
			switch is := slices.Contains(removable, name); {
			case !c.large && !is:
				m.Errorf("removal of %s is withheld from a client that loses few of %q", name, c.names)
			case c.large && is && !m.gone[name] && time.Since(m.confirmed) < 10*time.Minute:
				m.Errorf("client with a large loss received the removal of %s after %v, want 10m", name, time.Since(m.confirmed))
			case !is && !held[name]:
				m.Errorf("removal of %s is withheld, but is in no hold with a deadline", name)
			}
		}
	}
	if len(m.failures) > 0 {
		m.Fatal("the run ends after the first failed check")
	}
}

// reported returns the pending removals of reported resources.
func (m *reportsRun) reported() []reconcile.Hold {
	return slices.DeleteFunc(m.control.Operate(m.Context(), reconcile.Command{}), func(h reconcile.Hold) bool { return !h.Reported })
}

// end waits for an hour without events, and checks that only dropped removals are withheld.
func (m *reportsRun) end() {
	m.pass(time.Hour)
	kept := make(map[string]bool)
	for _, h := range m.reported() {
		for _, name := range h.Names {
			if kept[name] = true; h.Reason != reconcile.Dropped {
				m.Errorf("removal of %s is still pending after an hour without events: %+v", name, h)
			}
		}
	}
	for _, c := range m.clients {
		if c.left {
			continue
		}
		lacking := slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return m.has[name] })
		removable := c.report.Removable(lacking)
		for _, name := range lacking {
			if !slices.Contains(removable, name) && !kept[name] {
				m.Errorf("removal of %s is still withheld after an hour without events", name)
			}
		}
		c.report.Close()
	}
	m.pass(10 * time.Minute)
	if holds := m.reported(); len(holds) > 0 {
		m.Errorf("removals are pending although all clients have disconnected: %+v", holds)
	}
	if n := heldNow(m.session); n != 0 {
		m.Errorf("status: %d pending removals at the end, want 0", n)
	}
}
