package envoy_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A replica is a management server that can be stopped: a relay process or, in a direct run, a control plane.
type replica struct {
	t      *testing.T
	addr   string
	plane  *envoytest.ControlPlane // control plane of the relay, or the server itself
	binary string                  // binary of the relay; empty in a direct run
	env    []string                // further variables of the relay
	relay  *envoytest.RelayProcess // nil in a direct run
}

// start starts the server on its address.
func (r *replica) start() {
	r.t.Helper()
	if r.binary == "" {
		r.plane.Restart()
		return
	}
	r.relay = envoytest.StartRelayOf(r.t, r.binary, r.plane.Addr, append(r.env, "TENDER_LISTEN="+r.addr, "TENDER_DRAIN=2s")...)
}

// drain ends the server by SIGTERM and waits until it has ended. go-control-plane cannot drain and is stopped instead.
func (r *replica) drain() {
	r.t.Helper()
	if r.binary == "" {
		r.plane.Stop()
		return
	}
	r.relay.Signal(syscall.SIGTERM)
	r.relay.Wait()
}

// kill ends the server without a drain.
func (r *replica) kill() {
	r.t.Helper()
	if r.binary == "" {
		r.plane.Stop()
		return
	}
	r.relay.Kill()
}

// A tier is two replicas and two Envoys that use them, each with a load.
type tier struct {
	*outcome
	client
	planes   []*envoytest.ControlPlane
	replicas []*replica
	backends []*envoytest.Backend
	envoys   []*envoytest.Envoy
	loads    []*envoytest.Load
	before   int64 // result of modified at the start
	changes  int   // number of changes so far
}

// newTier starts two replicas of a binary and two Envoys. It calls own for the variables of each replica.
func newTier(t *testing.T, c client, o *outcome, binary string, own func() []string) *tier {
	t.Helper()
	f := &tier{outcome: o, client: c}
	for i := range 2 {
		f.backends = append(f.backends, envoytest.NewBackend(t, fmt.Sprint("backend-", i)))
	}
	for i := range 2 {
		if i == 0 || o.direct {
			plane := envoytest.NewControlPlane(t)
			plane.Put(web("one", f.backends[0])...)
			f.planes = append(f.planes, plane)
		}
		r := &replica{t: t, plane: f.planes[len(f.planes)-1], binary: binary, env: own()}
		if r.addr = r.plane.Addr; !o.direct {
			r.addr = proxy.FreeAddress(t)
			r.start()
		}
		f.replicas = append(f.replicas, r)
	}
	for i := range 2 {
		e := f.envoy(fmt.Sprint("edge-", i), f.replicas...)
		load := envoytest.StartLoad(t, e.Listener("web"), interval)
		load.Continue(10)
		f.envoys, f.loads = append(f.envoys, e), append(f.loads, load)
	}
	f.before = modified(f.envoys...)
	return f
}

// envoy starts an Envoy whose management cluster has the addresses of some replicas.
func (f *tier) envoy(id string, of ...*replica) *envoytest.Envoy {
	f.t.Helper()
	var addrs []string
	for _, r := range of {
		addrs = append(addrs, r.addr)
	}
	o := f.options(addrs[0], id)
	o.Edit = func(b *bootstrappb.Bootstrap) {
		for _, c := range b.GetStaticResources().GetClusters() {
			locality := c.GetLoadAssignment().GetEndpoints()[0]
			locality.LbEndpoints = nil
			for _, endpoint := range relaytest.Endpoints("", addrs...).GetEndpoints()[0].GetLbEndpoints() {
				locality.LbEndpoints = append(locality.LbEndpoints, proto.CloneOf[*endpointpb.LbEndpoint](endpoint))
			}
		}
	}
	return envoytest.Start(f.t, o)
}

// arrives makes a change, waits until it has reached all Envoys, and logs the time since began.
func (f *tier) arrives(what string, began time.Time) {
	f.t.Helper()
	f.changes++
	next := f.backends[f.changes%2]
	for _, plane := range f.planes {
		plane.Put(relaytest.Endpoints("one", next.Addr))
	}
	for _, load := range f.loads {
		f.answers(load, next)
	}
	f.t.Logf("%s: a change reached both Envoys after %v", what, time.Since(began).Round(time.Millisecond))
}

