package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A mirrorRun drives a view sync without a loop through a random history.
type mirrorRun struct {
	v        *viewSync
	watch    *cache.Watch
	all      map[string]*cache.WildcardWatch // by type URL
	names    map[string]bool                 // of assignments
	nonce    int
	failures []string
}

// A mirrorEvent is a response of the origin, a change of demand, a command, or a new stream, and the time until the next event.
type mirrorEvent struct {
	what    int
	typeURL string
	names   []string
	expires bool // the resources have a TTL
	do      reconcile.Action
	wait    time.Duration
}

// TestAgenda_ForgetsNothing: after any event, a step with all tasks finds nothing that the agenda has missed: no change of the view,
// and no task that is due earlier than the agenda knows.
func TestAgenda_ForgetsNothing(t *testing.T) {
	events := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) mirrorEvent {
		return mirrorEvent{
			what:    rapid.IntRange(0, 7).Draw(rt, "what"),
			typeURL: rapid.SampledFrom([]string{wire.ClusterType, wire.ListenerType}).Draw(rt, "type"),
			names:   rapid.SliceOfDistinct(rapid.SampledFrom(strings.Fields("a b c d e f g h")), rapid.ID).Draw(rt, "names"),
			expires: rapid.IntRange(0, 3).Draw(rt, "expires") == 0,
			do:      rapid.SampledFrom([]reconcile.Action{reconcile.Pass, reconcile.Drop}).Draw(rt, "do"),
			wait:    rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, 16 * time.Second, time.Minute}).Draw(rt, "wait"),
		}
	}), 0, 40)
	rapid.Check(t, func(rt *rapid.T) {
		history := events.Draw(rt, "events")
		m := &mirrorRun{all: make(map[string]*cache.WildcardWatch), names: make(map[string]bool)}
		synctest.Test(t, func(t *testing.T) { m.run(t, history) })
		if len(m.failures) > 0 {
			rt.Fatalf("%s", strings.Join(m.failures, "\n"))
		}
	})
}

// run runs a history.
func (m *mirrorRun) run(t *testing.T, history []mirrorEvent) {
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	m.v, m.watch = benchMirror(t, w), view.Watch()
	m.v.trunk.byRole[auxiliary] = adsStream{retry: backoff.NewExponentialBackOff()}
	m.open(auxiliary)
	for i, e := range history {
		m.event(e)
		m.settle()
		if missed := m.missed(); missed != "" {
			m.failures = append(m.failures, fmt.Sprintf("after event %d, missed: %s", i, missed))
		}
		time.Sleep(e.wait) // virtual
		m.settle()
	}
}

// event performs an event.
func (m *mirrorRun) event(e mirrorEvent) {
	switch l := &m.v.trunk.byRole[main]; e.what {
	case 0, 1:
		if m.all[e.typeURL] == nil {
			m.all[e.typeURL] = m.watch.SubscribeAll(e.typeURL)
		} else {
			m.watch.UnsubscribeAll(m.all[e.typeURL])
			m.all[e.typeURL] = nil
		}
		m.v.demand(time.Now())
	case 2:
		for _, name := range e.names {
			if m.names[name] = !m.names[name]; m.names[name] {
				m.watch.Subscribe(wire.EndpointType, []string{name})
			} else {
				m.watch.Unsubscribe(wire.EndpointType, m.watch.Find(wire.EndpointType, []string{name}))
			}
		}
		m.v.demand(time.Now())
	case 3:
		m.open(main)
	case 4:
		m.v.Operate(reconcile.Command{Do: e.do, TypeURL: e.typeURL})
		m.v.wakeAll()
	default:
		m.nonce++
		m.v.handleResponse(l, event{stream: l.stream, update: m.response(e), at: time.Now()}, time.Now())
	}
}

// response returns a response that adds two of three resources, and removes the third.
func (m *mirrorRun) response(e mirrorEvent) wire.Update {
	u := wire.Update{TypeURL: e.typeURL, Nonce: fmt.Sprint(m.nonce)}
	for i, name := range e.names {
		if i%3 == 2 {
			u.Removed = append(u.Removed, name)
			continue
		}
		r := check.Must(wire.NewResource(e.typeURL, name, fmt.Sprint(m.nonce), []byte{0x0a, 1, name[0]}))
		if e.expires {
			r.TTL = 5 * time.Second
		}
		u.Resources = append(u.Resources, r)
	}
	return u
}

// open opens a stream.
func (m *mirrorRun) open(r role) {
	l := &m.v.trunk.byRole[r]
	l.stream, l.sentVersions = benchStream(m.v, r), false
	m.v.streamOpened(l, time.Now())
	m.v.wakeForStreams()
}

// settle steps until nothing is due. The origin reads all requests. A stream that the relay replaces opens at once, and the auxiliary
// one stays open if it is not needed.
func (m *mirrorRun) settle() {
	for range 20 {
		next := m.v.step(time.Now())
		for l := range m.v.all {
			switch {
			case l.stream == nil:
				continue
			case l.replaced && l.branch.needs(l.role):
				m.open(l.role)
				next = time.Now()
			default:
				l.open, l.replaced = true, false
			}
			for len(l.out) > 0 {
				<-l.out
			}
		}
		if next.IsZero() || time.Now().Before(next) {
			return
		}
	}
	m.failures = append(m.failures, "the agenda does not settle")
}

// missed does all tasks and returns what was due, or is due earlier than the agenda knew.
func (m *mirrorRun) missed() string {
	tasks := slices.DeleteFunc(m.v.agenda.all(), func(of *task) bool { return of.rank == rankTrim || of.rank == rankBatch })
	for _, s := range m.v.trunk.subs {
		tasks = append(tasks, &s.check)
	}
	before, seq, waits := make(map[*task]time.Time), m.v.w.Generation().Seq, m.v.group.HasRemovals()
	for _, of := range tasks {
		before[of] = of.at
	}
	wake(tasks...)
	m.v.step(time.Now())
	var all []string
	if m.v.w.Generation().Seq != seq || m.v.group.HasRemovals() != waits {
		all = append(all, "a change of the view")
	}
	for _, of := range tasks {
		if known := before[of]; of.at.After(time.Now()) && (known.IsZero() || of.at.Before(known)) {
			all = append(all, fmt.Sprintf("a task of rank %d in %v", of.rank, time.Until(of.at)))
		}
	}
	return strings.Join(all, ", ")
}
