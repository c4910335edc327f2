package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/logs"
)

// TestLogLevel verifies that tender log-level changes the level of a running relay, and that a change to a higher or a
// lower level is logged.
func TestLogLevel(t *testing.T) {
	var log logs.Log
	level := new(slog.LevelVar)
	startRemote(t, instance.Options{
		Env:     []string{"TENDER_ORIGIN=file://" + t.TempDir()},
		Options: relay.Options{Logger: newLogger(&log, level, "text"), Level: level},
	})
	for _, to := range []struct{ level, was, logged string }{
		{"error", "info", "level=INFO msg=\"log level changed\" before=info now=error"},
		{"warn", "error", "level=WARN msg=\"log level changed\" before=error now=warn"},
		{"debug", "warn", "level=INFO msg=\"log level changed\" before=warn now=debug"},
	} {
		code, stdout, stderr := execute("log-level", to.level)
		if want := "the log level is " + to.level + ", it was " + to.was + "\n"; code != exitOK || stdout != want {
			t.Errorf("tender log-level %s: code %d, %q%s, want %q", to.level, code, stdout, stderr, want)
		}
		if !strings.Contains(log.String(), to.logged) {
			t.Errorf("after tender log-level %s, the log has no record %s:\n%s", to.level, to.logged, log.String())
		}
	}
	if level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v, want DEBUG", level.Level())
	}
	if code, _, stderr := execute("log-level", "loud"); code != exitFailure || !strings.Contains(stderr, `level="loud": want debug, info, warn or error`) {
		t.Errorf("tender log-level loud: code %d, %s, want an error with the valid levels", code, stderr)
	}
}
