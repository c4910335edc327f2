package relaytest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// TB is the part of testing.TB that this package needs, so that a program that
// is not a test can use it too. *testing.T, *testing.B and *testing.F have it.
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

// Patience bounds every blocking call of this package, in addition to its context. It only ends tests that hang.
const Patience = 30 * time.Second

// A monitor is a mutex with conditions. A condition is evaluated with the lock
// held after every change, so a waiter sees each state and misses none.
type monitor struct {
	sync.Mutex
	waiters []*waiter // guarded by the mutex
}

type waiter struct {
	met  func() bool
	done chan struct{}
}

// changed must be called with the lock held after every change.
func (m *monitor) changed() {
	m.waiters = slices.DeleteFunc(m.waiters, func(w *waiter) bool {
		if !w.met() {
			return false
		}
		close(w.done)
		return true
	})
}

// wait returns nil as soon as met, which is called with the lock held, has
// returned true once. Otherwise it returns why ctx ended.
func (m *monitor) wait(ctx context.Context, met func() bool) error {
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

// enter returns nil if met holds. Otherwise it adds a waiter for it.
func (m *monitor) enter(met func() bool) *waiter {
	m.Lock()
	defer m.Unlock() // also if met panics: the test's clean-up needs the lock
	if met() {
		return nil
	}
	w := &waiter{met: met, done: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	return w
}

// await is wait bounded by Patience.
func (m *monitor) await(ctx context.Context, met func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("nothing for %v", Patience))
	defer cancel()
	return m.wait(ctx, met)
}
