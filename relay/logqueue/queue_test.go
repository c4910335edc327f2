package logqueue_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/logqueue"
)

// An output is a writer that a test blocks, or that fails.
type output struct {
	mu      sync.Mutex
	written bytes.Buffer  // guarded by mu
	failing error         // guarded by mu; returned after half of each write
	blocked chan struct{} // guarded by mu; a write waits until it is closed; nil does not block
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	blocked := o.blocked
	o.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failing != nil {
		n, _ := o.written.Write(p[:len(p)/2])
		return n, o.failing
	}
	return o.written.Write(p)
}

// block makes writes wait until the returned function is called.
func (o *output) block() (release func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	blocked := make(chan struct{})
	o.blocked = blocked
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.blocked == blocked {
			o.blocked = nil
		}
		close(blocked)
	}
}

// fail makes writes fail, or succeed if err is nil.
func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing = err
}

// records returns the written records. It fails the test if a line is not JSON.
func (o *output) records(t *testing.T) (all []map[string]any) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for line := range strings.Lines(o.written.String()) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("the log has the line %q: %v", line, err)
		}
		all = append(all, record)
	}
	return all
}

func newLog(to io.Writer) (*logqueue.Queue, *slog.Logger) {
	q, h := logqueue.NewHandler(to, func(w io.Writer) slog.Handler {
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
	})
	return q, slog.New(h)
}

// long makes records large, so that few of them fill a queue.
var long = strings.Repeat("x", 10<<10)

// TestB43_RecordsAreWrittenInOrder verifies that records keep their order and attributes, and that the writer ends.
func TestB43_RecordsAreWrittenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		q, log := newLog(&out)
		log = log.With(slog.String("node", "n")).WithGroup("g")
		for i := range 1000 {
			log.Log(t.Context(), []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}[i%4], "m", slog.Int("i", i))
			if i%100 == 0 {
				synctest.Wait()
			}
		}
		q.Flush(time.Second)
		records := out.records(t)
		for i, r := range records {
			if g, _ := r["g"].(map[string]any); g["i"] != float64(i) || r["node"] != "n" {
				t.Fatalf("record %d is %v", i, r)
			}
		}
		if s := q.Stats(); len(records) != 1000 || s.Dropped.Any() || s.Stalled != 0 {
			t.Errorf("%d records, %+v, want 1000 and nothing dropped", len(records), s)
		}
	})
}

// TestB43_ABlockedOutputDropsTheLeastImportant verifies that nobody waits for a blocked output, that the queue is bounded,
// that debug records leave space for warnings, errors and audit records, and that the log has the number of dropped
// records once it flows again.
func TestB43_ABlockedOutputDropsTheLeastImportant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		q, log := newLog(&out)
		release := out.block()
		began := time.Now()
		log.Debug("d", slog.String("long", long))
		synctest.Wait() // until the writer has taken it
		for range 199 {
			log.Debug("d", slog.String("long", long))
		}
		eight := func(add func(attr slog.Attr)) { // less than the part of the queue that is not for the classes below
			for range 8 {
				add(slog.String("long", long))
			}
		}
		eight(func(a slog.Attr) { log.Info("i", a) })
		eight(func(a slog.Attr) { log.Warn("w", a) })
		eight(func(a slog.Attr) { log.Error("e", a) })
		eight(func(a slog.Attr) { log.InfoContext(logqueue.WithAudit(t.Context()), "a", a) })
		for range 200 {
			log.Error("flood", slog.String("long", long))
		}
		log.InfoContext(logqueue.WithAudit(t.Context()), "a")
		time.Sleep(time.Minute)
		s := q.Stats()
		if s.Stalled != time.Minute || s.Dropped[logqueue.Debug] == 0 || s.Dropped[logqueue.Error] == 0 ||
			s.Dropped[logqueue.Info]+s.Dropped[logqueue.Warn]+s.Dropped[logqueue.Audit] != 0 {
			t.Errorf("a blocked output: %+v, want debug records and some errors dropped", s)
		}
		q.Flush(2 * time.Second)
		if took := time.Since(began); took != time.Minute+2*time.Second {
			t.Errorf("the test took %v, want a minute and the 2s of Flush", took)
		}
		release()
		q.Flush(time.Second)
		records, counts := out.records(t), map[any]int64{}
		for _, r := range records {
			counts[r["msg"]]++
		}
		if counts["d"]+s.Dropped[logqueue.Debug] != 200 || counts["flood"]+s.Dropped[logqueue.Error] != 200 ||
			counts["i"] != 8 || counts["w"] != 8 || counts["e"] != 8 || counts["a"] != 9 {
			t.Errorf("the log has %v, and %v were dropped", counts, s.Dropped)
		}
		var dropped map[string]any
		for _, r := range records {
			if r["msg"] == "log records dropped: the log was not read" {
				dropped = r
			}
		}
		if dropped["level"] != "WARN" || dropped["debug"] != float64(s.Dropped[logqueue.Debug]) ||
			dropped["error"] != float64(s.Dropped[logqueue.Error]) || dropped["audit"] != 0.0 || dropped["since"] == nil {
			t.Errorf("the record about dropped records is %v, want %v", dropped, s.Dropped)
		}
		if out.written.Len() > logqueue.Limit+logqueue.Limit/8 {
			t.Errorf("the queue held %d bytes, want at most %d", out.written.Len(), logqueue.Limit)
		}
		log.Info("after")
		q.Flush(time.Second)
		if last := out.records(t); last[len(last)-1]["msg"] != "after" || len(last) != len(records)+1 {
			t.Errorf("the log goes on with %v, want one record", last[len(records):])
		}
	})
}

// TestB43_TheQueueIsBounded verifies that records count until the output has them, also those that the writer has taken.
func TestB43_TheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		q, log := newLog(&out)
		release := out.block()
		for round := range 4 {
			for range 200 {
				log.Debug("d", slog.String("long", long))
			}
			synctest.Wait()
			accepted := int64(200*(round+1)) - q.Stats().Dropped[logqueue.Debug]
			if held := accepted*int64(len(long)) - int64(out.written.Len()); held > logqueue.Limit/2 || held < logqueue.Limit/3 {
				t.Errorf("round %d: the queue holds %d bytes of debug records, want at most %d", round, held, logqueue.Limit/2)
			}
			again := out.block()
			release() // one write
			synctest.Wait()
			release = again
		}
		release()
		q.Flush(time.Second)
	})
}

// TestB43_AFailingOutputIsTriedAgain verifies that records survive a full disk, which takes a part of a record, and that
// the log then has whole lines.
func TestB43_AFailingOutputIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		q, log := newLog(&out)
		out.fail(errors.New("no space left on device"))
		log.Info("first")
		synctest.Wait()
		log.Info("second")
		time.Sleep(1500 * time.Millisecond)
		if s := q.Stats(); s.Stalled == 0 {
			t.Errorf("a failing output: %+v, want it stalled", s)
		}
		out.fail(nil)
		q.Flush(2 * time.Second)
		records := out.records(t)
		if len(records) != 2 || records[0]["msg"] != "first" || records[1]["msg"] != "second" {
			t.Errorf("the log has %v, want both records", records)
		}
	})
}

// TestB43_ManyLoggers verifies with the race detector that goroutines share a queue whose output blocks now and then.
func TestB43_ManyLoggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		q, log := newLog(&out)
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				for i := range 500 {
					log.Info("m", slog.Int("i", i))
					_ = q.Stats()
				}
			})
		}
		for range 10 {
			release := out.block()
			synctest.Wait()
			release()
		}
		writers.Wait()
		q.Flush(time.Second)
		named := int64(0)
		records := out.records(t)
		for _, r := range records {
			if n, ok := r["info"].(float64); ok {
				named += int64(n)
				records = records[1:]
			}
		}
		if s := q.Stats(); int64(len(records))+s.Dropped[logqueue.Info] != 4000 || named != s.Dropped[logqueue.Info] {
			t.Errorf("%d records written, %d named as dropped, %v dropped, want 4000 together", len(records), named, s.Dropped)
		}
	})
}