// end stops the loads and checks the outcome of all Envoys.
func (f *tier) end() {
	f.t.Helper()
	f.unmodified(f.before, f.envoys...)
	for i, e := range f.envoys {
		f.judge(e, f.loads[i].Stop())
	}
}

// TestEnvoy_RelaysComeAndGo: two relays serve Envoys. One drains, the other is killed, and one restarts on the same
// address. No request fails, nothing is modified or rejected, and changes keep arriving. The direct run stops and
// starts two control planes instead. (B.3, B.33)
func TestEnvoy_RelaysComeAndGo(t *testing.T) {
	compared(t, ads, func(t *testing.T, c client, o *outcome) {
		var binary string
		if !o.direct {
			binary = envoytest.Command(t)
		}
		f := newTier(t, c, o, binary, func() []string { return nil })
		a, b := f.replicas[0], f.replicas[1]
		f.arrives("before", time.Now())

		began := time.Now()
		a.drain()
		f.arrives("drain", began)
		a.start()

		began = time.Now()
		b.kill()
		f.arrives("SIGKILL", began)
		b.start()

		began = time.Now()
		a.drain()
		a.start()
		f.arrives("restart", began)
		f.end()
	})
}

// TestEnvoy_Upgrade: two relays of the previous commit are upgraded under load, one after the other, and then
// downgraded. Each new process restores the snapshot of the other version. The control plane is down meanwhile, so an
// Envoy that starts is served from the snapshot alone. No request fails, nothing is modified or rejected, and changes
// keep arriving. The direct run would be the same as that of TestEnvoy_RelaysComeAndGo. (B.3, B.33, B.42)
func TestEnvoy_Upgrade(t *testing.T) {
	previous, current := envoytest.Previous(t), envoytest.Command(t)
	matrix(t, ads, func(t *testing.T, c client) {
		dir, n := t.TempDir(), 0
		f := newTier(t, c, &outcome{t: t}, previous, func() []string {
			n++
			return []string{"TENDER_SNAPSHOT_DIR=" + filepath.Join(dir, fmt.Sprint(n)), fmt.Sprint("TENDER_NODE_ID=tender/", n)}
		})
		for _, to := range []string{current, previous} {
			for _, r := range f.replicas {
				f.replace(r, to)
			}
		}
		f.end()
	})
}

// replace restarts a relay with another binary while the control plane is down. One Envoy uses only this relay, and
// another one starts while the control plane is down.
func (f *tier) replace(r *replica, binary string) {
	f.t.Helper()
	resident := f.envoy("resident", r) // gives this relay at least one client
	resident.AwaitSame(f.envoys[0])
	before := modified(resident)
	// A restored set is confirmed once the control plane has added nothing to it for 15 s.
	if err := resident.Within(3*relaytest.Patience, func() error { return incomplete(r.relay) }); err != nil {
		f.t.Fatalf("relay: wildcard sets are not confirmed: %v", err)
	}

	began := time.Now()
	f.planes[0].Stop()
	r.drain()
	r.binary = binary
	r.start()
	newcomer := f.envoy("newcomer", r)
	newcomer.AwaitSame(f.envoys[0])
	f.judge(newcomer, envoytest.Report{})
	f.planes[0].Restart()
	f.arrives("replaced by "+filepath.Base(binary), began)
	resident.AwaitSame(f.envoys[0])
	f.unmodified(before, resident)
	f.judge(resident, envoytest.Report{})
	newcomer.Kill()
	resident.Kill()
}

// incomplete returns an error unless a relay has confirmed the wildcard sets of clusters and listeners, which its
// snapshot then contains.
func incomplete(r interface{ Get(path string) []byte }) error {
	var status struct {
		Views []struct {
			Types []struct{ Name, Phase string }
		}
	}
	if err := json.Unmarshal(r.Get("/api/v1/status"), &status); err != nil {
		return err
	}
	complete := 0
	for _, view := range status.Views {
		for _, of := range view.Types {
			if (of.Name == "cds" || of.Name == "lds") && of.Phase == "confirmed" {
				complete++
			}
		}
	}
	if complete < 2 {
		return fmt.Errorf("%+v", status.Views)
	}
	return nil
}
