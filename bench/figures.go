package main

import (
	"time"

	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
)

// figures are the measurements of one run of a row. A figure that was not measured is 0.
type figures struct {
	rate          float64 // highest rate at which the p99 delay is within its limit, in changes per second; 0 if none is
	byCPU         float64 // rate at which the CPU would use 16 cores, in changes per second
	kept          float64 // RSS after the changes relative to that before
	steps         []step  // the rates that were tried
	cpu           float64 // CPU per delivery, in µs
	p50, p99, max float64 // delay from the change to its receipt by a client, in ms
	bytes         float64 // bytes per delivery
	turns         float64 // turns of each stream in Tender per upstream response, if responses contain several changes
	merged        float64 // fraction of the deliveries that shared a response with another delivery
	idle          float64 // turns of streams in Tender that had nothing to send, in %
	allocs        float64 // objects allocated on Go's heap per delivery
	totalCPU      float64 // CPU of the servers since their start, in seconds
	highestRSS    float64 // highest RSS of the servers since their start, in MiB
	sync          float64 // time until all clients were in sync, in ms
	syncCPU       float64 // CPU until all clients were in sync, in ms
	resident      float64 // RSS per client, in KiB
	program       float64 // pages of files that became resident while clients connected, in MiB
	peak          float64 // peak RSS during the changes minus RSS before them, in MiB
	grown         float64 // RSS after the changes minus RSS before them, in MiB
	again         float64 // resources per client that the server sent again unchanged
	heap          float64 // live heap, in bytes per unit; the check of the scenario names the unit
	stalled       float64 // clients that stopped reading and that heap is divided by
	held          float64 // RSS of all server processes, in MiB
	listening     float64 // time from the start of Tender until it listens, in ms
	spent         float64 // CPU used during the changes, in seconds
	reached       float64 // time until all clients received a change, in ms: the median of the changes
	cores         float64 // CPU seconds per second during the changes
	connects      float64 // connections established per second
	resumed       float64 // connections that resumed a TLS session, in %
	joined, join  float64 // time from connect to sync of one client, in ms: the median and the longest of several clients

	origin *originFigures // cost of the control plane; nil if not measured

	peace, onset *figures // figures before an attack and right after its start; nil without an attack
}

// fill connects one client to each server, so that it loads its resources, and then
// connects and measures the other clients.
func (st *stage) fill(f *figures) error { return st.connect(f, settle) }

// connect is fill, and measures RSS after waiting that long: with one client per server, and once all clients are in sync.
func (st *stage) connect(f *figures, wait time.Duration) error {
	first := len(st.addresses)
	if _, err := st.open(first); err != nil || st.clients == first {
		return err
	}
	time.Sleep(wait) // until the servers have returned the memory that only their start has needed
	before, err := st.servers.Memory()
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
	time.Sleep(wait) // until the servers have read the last ACKs
	memory, err := st.servers.Memory()
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
	f.resident = float64(memory.Resident-before.Resident) / float64(st.clients-first) / (1 << 10)
	f.program = float64(memory.Program-before.Program) / (1 << 20)
	return nil
}

// settle is the pause before a measurement, in which the servers read the last ACKs.
// No result depends on its exact length.
const settle = 500 * time.Millisecond

// idleFor replaces settle in S5. Within it, Tender returns the memory that it needed only while clients connected.
const idleFor = 35 * time.Second

// A baseline holds the counters of the servers before the measured changes.
type baseline struct {
	memory      process.Memory
	looks       looks
	allocations func() (float64, error) // returns the objects allocated since the baseline
	cpu         time.Duration
}

// baseline resets the peak memory of the servers and the counters of the load generator, and reads the other counters.
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
	if b.memory, err = st.servers.Memory(); err != nil {
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

// follow makes changes and measures until all clients have received them.
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
	time.Sleep(50 * time.Millisecond) // until the servers have read the last ACKs
	after, err := st.servers.CPU()
	if err != nil {
		return err
	}
	memory, err := st.servers.Memory()
	if err != nil {
		return err
	}
	if f.allocs, err = before.allocations(); err != nil {
		return err
	}
	f.peak = float64(memory.Peak-before.memory.Resident) / (1 << 20)
	f.grown = float64(memory.Resident-before.memory.Resident) / (1 << 20)
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

// count divides the costs by the number of deliveries. cpu is the CPU time of the servers. expected is the number of
// responses if each response contains one change.
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
	if !st.sotw { // SotW responses repeat all resources, so responses are counted instead
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

// milliseconds returns d in milliseconds, rounded down to microseconds.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
