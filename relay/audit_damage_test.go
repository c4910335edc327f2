package relay_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// TestB43_DamageIsFoundAndReported damages bytes that all streams share. Within two minutes the relay logs the fault
// once, and each pass counts it.
func TestB43_DamageIsFoundAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		var log strings.Builder
		opts := instance.Of(o)
		opts.Options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		r := instance.Start(t, opts)
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType, "*")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s.Names(relaytest.ClusterType)) == 2 })

		time.Sleep(2 * relay.AuditEvery)
		synctest.Wait()
		before := r.Audit()
		if before.Faults != 0 || before.Passes == 0 || log.Len() > 0 {
			t.Fatalf("before: got %+v and log %q, want passes without faults", before, log.String())
		}
		for _, v := range r.AuditedViews() {
			for e := range v.Generation().Type(relaytest.ClusterType).Wildcard.Since(0) {
				if e.Name.String() == "b" {
					e.Resource.Value()[2] ^= 1
				}
			}
			v.Find("", nil) // takes the lock, so that the race detector orders the audit after the write
		}
		time.Sleep(3 * relay.AuditEvery)
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
		for _, want := range []string{
			"cached state is inconsistent", "name=b", `fault="content does not match its digest"`, "part=members",
		} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("log: got %q, want one line with %q", log.String(), want)
			}
		}
	})
}
