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

// TestB47_LowFileLimitIsLogged checks that the relay warns at its start if it may open fewer files than
// TENDER_MAX_CONNECTIONS needs, with both numbers. The Go runtime has raised the limit as far as possible.
func TestB47_LowFileLimitIsLogged(t *testing.T) {
	for limit, warned := range map[uint64]bool{1024: true, 1127: true, 1128: false, 1 << 63: false} {
		var log bytes.Buffer
		warnFileLimit(1000, limit, slog.New(slog.NewTextHandler(&log, nil)))
		want := fmt.Sprintf("open_files=%d max_connections=1000 needed=1128\n", limit)
		if warned != strings.HasSuffix(log.String(), want) || !warned && log.Len() > 0 {
			t.Errorf("limit %d: logged %q, want %q: %t", limit, log.String(), want, warned)
		}
	}
	limit, known := fileLimit()
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil || !known || limit != r.Max {
		t.Errorf("the limit is %d (known %t), want the hard limit, %d (error %v)", limit, known, r.Max, err)
	}
}
