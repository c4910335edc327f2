package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestWarnPlaintext: the warning names the listeners or the origins whose traffic leaves the host, and has no empty attribute.
func TestWarnPlaintext(t *testing.T) {
	for _, tt := range []struct{ origin, listen, want, not string }{
		{"file:///tmp", ":18000", "listen=:18000", "origin="},
		{"cp.example:1", "127.0.0.1:18000", "origin=cp.example:1", "listen="},
	} {
		cfg, err := LoadConfig([]string{"TENDER_ORIGIN=" + tt.origin, "TENDER_LISTEN=" + tt.listen})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		warnPlaintext(&cfg, false, slog.New(slog.NewTextHandler(&out, nil)))
		if got := out.String(); !strings.Contains(got, tt.want) || strings.Contains(got, tt.not) {
			t.Errorf("origin %s, listen %s: %q, want %q and no %q", tt.origin, tt.listen, got, tt.want, tt.not)
		}
	}
}
