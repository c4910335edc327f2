package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

const (
	observerNames  = 10  // EDS names of each stream
	observerShares = 20  // streams of each name
	observerAtOnce = 100 // most names in one response of the control plane

	// observerDelay is the limit of the p99 delay, in ms.
	observerDelay = 250

	// observerCores is the number of cores for which a rate is computed from the CPU.
	observerCores = 16
)

// observed is the size of OBSERVER.
type observed struct {
	streams int
	lasts   time.Duration // how long the highest rate is measured
	rate    float64       // highest rate to try, in changes per second
}

// observed returns the size that the flags select.
func (o options) observed() observed {
	size := observed{streams: o.streams, lasts: o.lasts, rate: float64(o.rate)}
	if size.streams == 0 {
		size.streams = o.scaled(40_000)
	}
	if size.lasts == 0 {
		size.lasts = time.Duration(o.scale * float64(time.Minute))
	}
	if size.rate == 0 {
		size.rate = 10_000
	}
	size.streams = max(size.streams, observerShares)
	return size
}

// observer is OBSERVER: many streams of few names each, and the highest rate of changes at which they keep up.
func (o options) observer() scenario {
	size := o.observed()
	names := size.streams * observerNames / observerShares
	s := setup{
		kinds:     []content.Kind{{TypeURL: content.Endpoint, Count: names, Bytes: 256}},
		interests: []load.Interest{{TypeURL: content.Endpoint, Count: observerNames, Of: names}},
		clients:   size.streams, streams: 100, workers: 2, byName: true, environ: raisedShares,
	}
	act := func(st *stage, f *figures) error { return st.observe(f, size) }
	atFirst := fmt.Sprintf("CPU a delivery at %.0f changes a second", firstOf(size.rate))
	return scenario{
		id: "OBSERVER", rounds: 1, conclude: steps,
		title: fmt.Sprintf("%d streams, 100 on a connection, and %d EDS names of 256 bytes, %d streams for each; 1 to %d names change at once, for %v; with `%s`",
			size.streams, names, observerShares, observerAtOnce, size.lasts, strings.Join(raisedShares, "`, `")),
		rows: []row{
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "ads", kind: "tender", setup: s.ads(), act: act},
			{label: "gcp-linear+", kind: "gcp-linear+", once: true, setup: s, act: act},
		},
		checks: []check{
			{what: "changes a second", figure: rate, a: "tender", b: "grpc", reported: true},
			{what: "changes a second", figure: rate, a: "ads", b: "tender", reported: true},
			{what: "changes a second by the CPU of 16 cores", figure: byCPU, a: "tender", b: "grpc", reported: true},
			{what: "changes a second by the CPU of 16 cores", figure: byCPU, a: "ads", b: "grpc", reported: true},
			{what: atFirst, figure: cpuAtFirst, a: "tender", b: "grpc", reported: true},
			{what: atFirst, figure: cpuAtFirst, a: "ads", b: "grpc", reported: true},
			{what: atFirst, figure: cpuAtFirst, a: "ads", b: "tender", reported: true},
			{what: "RSS after the changes against that before", figure: kept, a: "tender", most: 1.1},
			{what: "RSS after the changes against that before", figure: kept, a: "ads", most: 1.1},
			{what: "streams woken with nothing to send, %", figure: idle, a: "tender", reported: true},
			{what: "streams woken with nothing to send, %", figure: idle, a: "ads", reported: true},
		},
	}
}

// A step is the measurement of one rate.
type step struct {
	rate     float64 // changes per second
	lasts    time.Duration
	p99, cpu float64 // see figures
	late     bool    // the control plane took longer for the changes than it should
}

// held reports whether the servers kept up with the rate.
func (s step) held() bool { return !s.late && s.p99 <= observerDelay }

