package conformance_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// isReady fails the test unless /readyz, the status and gRPC health agree on whether the relay is ready. It
// returns the body of /readyz.
func isReady(t *testing.T, r *running, when string, want bool) (text string) {
	t.Helper()
	code, text := httpGet(t, r.DialAdmin, "/readyz")
	if s := statusOf(t, r); s.Relay.Ready != want || (code == http.StatusOK) != want || (r.Ready() == nil) != want {
		t.Errorf("%s: /readyz is %d %q, the status is %v; want ready: %v", when, code, text, s.Relay.Ready, want)
	}
	return text
}

// refusing starts an origin that refuses streams with a code until the code is OK.
func refusingOrigin(t *testing.T, address string) (o *relaytest.Origin, code *atomic.Uint32) {
	t.Helper()
	code = new(atomic.Uint32)
	return relaytest.NewOrigin(t,
		relaytest.OriginOptions{Memory: true, Address: address, ServerOptions: []grpc.ServerOption{
			grpc.ChainStreamInterceptor(func(srv any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo,
				handler grpc.StreamHandler) error {
				if c := codes.Code(code.Load()); c != codes.OK {
					return status.Error(c, "error of the origin")
				}
				return handler(srv, rpc)
			}),
		}}), code
}

// A relay without clients is ready once its origin has responded to it, in either variant, or has kept its stream
// open for 15s.
func TestH08_WithoutClients(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Change(func(b *relaytest.Behaviour) { b.SotW = v == relaytest.SotW })
		r := start(t, o, operated)
		synctest.Wait()
		isReady(t, r, "answered", true)
		o.Change(func(b *relaytest.Behaviour) { b.SilentProbes = true })
		r = start(t, o, operated)
		sleep(14 * time.Second)
		if text := isReady(t, r, "silent for 14s", false); !strings.Contains(text,
			"not ready: origin "+o.Target()+" has not responded yet") {
			t.Errorf("/readyz is %q", text)
		}
		sleep(2 * time.Second)
		isReady(t, r, "silent for 16s", true)
		if n := len(o.State().Streams); n != 0 {
			t.Errorf("got %d streams in addition to the probes", n)
		}
		probes := o.State().Probes
		time.Sleep(settled)
		if n := o.State().Probes; n != probes {
			t.Errorf("got %d probes of ready relays", n-probes)
		}
	})
}

// A relay is not ready until its first origin is reachable, for any time, and stays ready if that origin is down
// later.
func TestH08_OriginDown(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Stop()
		r := start(t, o, operated)
		sleep(10 * time.Minute)
		if text := isReady(t, r, "down", false); !strings.Contains(text,
			"not ready: origin "+o.Target()+" is not connected") || !strings.Contains(text, "last error: ") {
			t.Errorf("/readyz is %q", text)
		}
		o.Restart()
		sleep(7 * time.Second)
		isReady(t, r, "there", true)
		o.Stop()
		sleep(settled)
		isReady(t, r, "lost later", true)
		r.Cancel()
	})
}

// A second origin that is unreachable delays readiness for TENDER_COLD_WAIT. One that refuses the relay prevents
// it.
func TestH08_SecondOriginDown(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, first *relaytest.Origin) {
		o, code := refusingOrigin(t, "x")
		further := map[string][]*relaytest.Origin{"x": {o}}
		env := []string{operated, "TENDER_ROUTES=type:lds=x", "TENDER_COLD_WAIT=20s"}
		o.Stop()
		r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{first}, Named: further}, env...)
		sleep(19 * time.Second)
		if text := isReady(t, r, "down for 19s", false); strings.Contains(text, first.Target()) ||
			!strings.Contains(text, o.Target()+" is not connected") {
			t.Errorf("/readyz is %q, want only the second origin", text)
		}
		sleep(2 * time.Second)
		isReady(t, r, "down for 21s", true)

		code.Store(uint32(codes.PermissionDenied))
		o.Restart()
		r = startRelay(t, instance.Options{Origins: []*relaytest.Origin{first}, Named: further}, env...)
		sleep(settled)
		if text := isReady(t, r, "refused by the second origin", false); !strings.Contains(text, "error of the origin") {
			t.Errorf("/readyz is %q", text)
		}
		code.Store(uint32(codes.OK))
		sleep(7 * time.Second)
		isReady(t, r, "both answer", true)
	})
}

