package relay_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB43_DamageIsFoundToldAndMended: somebody writes to bytes that all streams share. Within
// two minutes the log and the counter say so, and clients get what the origin said.
func TestB43_DamageIsFoundToldAndMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		var log strings.Builder
		opts := o.RelayOptions()
		opts.Options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		r := relaytest.StartRelay(t, opts)
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType, "*")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s.Names(relaytest.ClusterType)) == 2 })

		time.Sleep(2 * relay.AuditEvery)
		synctest.Wait()
		if got := r.Audit(); got.Faults != 0 || got.Passes == 0 || log.Len() > 0 {
			t.Fatalf("before: got %+v and log %q, want passes without faults", got, log.String())
		}
		responses := len(c.Responses())
		for _, v := range r.AuditedViews() {
			for e := range v.Generation().Type(relaytest.ClusterType).Wildcard.Since(0) {
				if e.Name.String() == "b" {
					e.Resource.Value()[2] ^= 1
				}
			}
			v.Find("", nil) // takes the lock, so that for the race detector the audit comes later
		}
		time.Sleep(2 * relay.AuditEvery)
		synctest.Wait()
		got := r.Audit()
		if got.Faults != 1 || len(got.Where) != 1 {
			t.Errorf("got %d faults, %v; want 1", got.Faults, got.Where)
		}
		for where, n := range got.Where {
			if where.Part != "members" || n != 1 {
				t.Errorf("got %d faults in %+v, want one in the members", n, where)
			}
		}
		for _, want := range []string{"contradicts itself", "name=b", `fault="its bytes are not those that the origin sent"`, "part=members"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("log: got %q, want one line with %q", log.String(), want)
			}
		}
		told := c.Responses()[responses:]
		if len(told) != 1 || len(told[0].Resources) != 1 || told[0].Resources[0].Digest != relaytest.DigestOf(relaytest.Cluster("b")) {
			t.Errorf("told after that: got %v, want b as the origin has it", told)
		}
		for _, v := range r.AuditedViews() {
			for f := range v.Audit(func() bool { return true }) {
				t.Errorf("mended, and yet %+v", f)
			}
		}
	})
}
