package logqueue

import (
	"io"
	"sync"
	"time"
)

const (
	// Limit is the maximum size of the records in a queue, in bytes: a few thousand records.
	Limit = 1 << 20

	// maxWrite is the maximum size of a write, in bytes, so that [Stats.Stalled] notices a slow reader's progress.
	maxWrite = 64 << 10

	// retryAfter is the interval between two attempts after an error, such as a full disk.
	retryAfter = time.Second
)

// A Class is the importance of a record: its level, or Audit.
type Class int

// The classes, in ascending order.
const (
	Debug Class = iota
	Info
	Warn
	Error
	Audit // what operators did
	classes
)

// String returns the class as in metrics.
func (c Class) String() string { return [classes]string{"debug", "info", "warn", "error", "audit"}[c] }

// share returns the size of a queue up to which it accepts records of the class.
func (c Class) share() int { return Limit / 8 * (4 + int(c)) }

// Counts has a number of records for each class.
type Counts [classes]int64

// Any reports whether a number is not zero.
func (c *Counts) Any() bool { return *c != Counts{} }

// Each calls f with each class and its number, in ascending order.
func (c *Counts) Each(f func(c Class, n int64)) {
	for class, n := range c {
		f(Class(class), n)
	}
}

// Stats is the state of a queue.
type Stats struct {
	// Dropped counts the records that found the queue full.
	Dropped Counts

	// Stalled is the time since the output last took a part of the waiting records. It is zero if none waits.
	Stalled time.Duration
}

// A Queue writes records to an output. [New] creates one.
type Queue struct {
	// Set at creation, read-only afterwards.
	to     io.Writer
	report func(dropped Counts, since time.Time) []byte

	mu       sync.Mutex
	waiting  []byte        // guarded by mu; records that the writer has not taken
	spare    []byte        // guarded by mu; an empty buffer that the writer no longer uses
	taken    int           // guarded by mu; bytes that the writer has taken and not written
	progress time.Time     // guarded by mu; when the writer started or last wrote; zero if there is no writer
	idle     chan struct{} // guarded by mu; closed when the writer ends; nil if nothing waits for that
	dropped  Counts        // guarded by mu
	reported Counts        // guarded by mu; of dropped
	since    time.Time     // guarded by mu; when the first record was dropped that is not reported
}

// New returns a queue in front of an output. After records were dropped, report is called with their number once the
// output takes records again. The queue writes what report returns.
func New(to io.Writer, report func(dropped Counts, since time.Time) []byte) *Queue {
	return &Queue{to: to, report: report}
}

// Add copies a record to the queue, or drops it if the queue is full.
func (q *Queue) Add(c Class, record []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting)+q.taken+len(record) > c.share() {
		if q.dropped == q.reported {
			q.since = time.Now()
		}
		q.dropped[c]++
		return
	}
	if q.waiting == nil {
		q.waiting, q.spare = q.spare, nil
	}
	q.waiting = append(q.waiting, record...)
	if q.progress.IsZero() {
		q.progress = time.Now()
		go q.write() // ends when the queue is empty
	}
}

// write writes records until none waits. It repeats a write that failed, from the byte that was not written.
func (q *Queue) write() {
	for buffer, more := q.take(nil); more; buffer, more = q.take(buffer) {
		for rest := buffer; len(rest) > 0; {
			n, err := q.to.Write(rest[:min(len(rest), maxWrite)])
			rest = rest[n:]
			q.wrote(n)
			if err != nil {
				time.Sleep(retryAfter)
			}
		}
	}
}

// take returns the waiting records, with a report of those that were dropped. If there are none, it ends the writer and
// returns false. used is the buffer of the previous call.
func (q *Queue) take(used []byte) (buffer []byte, more bool) {
	q.mu.Lock()
	dropped, since := q.dropped, q.since
	for c := range dropped {
		dropped[c] -= q.reported[c]
	}
	buffer, q.waiting, q.reported = q.waiting, nil, q.dropped
	q.taken = len(buffer)
	if q.spare == nil && cap(used) <= maxWrite {
		q.spare = used[:0]
	}
	more = len(buffer) > 0 || dropped.Any()
	if !more {
		q.end()
	}
	q.mu.Unlock()
	if dropped.Any() {
		buffer = append(buffer, q.report(dropped, since)...) // not counted: it is small
	}
	return buffer, more
}

// end declares that there is no writer. The caller holds mu.
func (q *Queue) end() {
	q.progress = time.Time{}
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// wrote records that the output has taken n bytes.
func (q *Queue) wrote(n int) {
	if n == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken, q.progress = max(0, q.taken-n), time.Now()
}

// Flush returns when the queue is empty, or after the given time.
func (q *Queue) Flush(within time.Duration) {
	q.mu.Lock()
	if q.progress.IsZero() {
		q.mu.Unlock()
		return
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(within):
	}
}

// Stats returns the state of the queue.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Stats{Dropped: q.dropped}
	if !q.progress.IsZero() {
		s.Stalled = time.Since(q.progress)
	}
	return s
}
