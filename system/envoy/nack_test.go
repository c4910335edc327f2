package envoy_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// rejection is part of the error with which every Envoy rejects the listener of invalid.
const rejection = "no filter chains specified"

// invalid returns a listener that every Envoy rejects.
func invalid(name string) *listenerpb.Listener {
	l := relaytest.Listener(name, name)
	l.FilterChains = nil
	return l
}

// patient returns a Listener that waits for its routes without a limit, so that a slow machine does not change the result.
func patient(name, routes string) *listenerpb.Listener {
	l, m := relaytest.Listener(name, routes), new(hcmpb.HttpConnectionManager)
	filter := l.GetFilterChains()[0].GetFilters()[0]
	if err := filter.GetTypedConfig().UnmarshalTo(m); err != nil {
		panic(err)
	}
	unlimited(m.GetRds().GetConfigSource())
	filter.ConfigType = &listenerpb.Filter_TypedConfig{TypedConfig: relaytest.Pack(m)}
	return l
}

// awaitSum waits until the sum of a statistic over all types is at least a value.
func awaitSum(e *envoytest.Envoy, name string, least int64) {
	e.Await(name, func() error {
		if got := e.Stats(envoytest.Judged).Sum(name); got < least {
			return fmt.Errorf("%s is %d, want at least %d", name, got, least)
		}
		return nil
	})
}

// clientStatus returns the response of the relay's CSDS as text.
func clientStatus(t *testing.T, r *envoytest.Relay) string {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.Admin, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the call has ended
	resp, err := statuspb.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(t.Context(), new(statuspb.ClientStatusRequest))
	if err != nil {
		t.Fatalf("CSDS: %v", err)
	}
	return resp.String()
}

// TestEnvoy_NACK: the error of an Envoy about an invalid listener appears in the log, in `tender status`, on the
// status page and in CSDS. An Envoy of another group is not affected. The repaired listener is accepted. The Envoy
// rejects no more updates than in the direct run. (B.9, R029, C10)
func TestEnvoy_NACK(t *testing.T) {
	scenario(t, ads, func(t *testing.T, s *setup) {
		s.origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
		s.origin.Apply("other", func(w *envoytest.World) { w.Put(web("one", envoytest.NewBackend(t, "other"))...) })
		rejecter := s.envoy(t, "rejecter")
		o := s.options(s.server, "bystander")
		o.Node.Cluster = "other"
		bystander := envoytest.Start(t, o)
		loads := []*envoytest.Load{
			envoytest.StartLoad(t, rejecter.Listener("web"), interval), envoytest.StartLoad(t, bystander.Listener("web"), interval),
		}
		before := bystander.Stats(envoytest.Judged)

		s.origin.Put(invalid("broken"))
		awaitSum(rejecter, "update_rejected", 1)
		if s.relay != nil {
			showRejection(t, s.relay, rejecter)
		}
		repaired := relaytest.Listener("broken", "web")
		s.origin.Put(repaired)
		rejecter.Listener("broken")
		if s.relay != nil {
			rejecter.Await("tender status without a rejection", func() error { // the ACK may not have reached the relay yet
				if got := s.relay.Tender("status"); strings.Contains(got, rejection) {
					return errors.New(got)
				}
				return nil
			})
		}
		loads[0].Continue(20)
		s.judge(bystander, loads[1].Stop())
		s.requests(loads[0].Stop())
		s.updates(rejecter) // at least one rejection; go-control-plane sends the listener again at once
		for _, name := range []string{"lds.update_success", "cds.update_success", "listener_modified", "cluster_modified"} {
			if got := bystander.Stats(envoytest.Judged).Sum(name); got != before.Sum(name) {
				t.Errorf("Envoy of the other group: %s is %d, want %d as before", name, got, before.Sum(name))
			}
		}
	}, "TENDER_NODE_GROUP_BY=cluster")
}

// showRejection waits until the API shows the error of an Envoy. The log, `tender status`, CSDS and the page must then
// show it as well.
func showRejection(t *testing.T, r *envoytest.Relay, e *envoytest.Envoy) {
	t.Helper()
	e.Await("rejection in /api/v1/clients", func() error {
		if page := r.Get("/api/v1/clients?rejected=true"); !bytes.Contains(page, []byte(e.ID())) || !bytes.Contains(page, []byte(rejection)) {
			return fmt.Errorf("%s", page)
		}
		return nil
	})
	for where, got := range map[string]string{
		"log": r.Log(), "tender status": r.Tender("status"), "CSDS": clientStatus(t, r),
		"page": string(r.Get("/resource?type=" + relaytest.ListenerType + "&name=broken")),
	} {
		if !strings.Contains(got, rejection) || !strings.Contains(got, e.ID()) {
			t.Errorf("%s: no rejection by %s with %q:\n%s", where, e.ID(), rejection, got)
		}
	}
}

