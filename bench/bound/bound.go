// Package bound implements relaytest.TB without package testing, so that programs can use helpers made for tests.
package bound

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A TB collects errors and cleanup functions. Its methods are safe for concurrent use. Fatalf must be called within
// [TB.Do], on the same goroutine.
type TB struct {
	ctx    context.Context
	cancel context.CancelFunc

	// Guarded by mu.
	mu       sync.Mutex
	cleanups []func()
	errs     []error
}

// New returns a TB. The caller must call End.
func New() *TB {
	t := &TB{}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// fatal is the value with which Fatalf panics.
type fatal struct{ err error }

// Do runs f and returns the error of its call of Fatalf, or nil. Errors of Errorf are returned by End only.
func (t *TB) Do(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			failed, ok := r.(fatal)
			if !ok {
				panic(r)
			}
			err = failed.err
		}
	}()
	f()
	return nil
}

// End cancels the context, runs the cleanup functions in reverse order, and returns all errors joined.
func (t *TB) End() error {
	t.cancel()
	t.mu.Lock()
	cleanups := slices.Clone(t.cleanups)
	t.cleanups = nil
	t.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		if err := t.Do(f); err != nil {
			t.Errorf("%v", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

// Helper implements relaytest.TB.
func (t *TB) Helper() {}

// Context implements relaytest.TB.
func (t *TB) Context() context.Context { return t.ctx }

// Cleanup implements relaytest.TB.
func (t *TB) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Errorf implements relaytest.TB.
func (t *TB) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, fmt.Errorf(format, args...))
}

// Fatalf implements relaytest.TB.
func (t *TB) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }
