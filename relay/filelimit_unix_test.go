//go:build unix

package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
)

// TestB47_LowFileLimitIsLogged checks that the relay accepts fewer connections than TENDER_MAX_CONNECTIONS if it may open
// too few files, and warns with the numbers. It does not warn if that variable has its default and the limit suffices for
// the usual number of clients. The Go runtime has raised the limit as far as possible.
func TestB47_LowFileLimitIsLogged(t *testing.T) {
	for limit, want := range map[uint64]int{64: 32, 256: 128, 1024: 896, 1127: 999, 1128: 1000, 1 << 63: 1000} {
		var log bytes.Buffer
		got := connectionsWithin(limit, 1000, slog.New(slog.NewTextHandler(&log, nil)))
		line := fmt.Sprintf("open_files=%d max_connections=1000 needed=1128 accepted=%d\n", limit, want)
		if warns := want < 1000; got != want || warns != strings.HasSuffix(log.String(), line) || !warns && log.Len() > 0 {
			t.Errorf("limit %d: %d connections, want %d; logged %q, want %q: %t", limit, got, want, log.String(), line, warns)
		}
	}
	for limit, warns := range map[uint64]bool{1024: true, 10_127: true, 10_128: false, 20_000: false, 50_127: false, 50_128: false} {
		var log bytes.Buffer
		connectionsWithin(limit, defaultConnections, slog.New(slog.NewTextHandler(&log, nil)))
		if got := log.Len() > 0; got != warns {
			t.Errorf("limit %d with the default of TENDER_MAX_CONNECTIONS: logged %q, want a warning: %t", limit, log.String(), warns)
		}
	}
	if cfg, err := LoadConfig(nil); err != nil || cfg.MaxConnections != defaultConnections {
		t.Errorf("TENDER_MAX_CONNECTIONS is %d by default, want %d (error %v)", cfg.MaxConnections, defaultConnections, err)
	}
	limit, known := fileLimit()
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil || !known || limit != r.Max {
		t.Errorf("the limit is %d (known %t), want the hard limit, %d (error %v)", limit, known, r.Max, err)
	}
}
