package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// mallocs is the name of the Go runtime metric that counts allocated objects, with the space before its value.
const mallocs = "go_memstats_mallocs_total "

// allocated returns the number of objects that the servers have allocated on Go's heap. asking is the estimated part of
// total that one scrape of Tender's metrics allocates; callers subtract it.
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

// readMallocs scrapes the counter of allocated objects from the probe address of one Tender.
func readMallocs(probe string) (float64, error) { return read("http://"+probe+"/metrics", mallocs) }

// read returns the number that follows a prefix on a line of a text.
func read(url, prefix string) (float64, error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, fmt.Errorf("read a figure: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s: %w", url, strings.TrimSpace(prefix), lines.Err())
}

// counting returns a function that returns the number of objects that the servers have allocated since this call.
func (st *stage) counting() (since func() (float64, error), err error) {
	before, asking, err := st.allocated()
	return func() (float64, error) {
		after, again, err := st.allocated()
		// Two scrapes lie between the readings that are subtracted: asking and again are the cost of one each.
		return max(after-before-asking-again, 0), err
	}, err
}

// total records the CPU time and the highest memory use of the servers since their start.
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

// notePeak updates the highest resident memory of the servers. Call it before each reset of the peak and at the end.
func (st *stage) notePeak() error {
	m, err := st.servers.Memory()
	st.highest = max(st.highest, m.Peak)
	return err
}
