package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// mallocs is the metric of a Tender that counts the objects that it has allocated.
const mallocs = "go_memstats_mallocs_total "

// allocated returns how many objects the servers have allocated on Go's heap, and how many of them to answer this
// question: a Tender makes its metrics for that.
func (st *stage) allocated() (total, asking float64, err error) {
	if len(st.probes) == 0 {
		for _, p := range st.servers {
			var n uint64
			if err := p.Allocated(&n); err != nil {
				return 0, 0, err
			}
			total += float64(n)
		}
		return total, 0, nil
	}
	for _, probe := range st.probes {
		before, err := readMallocs(probe)
		if err != nil {
			return 0, 0, err
		}
		after, err := readMallocs(probe)
		if err != nil {
			return 0, 0, err
		}
		total, asking = total+after, asking+after-before
	}
	return total, asking, nil
}

// readMallocs returns the counter of one Tender.
func readMallocs(probe string) (float64, error) {
	resp, err := http.Get("http://" + probe + "/metrics")
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), mallocs); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("metrics of %s: no %s: %w", probe, strings.TrimSpace(mallocs), lines.Err())
}

// counting returns a function that returns how many objects the servers have allocated since.
func (st *stage) counting() (since func() (float64, error), err error) {
	before, asking, err := st.allocated()
	return func() (float64, error) {
		after, again, err := st.allocated()
		// Between the two readings that count lie two questions: the other one of each pair measured what one costs.
		return max(after-before-asking-again, 0), err
	}, err
}

// total notes what the servers have cost since their start.
func (st *stage) total(f *figures) error {
	cpu, err := st.servers.CPU()
	if err != nil {
		return err
	}
	if err := st.notePeak(); err != nil {
		return err
	}
	f.totalCPU, f.highestRSS = cpu.Seconds(), float64(st.highest)/(1<<20)
	return nil
}

// notePeak keeps the highest resident memory of the servers before the peak is reset, and at the end.
func (st *stage) notePeak() error {
	_, peak, err := st.servers.RSS()
	st.highest = max(st.highest, peak)
	return err
}
