package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/xdstender/tender/relay/relaytest/logs"
)

func TestNewLogger(t *testing.T) {
	tests := []struct {
		name   string
		level  slog.Level
		format string
		want   []string // parts of the record; nil means no record
	}{
		{"json by default without a terminal", slog.LevelInfo, "", []string{`"msg":"starting"`, `"origin":"a:1"`, `"retry_in":"1.5s"`}},
		{"json", slog.LevelInfo, "json", []string{`"level":"INFO"`, `"origin":"a:1"`}},
		{"text", slog.LevelInfo, "text", []string{"level=INFO", "msg=starting", "origin=a:1", "retry_in=1.5s"}},
		{"below the level", slog.LevelWarn, "text", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			log := newLogger(&out, tt.level, tt.format)
			log.LogAttrs(t.Context(), slog.LevelInfo, "starting", slog.String("origin", "a:1"), slog.Duration("retry_in", 1500*time.Millisecond))
			if tt.want == nil && out.Len() > 0 {
				t.Errorf("wrote %q, want no record", out.String())
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("wrote %q, want %s in it", out.String(), want)
				}
			}
		})
	}
}

func TestIsTerminal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if isTerminal(file) {
		t.Error("isTerminal(file) = true, want false")
	}
	if isTerminal(&bytes.Buffer{}) {
		t.Error("isTerminal(buffer) = true, want false")
	}
}

// A blockedWriter is an output that nobody reads.
type blockedWriter struct{ over chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	<-w.over
	return len(p), nil
}

// TestB43_TheEndWaitsForTheLogBriefly verifies that the error with which tender serve ends follows the log, and that an
// output that nobody reads delays the end only for a moment.
func TestB43_TheEndWaitsForTheLogBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logs.Log
		log, queue := newQueuedLogger(&out, slog.LevelInfo, "text")
		log.Info("draining")
		printError(lastWords{queue}, errors.New("listen: in use\nand more"))
		if got := out.String(); !strings.HasSuffix(got, " msg=draining\ntender: listen: in use\ntender: and more\n") {
			t.Errorf("the output is %q, want the log and then the error", got)
		}

		blocked := blockedWriter{make(chan struct{})}
		defer close(blocked.over)
		log, queue = newQueuedLogger(blocked, slog.LevelInfo, "text")
		began := time.Now()
		log.Info("draining")
		printError(lastWords{queue}, errors.New("one\ntwo"))
		if took := time.Since(began); took != lastWordsTime {
			t.Errorf("an output that nobody reads delays the end by %v, want %v", took, lastWordsTime)
		}
	})
}

// TestB43_LibrariesLogToTheLog verifies that lines of gRPC become records with their level.
func TestB43_LibrariesLogToTheLog(t *testing.T) {
	var out logs.Log
	to := grpclog.NewLoggerV2(grpcLog{newLogger(&out, slog.LevelInfo, "json")}, io.Discard, io.Discard)
	to.Info("connected: to a")
	to.Warning("slow")
	to.Error("no such server")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{`"level":"INFO","msg":"message of gRPC","detail":"`, `"level":"WARN"`, `"level":"ERROR"`} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Fatalf("the log is %q, want %s in line %d", lines, want, i)
		}
	}
	if !strings.Contains(lines[0], "connected: to a") {
		t.Errorf("the first record is %s, want the message", lines[0])
	}
}

// TestB43_AnInvalidConfigurationEndsTheProcess: tender serve with an invalid configuration also ends if nobody reads its
// stderr. Otherwise nothing would restart it.
func TestB43_AnInvalidConfigurationEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := blockedWriter{make(chan struct{})}
		defer close(blocked.over)
		h := hostFor([]string{"serve"})
		h.environ = func() []string { return []string{"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=nonsense"} }
		began := time.Now()
		code := run(h, []string{"serve"}, io.Discard, blocked)
		if took := time.Since(began); code != exitFailure || took > 2*lastWordsTime {
			t.Errorf("tender serve ends after %v with %d, want %d after %v at most", took, code, exitFailure, 2*lastWordsTime)
		}
	})
}
