// Package logs keeps the log of a relay for tests that wait for a text in it.
//
// The package is not a stable API: programs that embed Tender use package relay.
package logs

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A Log keeps the log of a relay. The zero value is empty. Its methods may be called from any goroutine.
type Log struct {
	mu      sync.Mutex
	text    bytes.Buffer  // guarded by mu
	changed chan struct{} // guarded by mu; closed by the next Write; nil without waiters
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return l.text.Write(b)
}

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Len returns the number of logged bytes.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Len()
}

// Count returns the number of occurrences of a text.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Await waits until the log contains a text after its first mark bytes.
func (l *Log) Await(tb wait.TB, mark int, text string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), wait.Patience)
	defer cancel()
	for {
		l.mu.Lock()
		found := bytes.Contains(l.text.Bytes()[mark:], []byte(text))
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			tb.Fatalf("the log does not contain %q:\n%s", text, l)
		}
	}
}

// OutputOf returns the output of a test, if tb has one.
func OutputOf(tb wait.TB) io.Writer {
	if tb, ok := tb.(interface{ Output() io.Writer }); ok {
		return tb.Output()
	}
	return io.Discard
}
