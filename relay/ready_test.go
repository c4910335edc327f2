package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestB8_UnreachableOriginIsLoggedAgain checks that a relay that is not ready logs the cause at once and then at
// growing intervals, and that it logs a new cause at once.
func TestB8_UnreachableOriginIsLoggedAgain(t *testing.T) {
	var log bytes.Buffer
	p := &originProbes{settings: settingsOf(new(Config), ""), log: slog.New(slog.NewTextHandler(&log, nil))}
	var was originState
	now := time.Unix(1e9, 0)
	var at []int // seconds at which a line was logged
	for second := range 3000 {
		err := errors.New("no such host")
		if second == 2000 {
			err = errors.New("connection refused")
		}
		for _, e := range []probeEvent{
			{originState: originState{err: err}}, {originState: originState{open: true, err: err}},
		} {
			before := log.Len()
			p.logProbe(&was, &e, now.Add(time.Duration(second)*time.Second))
			was = e.originState
			if log.Len() > before {
				at = append(at, second)
			}
		}
	}
	want := []int{0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2000, 2001, 2011, 2031, 2071, 2151, 2311, 2631}
	if !slices.Equal(at, want) {
		t.Errorf("logged at %v, want %v", at, want)
	}
	if text := log.String(); !strings.Contains(text, "no such host") || strings.Count(text, "connection refused") != 1 {
		t.Errorf("the log lacks a cause, or repeats a former cause:\n%s", text)
	}
}
