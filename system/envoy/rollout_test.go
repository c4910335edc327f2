package envoy_test

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

// TestEnvoy_Rollout: twenty Envoys of both variants use two replicas that distribute changes in stages. Only the two
// canaries receive three bad changes. These are a listener that Envoy rejects, a route that it accepts but that
// answers 503, and listeners of which it applies a part. The canaries return to exactly the last good configuration,
// also when they reconnect to either replica, when they restart, and when the replicas restart. No request through
// the other Envoys fails, endpoints keep changing, and the fix passes all stages. (I1, I4, I6, I8, I10, I11)
func TestEnvoy_Rollout(t *testing.T) {
	matrix(t, several, func(t *testing.T, c client) {
		f := newStagedFleet(t, c)
		for _, scenario := range []struct {
			name string
			run  func()
		}{{"rejected", f.rejected}, {"answers 503", f.failing}, {"half applied", f.halfApplied}, {"restarted", f.restarted}} {
			began := time.Now()
			scenario.run()
			t.Logf("%s: %v", scenario.name, time.Since(began).Round(100*time.Millisecond))
		}
		f.end()
	})
}

// rejected makes an edition with a cluster and a listener that Envoys reject, and then its fix.
func (f *stagedFleet) rejected() {
	f.origin.Put(relaytest.StaticCluster("bad-cluster", f.backends[0].Addr), invalid("bad-listener"))
	f.moveEndpoints()
	for i, reason := range f.halted() {
		if !strings.Contains(reason, rejection) {
			f.t.Errorf("replica %d halted with reason %q, want %q", i, reason, rejection)
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

// failing makes an edition with a route to a cluster without endpoints, which only the check detects, and then its fix.
func (f *stagedFleet) failing() {
	var before []int // the halt may come before all canaries were looked at
	for _, e := range f.canaries() {
		before = append(before, len(e.load.Report().Failures))
	}
	f.origin.Put(relaytest.StaticCluster("bad-cluster"), relaytest.Route("web", []string{"*"}, "bad-cluster"))
	f.moveEndpoints()
	for i, e := range f.canaries() {
		e.load.Await("answers with 503", func(r envoytest.Report) bool { return len(r.Failures) > before[i] })
	}
	f.moveEndpoints()
	for i, reason := range f.halted() {
		if !strings.Contains(reason, "the check rejected the edition") {
			f.t.Errorf("replica %d halted with reason %q, want a rejection by the check", i, reason)
		}
	}
	f.restored()
	f.whileHalted()
	f.envoys[0].Await("an end of errors", func() error {
		n, err := f.samples(errorsOfCanaries)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d samples", n)
		}
		return err
	})
	f.origin.Apply("", func(w *envoytest.World) {
		w.Remove(relaytest.ClusterType, "bad-cluster")
		w.Put(relaytest.Route("web", []string{"*"}, "one"), relaytest.Listener("second-fix", "web"))
	})
	f.pass("second-fix")
}

// halfApplied makes an edition of which Envoys apply a part, and then its fix. The first canary reconnects to the other
// replica.
func (f *stagedFleet) halfApplied() {
	f.applyHalf(0)
	for i, to := range []int{1, 1} {
		f.reconnect(f.envoys[i], f.replicas[to])
	}
	f.restored()
	f.whileHalted()
	f.origin.Apply("", func(w *envoytest.World) {
		w.Remove(relaytest.ListenerType, "bad-extra-0", "bad-listener")
		w.Put(relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, "one"), relaytest.Listener("third-fix", "web"))
	})
	f.pass("third-fix")
}

// restarted makes such an edition again, and kills the replicas while canaries have a part of it. The restarted
// replicas must still reject the edition. The second canary reconnects to the other replica.
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

// applyHalf makes a change of listeners of which one is invalid, and of the route to which all of them refer: they are one part
// of the rollout. Canaries apply the others and keep reporting the previous version. The links hold back what the replicas send
// them afterwards.
func (f *stagedFleet) applyHalf(round int) {
	f.t.Helper()
	extra := fmt.Sprint("bad-extra-", round)
	for _, e := range f.canaries() {
		e.link.Set(proxy.Link{Up: proxy.Way{Hold: true}}) // delays the NACK until the applied part was checked
	}
	f.origin.Put(named("web", extra), relaytest.Listener(extra, "web"), ambiguous("bad-listener", "web"),
		relaytest.Route("web", []string{"*", extra}, "one"))
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

// ambiguous returns a listener that Envoy rejects, although it refers to a route: two of its filter chains match the same.
func ambiguous(name, route string) proto.Message {
	l := relaytest.Listener(name, route)
	l.FilterChains = append(l.FilterChains, l.FilterChains[0])
	return l
}

// named returns a listener whose responses have a Server header with the given value.
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
