package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
