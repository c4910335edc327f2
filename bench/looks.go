package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
)

// Looks are how often a Tender has looked at a stream because something that it may
// want had changed.
type looks struct {
	sent    float64 // and something was sent
	nothing float64 // and there was nothing to send
}

func (l looks) since(before looks) looks {
	return looks{sent: l.sent - before.sent, nothing: l.nothing - before.nothing}
}

// idle returns the part of them that was for nothing, in %.
func (l looks) idle() float64 { return 100 * l.nothing / max(l.sent+l.nothing, 1) }

// all returns their number.
func (l looks) all() float64 { return l.sent + l.nothing }

// turns matches the metric that counts them, and what it says.
var turns = regexp.MustCompile(`^tender_client_turns_total\{.*outcome="(sent|idle)".*\} (\S+)$`)

// looks asks all Tenders of the stage that are probed.
func (st *stage) looks() (sum looks, err error) {
	for _, probe := range st.probes {
		resp, err := http.Get("http://" + probe + "/metrics")
		if err != nil {
			return looks{}, fmt.Errorf("metrics: %w", err)
		}
		found, err := readLooks(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return looks{}, fmt.Errorf("metrics of %s: %w", probe, err)
		}
		sum.sent, sum.nothing = sum.sent+found.sent, sum.nothing+found.nothing
	}
	return sum, nil
}

// readLooks finds both counters among the metrics.
func readLooks(metrics io.Reader) (l looks, err error) {
	found := 0
	for lines := bufio.NewScanner(metrics); lines.Scan(); {
		m := turns.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return looks{}, err
		}
		found++
		if m[1] == "sent" {
			l.sent = n
		} else {
			l.nothing = n
		}
	}
	if found != 2 {
		return looks{}, fmt.Errorf("%d counters of turns, want 2", found)
	}
	return l, nil
}
