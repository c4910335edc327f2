package page

import (
	"context"
	"sync"
	"time"
)

// A background calls a function in the background, so that no page waits for it, and keeps its newest result.
type background[T any] struct {
	read    func(context.Context) T
	age     time.Duration // minimum time between two calls
	reading sync.WaitGroup

	mu     sync.Mutex
	cancel func()    // cancels the call in progress; nil without one
	closed bool      // no further call may start
	result *T        // nil before the first
	at     time.Time // when the call of result ended
	next   time.Time // when a further call may start
}

// backgroundShare is the pause after a call, as a multiple of its duration.
const backgroundShare = 20

// newBackground returns a background. The caller must call close. A page with a result that is older than age starts a
// call, which may take at most a backgroundShare of the time.
func newBackground[T any](age time.Duration, read func(context.Context) T) *background[T] {
	return &background[T]{read: read, age: age}
}

// latest returns the newest result and its time; nil before the first. It starts a call if one is due.
func (b *background[T]) latest(now time.Time) (*T, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel == nil && !now.Before(b.next) && !b.closed {
		ctx, cancel := context.WithCancel(context.Background())
		b.cancel = cancel
		b.reading.Go(func() { // awaited by close
			defer cancel()
			b.refresh(ctx)
		})
	}
	return b.result, b.at
}

// refresh calls the function.
func (b *background[T]) refresh(ctx context.Context) {
	began := time.Now()
	result := b.read(ctx)
	ended := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel, b.result, b.at = nil, &result, ended
	b.next = ended.Add(max(b.age, backgroundShare*ended.Sub(began)))
}

// close cancels a call that is in progress and waits for its end.
func (b *background[T]) close() {
	b.mu.Lock()
	if b.closed = true; b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.reading.Wait()
}
