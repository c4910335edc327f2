// Package fanout measures how long a change of the cache takes to reach all clients that it concerns.
//
// A [Fanout] follows one change. The writer of the view joins each stream that it wakes, and the stream counts itself
// off when its client has answered, or when there was nothing to send. That costs the writer a few nanoseconds for
// each stream. A [Tracker] limits how many changes are followed at the same time.
//
// The package is not a stable API: programs that embed Tender use package relay.
package fanout

import (
	"sync/atomic"
	"time"
)

// A Fanout follows one change of a type to the streams that were woken for it, until each of them is done: its client
// has answered, or needs no response. Polls, and views that copy from the changed one, are not followed.
//
// Its methods may be called from any goroutine.
type Fanout struct {
	// Set before the first stream joins, and read-only then.
	Key        string // the type URL or collection
	Position   uint64 // of the view after the change (cache.Seq)
	Received   time.Time
	Began      time.Time
	Removes    bool // the change removes resources
	Span       Span // nil if there is no trace
	Unfollowed bool // too many changes of the type are followed: no stream joins

	alone List          // this fan-out and no other
	onEnd func(*Fanout) // called once

	// Atomic.
	unanswered atomic.Int64 // streams that are not done, and the writer until it calls Release
	ended      atomic.Bool
	took       atomic.Int64 // see Took, in nanoseconds
	counts     [outcomes]atomic.Int64

	// When clients answered, in microseconds after Received, in no order. Nil unless RecordTimes was called.
	times []atomic.Uint32
	timed atomic.Int32
	next  atomic.Int64
}

// A Span shows a fan-out in a trace.
type Span interface {
	// Sampled reports whether the trace is exported.
	Sampled() bool

	// Context returns the traceparent of the span (https://www.w3.org/TR/trace-context), for a relay that is a client.
	Context() string

	// IDs returns the IDs of the span, in hexadecimal digits.
	IDs() (traceID, spanID string)
}

// An Outcome is the result of a change at one stream.
type Outcome int

// The outcomes of a change, or of one response, at a stream.
const (
	Accepted     Outcome = iota // the client sent an ACK
	Rejected                    // the client sent a NACK
	NotNeeded                   // there was nothing to send, or the stream has unsubscribed
	StreamClosed                // the stream ended before the client answered
	Superseded                  // of a response alone: the client answered a later one instead
	Unanswered                  // of a response alone: the client did not answer it within GiveUp
	outcomes
)

// String returns the outcome as it is named in traces.
func (o Outcome) String() string {
	return [...]string{"accepted", "rejected", "needless", "disconnected", "superseded", "unanswered"}[o]
}

// New returns a fan-out of the change of a type, which onEnd is called with once all streams are done. The caller
// calls Release.
func New(key string, position uint64, onEnd func(*Fanout)) *Fanout {
	f := &Fanout{Key: key, Position: position, onEnd: onEnd}
	f.alone.Fanout = f
	f.unanswered.Store(1)
	return f
}

// RecordTimes makes the fan-out record when each of up to n clients answers.
func (f *Fanout) RecordTimes(n int) { f.times = make([]atomic.Uint32, n) }

// Join adds the fan-out to the list of a stream, which must call Done for it. Only the caller of New may call it,
// before Release.
func (f *Fanout) Join(stream *atomic.Pointer[List]) {
	f.unanswered.Add(1)
	for top := stream.Load(); !stream.CompareAndSwap(top, top.And(f)); {
		top = stream.Load()
	}
}

// Done counts the outcome at a stream that has joined.
func (f *Fanout) Done(o Outcome, now time.Time) {
	f.counts[o].Add(1)
	if o != NotNeeded {
		f.extend(now)
	}
	if o <= Rejected && f.times != nil {
		f.times[f.timed.Add(1)-1].Store(uint32(now.Sub(f.Received).Microseconds()))
	}
	f.Release()
}

// extend records that the fan-out takes until now at least.
func (f *Fanout) extend(now time.Time) {
	took := int64(now.Sub(f.Received))
	for last := f.took.Load(); last < took && !f.took.CompareAndSwap(last, took); {
		last = f.took.Load()
	}
}

// Release ends the fan-out if all streams that joined are done.
func (f *Fanout) Release() {
	if f.unanswered.Add(-1) == 0 {
		f.end()
	}
}

// giveUp ends the fan-out although streams are not done.
func (f *Fanout) giveUp() {
	if !f.ended.Load() {
		f.extend(f.Began.Add(GiveUp))
	}
	f.end()
}

func (f *Fanout) end() {
	if f.ended.CompareAndSwap(false, true) {
		f.onEnd(f)
	}
}

// Streams returns how many streams have joined.
func (f *Fanout) Streams() int {
	streams := f.Unanswered()
	for o := range outcomes {
		streams += f.Count(o)
	}
	return streams
}

// Count returns how many streams had an outcome.
func (f *Fanout) Count(o Outcome) int { return int(f.counts[o].Load()) }

// Unanswered returns how many streams are not done. After the end it is the number of streams that were given up.
func (f *Fanout) Unanswered() int { return int(f.unanswered.Load()) }

// Took returns the time from Received until the last client has answered or its stream has ended; until GiveUp after
// Began if clients were given up. It is zero if no client needed a response.
func (f *Fanout) Took() time.Duration { return time.Duration(f.took.Load()) }

// Times returns the time from Received to the answer of each client, in no order, if RecordTimes was called.
func (f *Fanout) Times() []time.Duration {
	out := make([]time.Duration, min(int(f.timed.Load()), len(f.times)))
	for i := range out {
		out[i] = time.Duration(f.times[i].Load()) * time.Microsecond
	}
	return out
}

// Next numbers the events of the fan-out, from 0.
func (f *Fanout) Next() int64 { return f.next.Add(1) - 1 }

// A List has the fan-outs that a stream has joined. It is immutable, and nil is empty.
type List struct {
	*Fanout
	Others *List
}

// And returns the list with one more.
func (l *List) And(f *Fanout) *List {
	if l == nil {
		return &f.alone
	}
	return &List{f, l}
}

// Oldest returns the oldest fan-out that has a span; nil if none has one.
func (l *List) Oldest() (oldest *Fanout) {
	for ; l != nil; l = l.Others {
		if l.Span != nil && (oldest == nil || l.Position < oldest.Position) {
			oldest = l.Fanout
		}
	}
	return oldest
}

// Open returns the list without those that have ended.
func (l *List) Open() (open *List) {
	for ; l != nil; l = l.Others {
		if !l.ended.Load() {
			open = open.And(l.Fanout)
		}
	}
	return open
}
