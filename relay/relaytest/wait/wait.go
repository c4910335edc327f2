// Package wait lets a test wait for a state of a peer, without polling and without sleeping.
//
// The package is not a stable API: programs that embed Tender use package relay.
package wait

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// TB is the part of testing.TB that scripted peers need, so that programs that are not tests can use them too.
// *testing.T, *testing.B and *testing.F implement it.
type TB interface {
	Helper()
	// Context ends just before the functions given to Cleanup run.
	Context() context.Context
	Cleanup(func())
	// Errorf may be called from any goroutine until Cleanup's functions have run.
	Errorf(format string, args ...any)
	// Fatalf must not return.
	Fatalf(format string, args ...any)
}

// Cleanup calls f when the test ends. Unlike tb.Cleanup, it does not keep f and what f refers to after that: package testing
// keeps the functions of each parallel test until all tests of the package have ended.
func Cleanup(tb TB, f func()) {
	tb.Helper()
	tb.Cleanup(func() {
		call := f
		f = nil
		call()
	})
}

// Patience bounds every blocking call of scripted peers, in addition to its context. It only ends tests that hang, so it is
// much longer than anything takes on a busy machine.
const Patience = 2 * time.Minute

// A Monitor is a mutex with conditions. Each condition is evaluated after every change, with the lock held, so a waiter
// misses no state.
type Monitor struct {
	sync.Mutex
	waiters []*waiter // guarded by the mutex
}

type waiter struct {
	met  func() bool
	done chan struct{}
}

// Changed evaluates the conditions of all waiters. It must be called after every change, with the lock held.
func (m *Monitor) Changed() {
	m.waiters = slices.DeleteFunc(m.waiters, func(w *waiter) bool {
		if !w.met() {
			return false
		}
		close(w.done)
		return true
	})
}

// Wait returns nil once the condition met has been true, and the cause of the end of ctx otherwise. It calls met with the
// lock held.
func (m *Monitor) Wait(ctx context.Context, met func() bool) error {
	w := m.enter(met)
	if w == nil {
		return nil
	}
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	m.Lock()
	defer m.Unlock()
	select {
	case <-w.done: // met while we were taking the lock
		return nil
	default:
	}
	m.waiters = slices.DeleteFunc(m.waiters, func(v *waiter) bool { return v == w })
	return context.Cause(ctx)
}

// enter adds a waiter for the condition met. It returns nil if met is true already.
func (m *Monitor) enter(met func() bool) *waiter {
	m.Lock()
	defer m.Unlock() // also if met panics: the test's clean-up needs the lock
	if met() {
		return nil
	}
	w := &waiter{met: met, done: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	return w
}

// Await is Wait bounded by Patience.
func (m *Monitor) Await(ctx context.Context, met func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("nothing for %v", Patience))
	defer cancel()
	return m.Wait(ctx, met)
}