// TestEnvoy_HalfApplied: an Envoy applies the valid listeners of a response that it rejects, and keeps reporting the
// previous version. When the control plane reverts the change, an Envoy that reconnects to the same relay or to
// another one must get exactly the served state. In the direct run, it keeps the listeners that it applied. (B.3,
// envoy#12592)
func TestEnvoy_HalfApplied(t *testing.T) {
	compared(t, ads, func(t *testing.T, c client, o *outcome) {
		origin := envoytest.NewControlPlane(t)
		one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
		origin.Put(append(web("one", one), relaytest.Cluster("two"), relaytest.Endpoints("two", two.Addr),
			relaytest.Route("web-two", []string{"*"}, "two"))...)
		good := []proto.Message{relaytest.Listener("web", "web")}
		servers := []string{origin.Addr, origin.Addr}
		var watchers []*relaytest.Client
		if !o.direct {
			for i := range servers {
				r := envoytest.NewRelay(t, origin.Addr)
				servers[i], watchers = r.Addr, append(watchers, watchListeners(t, r))
			}
		}
		link := proxy.New(t, servers[0])
		e := envoytest.Start(t, c.options(link.Addr(), "edge-1"))
		load := envoytest.StartLoad(t, e.Listener("web"), interval)
		load.Continue(10)
		before := e.Config()

		for round, to := range servers {
			origin.Put(relaytest.Listener("web", "web-two"), relaytest.Listener("extra", "web"), invalid("broken"))
			e.Listener("extra") // applied, although the response is rejected
			awaitSum(e, "update_rejected", int64(round+1))

			link.Set(proxy.Link{Refuse: true})
			link.Cut()
			origin.Apply("", func(w *envoytest.World) {
				w.Put(good...)
				w.Remove(relaytest.ListenerType, "extra", "broken")
			})
			for _, c := range watchers {
				c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ListenerType]) == 1 })
			}
			link.Forward(to)
			link.Set(proxy.Link{})
			o.await(e, "reverted configuration", func() error { return e.Differs(before) })
			o.answers(load, one)
		}
		o.requests(load.Stop())
	})
}

// TestEnvoy_HalfAppliedBeforeAKill: as TestEnvoy_HalfApplied, but the relay is killed before or after the control plane
// reverts the change, and another one restores its snapshot. The memory of former content is part of the snapshot, so
// that the Envoy gets exactly the served state. (B.3, B.42)
func TestEnvoy_HalfAppliedBeforeAKill(t *testing.T) {
	for _, tt := range []struct {
		when    string
		happens func(kill, revert func(), stored func(extra bool))
	}{
		{"killed before the revert", func(kill, revert func(), stored func(extra bool)) {
			stored(true)
			kill()
			revert()
		}},
		{"killed after the revert", func(kill, revert func(), stored func(extra bool)) {
			stored(true) // else the snapshot from before the change would be awaited below
			revert()
			stored(false)
			kill()
		}},
	} {
		t.Run(tt.when, func(t *testing.T) {
			matrix(t, ads, func(t *testing.T, c client) {
				o := &outcome{t: t}
				origin := envoytest.NewControlPlane(t)
				one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
				origin.Put(append(web("one", one), relaytest.Cluster("two"), relaytest.Endpoints("two", two.Addr),
					relaytest.Route("web-two", []string{"*"}, "two"), patient("web", "web"))...)
				dir := t.TempDir()
				start := func() *envoytest.RelayProcess {
					return envoytest.StartRelay(t, origin.Addr, "TENDER_SNAPSHOT_DIR="+dir, "TENDER_COLD_WAIT=1s")
				}
				r := start()
				link := proxy.New(t, r.Addr)
				e := envoytest.Start(t, c.options(link.Addr(), "edge-1"))
				load := envoytest.StartLoad(t, e.Listener("web"), interval)
				load.Continue(10)
				before := e.Config()

				origin.Put(patient("web", "web-two"), patient("extra", "web"), invalid("broken"))
				e.Listener("extra") // applied, although the response is rejected
				awaitSum(e, "update_rejected", 1)
				restored := make(chan struct{})
				link.Set(proxy.Link{Answer: func(net.Conn) { // refused ones would make Envoy wait longer each time, and longer than for its route
					select {
					case <-restored:
					case <-t.Context().Done():
					}
				}})
				link.Cut()
				tt.happens(r.Kill, func() {
					origin.Apply("", func(w *envoytest.World) {
						w.Put(patient("web", "web"))
						w.Remove(relaytest.ListenerType, "extra", "broken")
					})
				}, func(extra bool) { awaitStored(r, dir, extra) })
				r = start()
				link.Forward(r.Addr)
				link.Set(proxy.Link{})
				close(restored)
				o.await(e, "reverted configuration", func() error { return e.Differs(before) })
				o.answers(load, one)
				o.requests(load.Stop())
				if o.failed > 0 || len(o.missing) > 0 {
					t.Errorf("outcome %v, want no failure", o)
				}
			})
		})
	}
}

// awaitStored waits until the snapshot of a relay has the listeners that a test serves, with or without the one named extra.
func awaitStored(r *envoytest.RelayProcess, dir string, extra bool) {
	r.Await("snapshot", func() error {
		files, err := filepath.Glob(filepath.Join(dir, "*.snapshot"))
		if err != nil {
			return err
		}
		if len(files) != 1 {
			return fmt.Errorf("snapshots %q, want one", files)
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			return err
		}
		s, err := cache.DecodeSnapshot(b)
		if err != nil {
			return err
		}
		names := make(map[string]bool)
		for _, of := range s.Types {
			for _, e := range of.Wildcard.Entries {
				names[of.Key+" "+e.Name] = true
			}
		}
		if !names[relaytest.ListenerType+" web"] || names[relaytest.ListenerType+" extra"] != extra {
			return fmt.Errorf("stored %v", names)
		}
		return nil
	})
}

// watchListeners returns a client of a relay that subscribes to all listeners.
func watchListeners(t *testing.T, r *envoytest.Relay) *relaytest.Client {
	t.Helper()
	conn, err := grpc.NewClient(r.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the client has ended
	c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Node: relaytest.EnvoyNode("watcher"), AutoAck: true})
	c.Subscribe(relaytest.ListenerType)
	return c
}
