package relay

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB43_DamageIsFoundAndReported damages bytes that all streams share. Within two minutes the log says so, once, and
// the counter grows with each pass.
func TestB43_DamageIsFoundAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		cfg, err := LoadConfig([]string{"TENDER_LISTEN=127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Origin = []string{o.Target()}
		var log strings.Builder
		l, rest := relaytest.ListenPipe(1<<20), relaytest.ListenPipe(1)
		r, err := New(cfg, Options{
			Logger:    slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})),
			Listeners: []net.Listener{l}, RESTListeners: []net.Listener{rest}, AdminListeners: []net.Listener{relaytest.ListenPipe(1)}, DialOptions: o.DialOptions(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }() // awaited below
		conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
			l.DialOption())
		if err != nil {
			t.Fatal(err)
		}
		c := relaytest.NewClient(t, conn, relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType, "*")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s.Names(relaytest.ClusterType)) == 2 })

		time.Sleep(2 * auditEvery)
		synctest.Wait()
		before := r.Audit()
		if before.Faults != 0 || before.Passes == 0 || log.Len() > 0 {
			t.Fatalf("before: got %+v and log %q, want passes without faults", before, log.String())
		}
		for _, v := range r.groups.auditable() {
			for e := range v.Generation().Type(relaytest.ClusterType).Wildcard.Since(0) {
				if e.Name.String() == "b" {
					e.Resource.Value()[2] ^= 1
				}
			}
			v.Find("", nil) // takes the lock, so that for the race detector the audit comes later
		}
		time.Sleep(3 * auditEvery)
		synctest.Wait()
		got := r.Audit()
		passes := got.Passes - before.Passes
		if passes < 2 || got.Faults != passes || len(got.Where) != 1 {
			t.Errorf("got %d faults, %v, in %d passes; want one in each of at least 2", got.Faults, got.Where, passes)
		}
		for where := range got.Where {
			if where.Part != "members" {
				t.Errorf("got a fault in %+v, want it in the members", where)
			}
		}
		for _, want := range []string{"cached state is inconsistent", "name=b", `fault="its bytes are not those that the origin sent"`, "part=members"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("log: got %q, want one line with %q", log.String(), want)
			}
		}
		c.Close()
		_ = conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestB43_AnAuditTakesItsShare: work goes on for auditWork of each auditTick.
func TestB43_AnAuditTakesItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, pauses := time.Now(), 0
		goOn := pace(t.Context())
		for range 100 {
			time.Sleep(time.Millisecond) // a piece of work
			before := time.Now()
			if !goOn() {
				t.Fatal("told to end")
			}
			if time.Since(before) > 0 {
				pauses++
			}
		}
		if got, want := time.Since(began), 20*auditTick+100*time.Millisecond; got != want || pauses != 20 {
			t.Errorf("100 ms of work: took %v with %d pauses, want %v with 20", got, pauses, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		goOn = pace(ctx)
		time.Sleep(auditWork)
		if goOn() {
			t.Error("not told to end")
		}
	})
}

// TestB43_FaultsThatStayAreLoggedOnce logs a bounded number of faults, each once, and counts them in each pass.
func TestB43_FaultsThatStayAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	a := &auditor{log: slog.New(slog.NewTextHandler(&log, nil))}
	view, w := cache.New(cache.Config{})
	view.Watch().Subscribe("t", strings.Split("abcdefghijklmnopqrst", ""))
	w.TakeDemand()
	watch := view.Watch()
	for _, name := range strings.Split("abcdefghijklmnopqrst", "") {
		watch.Subscribe("t", []string{name})
	}
	watch.Close() // though it watches names still
	v := auditable{view, "all"}
	onwards := func() bool { return true }
	faults := a.audit(v, nil, onwards)
	if len(faults) != 20 || a.stats().Faults != 20 {
		t.Errorf("got %d faults and %+v, want 20", len(faults), a.stats())
	}
	if got := strings.Count(log.String(), "level=ERROR"); got != auditLines+1 || !strings.Contains(log.String(), "more=10") {
		t.Errorf("got %d lines, want %d, and one that says how many more:\n%s", got, auditLines, log.String())
	}
	log.Reset()
	if again := a.audit(v, faults, onwards); len(again) != 20 || log.Len() > 0 || a.stats().Faults != 40 {
		t.Errorf("again: got %d faults, log %q and %+v, want 20 counted and none logged", len(again), log.String(), a.stats())
	}
}
