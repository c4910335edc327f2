package envoytest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestEnvoy_Rollout: twenty Envoys of both variants below two replicas are spared three bad changes, which only the two canaries
// ever have: a listener that Envoy rejects, a route that it accepts and that answers 503, and listeners of which it applies a part.
// The canaries are back on exactly the last good, also those that reconnect to either replica, or restart, or whose replicas do. No
// request through the others fails, endpoints go on changing, and the fix passes the stages. (I1, I4, I6, I8, I10, I11)
func TestEnvoy_Rollout(t *testing.T) {
	t.Parallel()
	f := newStagedFleet(t)
	for _, scenario := range []struct {
		name string
		run  func()
	}{{"rejected", f.rejected}, {"answers 503", f.failing}, {"half applied", f.halfApplied}, {"restarted", f.restarted}} {
		began := time.Now()
		scenario.run()
		t.Logf("%s: %v", scenario.name, time.Since(began).Round(100*time.Millisecond))
	}
	f.end()
}

// rejected is an edition of a cluster and of a listener that Envoys reject.
func (f *stagedFleet) rejected() {
	f.origin.Put(relaytest.StaticCluster("bad-cluster", f.backends[0].Addr), invalid("bad-listener"))
	f.moveEndpoints()
	for i, reason := range f.halted() {
		if !strings.Contains(reason, rejection) {
			f.t.Errorf("replica %d halted by %q, want %q", i, reason, rejection)
		}
	}
	for _, e := range f.canaries() {
		awaitSum(e.Envoy, "update_rejected", 1)
	}
	f.restored()
	f.whileHalted()
	f.origin.Apply("", func(w *envoytest.World) {
		w.Remove(relaytest.ClusterType, "bad-cluster")
		w.Remove(relaytest.ListenerType, "bad-listener")
		w.Put(relaytest.Listener("first-fix", "web"))
	})
	f.pass("first-fix")
}

// failing is an edition of a route to a cluster without endpoints.
func (f *stagedFleet) failing() {
	f.origin.Put(relaytest.StaticCluster("bad-cluster"), relaytest.Route("web", []string{"*"}, "bad-cluster"))
	f.moveEndpoints()
	for _, e := range f.canaries() {
		before := len(e.load.Report().Failures)
		e.load.Await("answers with 503", func(r envoytest.Report) bool { return len(r.Failures) > before })
	}
	f.moveEndpoints()
	for i, reason := range f.halted() {
		if !strings.Contains(reason, "the check rejected the edition") {
			f.t.Errorf("replica %d halted by %q, want the check", i, reason)
		}
	}
	f.restored()
	f.whileHalted()
	f.envoys[0].Await("an end of errors", func() error {
		v, err := f.verdict(errorsOfCanaries)
		if err == nil && !v.Allowed {
			err = errors.New(v.RejectReason)
		}
		return err
	})
	f.origin.Apply("", func(w *envoytest.World) {
		w.Remove(relaytest.ClusterType, "bad-cluster")
		w.Put(relaytest.Route("web", []string{"*"}, "one"), relaytest.Listener("second-fix", "web"))
	})
	f.pass("second-fix")
}

// halfApplied is an edition that Envoys apply a part of. The first canary comes back to the other replica.
func (f *stagedFleet) halfApplied() {
	f.applyHalf(0)
	for i, to := range []int{1, 1} {
		f.reconnect(f.envoys[i], f.replicas[to])
	}
	f.restored()
	f.whileHalted()
	f.origin.Apply("", func(w *envoytest.World) {
		w.Remove(relaytest.ListenerType, "bad-extra-0", "bad-listener")
		w.Put(relaytest.Listener("web", "web"), relaytest.Listener("third-fix", "web"))
	})
	f.pass("third-fix")
}

// restarted is such an edition again, whose rejection the replicas survive: they are killed while canaries have half of it. The
// second canary comes back to the other replica.
func (f *stagedFleet) restarted() {
	f.awaitSaved("third-fix")
	f.applyHalf(1)
	for _, e := range f.canaries() {
		e.link.Set(proxy.Link{Refuse: true})
		e.link.Cut()
	}
	f.restartReplicas()
	for _, e := range f.canaries() {
		f.reconnect(e, f.replicas[0])
	}
	f.restored()
	f.whileHalted()
}

// applyHalf makes a change of listeners of which one is invalid: canaries apply the others, go on reporting the version before, and
// what the replicas then send them is held back.
func (f *stagedFleet) applyHalf(round int) {
	f.t.Helper()
	extra := fmt.Sprint("bad-extra-", round)
	for _, e := range f.canaries() {
		e.link.Set(proxy.Link{Up: proxy.Way{Hold: true}}) // what they apply is seen before the relay knows
	}
	f.origin.Put(named("web", extra), relaytest.Listener(extra, "web"), invalid("bad-listener"))
	for _, e := range f.canaries() {
		e.Listener(extra)
		e.Await("half of the edition", func() error {
			if got := e.Config()["dynamic_listeners/web"]; !strings.Contains(got, extra) {
				return errors.New(got)
			}
			return nil
		})
	}
	for _, e := range f.canaries() {
		e.link.Set(proxy.Link{Down: proxy.Way{Hold: true}})
	}
	f.halted()
}

// named returns a listener whose answers name a server.
func named(name, server string) proto.Message {
	l := relaytest.Listener(name, name)
	filter := l.GetFilterChains()[0].GetFilters()[0]
	m := new(hcmpb.HttpConnectionManager)
	if err := filter.GetTypedConfig().UnmarshalTo(m); err != nil {
		panic("unpack: " + err.Error())
	}
	m.ServerName = server
	filter.ConfigType = &listenerpb.Filter_TypedConfig{TypedConfig: relaytest.Pack(m)}
	return l
}
