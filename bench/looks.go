package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
)

// looks counts the turns of streams in Tender: a stream has a turn when a resource that
// it may subscribe to has changed.
type looks struct {
	sent    float64 // turns that sent a response
	nothing float64 // turns with nothing to send
}

// since returns the turns after before was read.
func (l looks) since(before looks) looks {
	return looks{sent: l.sent - before.sent, nothing: l.nothing - before.nothing}
}

// idle returns the turns with nothing to send, in % of all turns.
func (l looks) idle() float64 { return 100 * l.nothing / max(l.sent+l.nothing, 1) }

// all returns the number of turns.
func (l looks) all() float64 { return l.sent + l.nothing }

// turns matches the metric of turns, and captures its outcome and its value.
var turns = regexp.MustCompile(`^tender_client_turns_total\{.*outcome="(sent|idle)".*\} (\S+)$`)

// looks returns the sum of the turns of all Tenders of the stage, read from their metrics.
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

// readLooks finds both counters in Prometheus text. Errors: the text lacks one, or has more than two.
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