// A relay that its origin refuses does not become ready, and reports the origin's error, so that a rolling update
// with a bad token stops. If groups use other node IDs, only UNAUTHENTICATED has this effect.
func TestH08_RefusedRelayIsNotReady(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code  codes.Code
		env   []string
		ready bool
	}{
		{codes.Unauthenticated, nil, false},
		{codes.PermissionDenied, nil, false},
		{codes.InvalidArgument, nil, false},
		{codes.Unauthenticated, []string{"TENDER_NODE_ID=tender/{user_agent_name}"}, false},
		{codes.PermissionDenied, []string{"TENDER_NODE_ID=tender/{user_agent_name}"}, true},
		{codes.InvalidArgument, []string{"TENDER_NODE_ID=tender/{user_agent_name}"}, true},
		{codes.PermissionDenied, []string{"TENDER_NODE_GROUP_BY=id"}, true},
		{codes.Internal, []string{"TENDER_NODE_GROUP_BY=id"}, false},
	} {
		t.Run(strings.Join(append([]string{tt.code.String()}, tt.env...), " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, code := refusingOrigin(t, "x")
				code.Store(uint32(tt.code))
				r := start(t, o, append(tt.env, operated)...)
				sleep(10 * time.Minute)
				text := isReady(t, r, "refused", tt.ready)
				if tt.ready {
					return
				}
				if !strings.Contains(text, "error of the origin") {
					t.Errorf("/readyz is %q, want the origin's error", text)
				}
				code.Store(uint32(codes.OK))
				sleep(7 * time.Second)
				isReady(t, r, "no longer refused", true)
				code.Store(uint32(tt.code))
				o.Restart()
				sleep(settled)
				isReady(t, r, "refused later", true)
			})
		})
	}
}

// A relay below one that is not ready is not ready either. Once the upper relay is, so is the lower one, and its
// probe creates no node group.
func TestH08_BelowARelayThatIsNotReady(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Stop()
		above := start(t, o, operated, "TENDER_COLD_WAIT=5m")
		r := above.downstreamRelay(operated)
		sleep(10 * time.Minute)
		isReady(t, above, "above", false)
		if text := isReady(t, r, "below", false); !strings.Contains(text, "is not ready: origin "+o.Target()) {
			t.Errorf("/readyz of the lower relay is %q, want the reason of the upper relay", text)
		}
		o.Restart()
		sleep(15 * time.Second)
		isReady(t, above, "above, with its origin", true)
		isReady(t, r, "below, with the origin", true)
		if views := statusOf(t, above).Views; len(views) != 0 || above.Streams() != 0 {
			t.Errorf("the upper relay has %d views and %d streams, want none: %+v", len(views), above.Streams(), views)
		}
	})
}

// A relay with a snapshot is ready at once, whatever its origin's state.
func TestH08_Restored(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		r.expectResources(r.following(v, typeCDS), typeCDS, "a")
		r.stop()
		r.o.Stop()
		r.start()
		synctest.Wait()
		isReady(t, r.running, "restored", true)
	}, operated)
}

// A relay of a directory is ready with one valid file, or without files, but not with only invalid ones. It reads
// the files without a client.
func TestH08_Directory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	awaitReady := func(r *running, what string) {
		t.Helper()
		awaitStatus(t, r, "ready: "+what, func(s admin.Status) bool { return s.Relay.Ready })
		isReady(t, r, what, true)
	}
	awaitReady(startFiles(t, dir, operated), "empty")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("bad.yaml", "resources: [")
	r := startFiles(t, dir, operated)
	awaitStatus(t, r, "naming the directory", func(s admin.Status) bool {
		return !s.Relay.Ready && strings.Contains(strings.Join(s.Relay.NotReady, " "), "the directory has no valid file")
	})
	write("good.yaml", "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a}]")
	awaitReady(r, "a good one has come")
	awaitReady(startFiles(t, dir, operated), "one of two is good")
	if err := os.Remove(filepath.Join(dir, "good.yaml")); err != nil {
		t.Fatal(err)
	}
	isReady(t, r, "the valid file is removed", true)
}
