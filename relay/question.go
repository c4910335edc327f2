package relay

import (
	"context"
	"time"
)

// A question is one to a loop that may not answer, for example because a read of its directory hangs. The zero value was not asked.
// Only one goroutine may use it.
type question[A any] struct {
	open chan A // receives the answer; nil once the question is answered
}

// ask calls f, which asks the loop and may wait for ever, and returns its answer. It waits until ctx ends, at most half of wait,
// which the questions of one round share: so some is left for others. While the loop has not answered an earlier question, ask
// does not wait at all.
func (q *question[A]) ask(ctx context.Context, wait *time.Duration, f func() A) (answer A, answered bool) {
	if q.open != nil {
		select {
		case <-q.open: // the answer is out of date
		default:
			return answer, false
		}
	}
	open, began := make(chan A, 1), time.Now()
	go func() { open <- f() }() // until the loop answers or ends
	defer func() { *wait -= time.Since(began) }()
	late := time.NewTimer(*wait / 2)
	defer late.Stop()
	select {
	case answer = <-open:
		q.open = nil
		return answer, true
	case <-late.C:
	case <-ctx.Done():
	}
	q.open = open
	return answer, false
}
