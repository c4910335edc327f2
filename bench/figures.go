package main

import (
	"time"

	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// Figures are what one run of a server shows. What was not measured is 0.
type figures struct {
	cpu           float64 // CPU a delivery, in µs
	p50, p99, max float64 // delay from change to client, in ms
	bytes         float64 // bytes a delivery
	turns         float64 // looks of Tender at a stream for each response of the control plane, if one has several changes
	merged        float64 // part of the deliveries that came with another one
	idle          float64 // part of Tender's looks at streams that had nothing to send, in %
	allocs        float64 // objects allocated on Go's heap a delivery
	totalCPU      float64 // CPU of the servers since their start, in seconds
	highestRSS    float64 // their highest RSS since then, in MiB
	sync          float64 // until all were in sync, in ms
	syncCPU       float64 // CPU until then, in ms
	resident      float64 // RSS a client, in KiB
	peak          float64 // peak RSS above that before the changes, in MiB
	grown         float64 // RSS after the changes above that before, in MiB
	again         float64 // resources a client that it had already
	heap          float64 // live heap, in bytes a unit that the scenario names
	stalled       float64 // clients that heap is of, if they read nothing
	held          float64 // RSS of the whole process, in MiB
	listening     float64 // from start until it listens, in ms
	spent         float64 // CPU of the changes, in seconds
	reached       float64 // until all have a change, in ms: the median of the changes
	cores         float64 // CPU seconds a second, while changes are made
	connects      float64 // connections that were established a second
	resumed       float64 // part of them that resumed a TLS session, in %
	join          float64 // until a client that connects is in sync, in ms: the longest of some

	origin *originFigures // what the control plane pays; nil if it is not looked at

	peace, onset *figures // the same before an attack began, and as it did; nil if there is none
}

// fill connects the clients: one for each server, which has it load what it serves,
// and then the others, which are measured.
func (st *stage) fill(f *figures) error { return st.connect(f, settle) }

// idle is fill, but RSS is that of clients that have been idle for a while.
func (st *stage) idle(f *figures) error { return st.connect(f, idleFor) }

// connect is fill, with RSS measured so long after all are in sync.
func (st *stage) connect(f *figures, wait time.Duration) error {
	first := len(st.addresses)
	if _, err := st.open(first); err != nil || st.clients == first {
		return err
	}
	before, _, err := st.servers.RSS()
	if err != nil {
		return err
	}
	allocations, err := st.counting()
	if err != nil {
		return err
	}
	cpu, err := st.servers.CPU()
	if err != nil {
		return err
	}
	var had, p load.Progress
	if err := st.load.Call("Progress", struct{}{}, &had); err != nil {
		return err
	}
	took, err := st.open(st.clients)
	if err != nil {
		return err
	}
	after, err := st.servers.CPU()
	if err != nil {
		return err
	}
	time.Sleep(wait) // the last ACKs
	resident, _, err := st.servers.RSS()
	if err != nil {
		return err
	}
	objects, err := allocations()
	if err != nil {
		return err
	}
	if err := st.load.Call("Progress", struct{}{}, &p); err != nil {
		return err
	}
	f.allocs = objects / float64(max(p.First-had.First, 1))
	f.sync, f.syncCPU = milliseconds(took), milliseconds(after-cpu)
	f.resident = float64(resident-before) / float64(st.clients-first) / (1 << 10)
	return nil
}

// settle is how long processes are left alone before they are measured. A
// benchmark may look at a clock; nothing is decided by it.
const settle = 500 * time.Millisecond

// idleFor is settle in S5, where it is not to matter how busy the machine is: a server may
// give memory back once it has served its clients.
const idleFor = 3 * time.Second

// A baseline is what the servers have used before changes are made.
type baseline struct {
	resident    int
	looks       looks
	allocations func() (float64, error) // since then
	cpu         time.Duration
}

// baseline resets the highest memory use, and reads the other counters.
func (st *stage) baseline() (b baseline, err error) {
	if err := st.load.Call("Mark", struct{}{}, &struct{}{}); err != nil {
		return b, err
	}
	if err := st.notePeak(); err != nil {
		return b, err
	}
	if err := st.servers.ResetPeak(); err != nil {
		return b, err
	}
	if b.resident, _, err = st.servers.RSS(); err != nil {
		return b, err
	}
	if b.looks, err = st.looks(); err != nil {
		return b, err
	}
	if b.allocations, err = st.counting(); err != nil {
		return b, err
	}
	b.cpu, err = st.servers.CPU()
	return b, err
}

// follow makes changes and measures until all clients have them.
func (st *stage) follow(f *figures, c serve.Changes) error {
	before, err := st.baseline()
	if err != nil {
		return err
	}
	expected, err := st.change(c)
	if err != nil {
		return err
	}
	if err := st.inSync(); err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond) // the last ACKs
	after, err := st.servers.CPU()
	if err != nil {
		return err
	}
	now, peak, err := st.servers.RSS()
	if err != nil {
		return err
	}
	if f.allocs, err = before.allocations(); err != nil {
		return err
	}
	f.peak, f.grown = float64(peak-before.resident)/(1<<20), float64(now-before.resident)/(1<<20)
	looked, err := st.looks()
	if err != nil {
		return err
	}
	f.idle = looked.since(before.looks).idle()
	if c.At > 1 {
		f.turns = looked.since(before.looks).all() / float64(st.clients*(c.Count/c.At))
	}
	return st.count(f, after-before.cpu, expected)
}

// count divides what was spent by what was delivered.
func (st *stage) count(f *figures, cpu time.Duration, expected int) error {
	var p load.Progress
	if err := st.load.Call("Progress", struct{}{}, &p); err != nil {
		return err
	}
	var delays []time.Duration
	if err := st.load.Call("Delays", struct{}{}, &delays); err != nil {
		return err
	}
	n := float64(max(p.Responses, 1))
	if !st.sotw { // there, each response has everything again
		n = float64(max(p.Deliveries, 1))
		f.again = float64(p.Again) / float64(st.clients)
	}
	f.spent = cpu.Seconds()
	f.allocs /= n
	f.cpu = float64(cpu.Nanoseconds()) / 1000 / n
	f.bytes = float64(p.Bytes) / n
	f.merged = 1 - float64(min(p.Responses, p.Deliveries))/float64(max(expected, 1))
	f.p50, f.p99, f.max = milliseconds(percentile(delays, 50)), milliseconds(percentile(delays, 99)), milliseconds(percentile(delays, 100))
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