// observe connects all clients, finds the highest rate of changes with an acceptable delay, and measures that rate. The
// search tries each rate for a sixth of the time.
func (st *stage) observe(f *figures, size observed) error {
	if err := st.fill(f); err != nil {
		return err
	}
	least := size.rate / 1024
	found, err := highestRate(least, size.rate, func(rate float64) (bool, error) { return st.atRate(f, rate, size.lasts/6) })
	if err != nil {
		return err
	}
	for next := max(found, least); next >= least; next /= finest {
		held, err := st.atRate(f, next, size.lasts)
		if err != nil {
			return err
		}
		if held {
			f.rate = next
			break
		}
	}
	return nil
}

// finest is the ratio of a rate that does not hold to one that does below which the search ends. Two rates that differ by
// a factor of 2 are bisected twice, so the last two differ by the fourth root of 2.
const finest = 1.2

// firstOf returns the first rate that is tried. All rows try it, so their CPU at this rate can be compared.
func firstOf(most float64) float64 { return most / 16 }

// cpuAtFirst returns the CPU per delivery at that rate, in µs.
func cpuAtFirst(f figures) float64 {
	if len(f.steps) == 0 {
		return 0
	}
	return f.steps[0].cpu
}

// highestRate returns the highest rate that holds, or 0 if least does not hold. It tries a sixteenth of most first, twice
// or half of that until a rate holds and another does not, and then rates between them.
func highestRate(least, most float64, holds func(rate float64) (bool, error)) (float64, error) {
	low, high := 0.0, math.Inf(1) // low holds, high does not
	for next := firstOf(most); ; {
		held, err := holds(next)
		if err != nil {
			return 0, err
		}
		if held {
			low = next
		} else {
			high = next
		}
		switch {
		case low >= most, high <= least, high/low < finest:
			return low, nil
		case low == 0:
			next = max(high/2, least)
		case math.IsInf(high, 1):
			next = min(2*low, most)
		default:
			next = math.Sqrt(low * high)
		}
	}
}

// atRate makes changes at a rate for a time, waits until all clients have them, and measures their delivery. It reports
// whether the servers kept up.
func (st *stage) atRate(f *figures, rate float64, lasts time.Duration) (held bool, err error) {
	before, err := st.servers.Memory()
	if err != nil {
		return false, err
	}
	names := st.kinds[0]
	c := serve.Changes{
		TypeURL: names.TypeURL, Count: max(int(rate*lasts.Seconds()), 1), At: min(observerAtOnce, names.Count), Mixed: true,
	}
	c.Every = time.Duration(float64(c.At) / rate * float64(time.Second))
	if err := st.follow(f, c); err != nil {
		return false, err
	}
	f.turns = 0 // a response concerns few of the streams
	f.held, f.kept = float64(before.Resident)/(1<<20), 1+f.grown*(1<<20)/float64(before.Resident)
	f.byCPU = observerCores * float64(c.Count) / f.spent
	s := step{rate: rate, lasts: lasts, p99: f.p99, cpu: f.cpu, late: st.changing > lasts+lasts/20}
	f.steps = append(f.steps, s)
	return s.held(), nil
}

// steps returns the table of the rates that the first round tried.
func steps(r result) string {
	var b strings.Builder
	b.WriteString("\nThe rates that were tried:\n\n| | changes a second | for, s | p99, ms | CPU a delivery, µs | |\n| --- | ---: | ---: | ---: | ---: | --- |\n")
	for _, w := range r.scenario.rows {
		for _, f := range r.figures[w.label][:min(1, len(r.figures[w.label]))] {
			for _, s := range f.steps {
				verdict := "p99 exceeded"
				switch {
				case s.held():
					verdict = "held"
				case s.late:
					verdict = "changes late"
				}
				fmt.Fprintf(&b, "| %s | %.0f | %s | %s | %s | %s |\n", w.label, s.rate, number(s.lasts.Seconds()), number(s.p99), number(s.cpu), verdict)
			}
		}
	}
	return b.String()
}
