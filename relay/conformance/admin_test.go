package conformance_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// httpGet sends a GET to an address that dial connects to, and returns the status code and body.
func httpGet(t testing.TB, dial func(context.Context) (net.Conn, error), path string, accept ...string) (code int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header["Accept"] = accept
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// statusOf returns the relay's status.
func statusOf(t testing.TB, r *running) (s admin.Status) {
	t.Helper()
	_, text := httpGet(t, r.DialAdmin, "/api/v1/status")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("status: %v\n%s", err, text)
	}
	return s
}

// awaitStatus waits until the status meets a condition.
func awaitStatus(t testing.TB, r *running, what string, cond func(admin.Status) bool) admin.Status {
	t.Helper()
	deadline := time.Now().Add(relaytest.Patience)
	for {
		s := statusOf(t, r)
		if cond(s) {
			return s
		}
		if time.Now().After(deadline) {
			text, _ := json.MarshalIndent(s, "", "  ")
			t.Fatalf("status: not %s:\n%s", what, text)
		}
		time.Sleep(5 * time.Millisecond) // polls
	}
}

// B.8: a relay is ready once it has reached its origin, and reports the reason before. It stays ready when the
// origin is down; views are then stale, and the status has the time.
func TestB8_StatusAndProbes(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
	o.Stop()
	probes := filepath.Join(t.TempDir(), "probes")
	r := start(t, o, operated, "TENDER_PROBE_LISTEN=unix:"+probes)
	probe := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", probes) }
	if code, text := httpGet(t, probe, "/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(text, "not ready: origin "+o.Target()+" is not connected") {
		t.Errorf("/readyz without an origin: got %d %q, want 503 with the origin's name", code, text)
	}
	s := statusOf(t, r)
	if s.Relay.Ready || len(s.Relay.NotReady) == 0 || s.Relay.Version != "test" || s.Relay.NodeID != "tender/test" ||
		s.Origins[0].Connected || s.Origins[0].Name != "default" {
		t.Errorf("status without an origin: %+v", s)
	}
	o.Restart()
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a", "b") })
	s = awaitStatus(t, r, "ready and connected",
		func(s admin.Status) bool { return s.Relay.Ready && s.Origins[0].Connected })
	if code, text := httpGet(t, probe, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz of a ready relay: got %d %q, want 200", code, text)
	}
	if len(s.Views) != 1 || len(s.Views[0].Types) != 1 {
		t.Fatalf("got the views %+v, want one with one type", s.Views)
	}
	v := s.Views[0]
	typ := v.Types[0]
	if s.Relay.Streams != 1 || v.Streams != 1 || v.Origin != "default" || !v.Connected || v.Stale || typ.Name != "cds" ||
		typ.Entries != 2 ||
		typ.Bytes <= 0 || typ.Phase == "unknown" || typ.Version == "" || typ.ChangedAt.IsZero() {
		t.Errorf("status of a serving relay: %+v", s)
	}
	o.Stop()
	s = awaitStatus(t, r, "stale", func(s admin.Status) bool { return s.Views[0].Stale && !s.Origins[0].Connected })
	if v := s.Views[0]; v.StaleSeconds <= 0 || v.Types[0].Entries != 2 || !s.Relay.Ready || s.Origins[0].Since.IsZero() {
		t.Errorf("status while the origin is down: %+v", s)
	}
	awaitStatus(t, r, "saying why",
		func(s admin.Status) bool { return s.Origins[0].LastError != "" && !s.Origins[0].LastErrorAt.IsZero() })
}

// A draining relay is not ready, and the status says that it drains.
func TestB8_DrainIsNotReady(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := start(t, o, operated)
		watch, err := healthpb.NewHealthClient(r.Conn()).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, r, "ready", func(s admin.Status) bool { return s.Relay.Ready })
		r.Cancel()
		synctest.Wait() // the health watch, which is no client stream, delays the drain by a second
		s := statusOf(t, r)
		if s.Relay.Ready || len(s.Relay.NotReady) != 1 || !strings.Contains(s.Relay.NotReady[0], "is draining") {
			t.Errorf("status while draining: %+v", s.Relay)
		}
		if code, text := httpGet(t, r.DialAdmin, "/readyz"); code != http.StatusServiceUnavailable ||
			!strings.Contains(text, "is draining") {
			t.Errorf("/readyz while draining: %d %q", code, text)
		}
		for err == nil {
			_, err = watch.Recv()
		}
	})
}

// If an admin address is in use, the error names its variable.
func TestAdmin_AddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, variable := range []string{"TENDER_ADMIN_LISTEN", "TENDER_PROBE_LISTEN"} {
		cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=127.0.0.1:0",
			variable + "=" + taken.Addr().String(), "TENDER_ADMIN_LISTEN=off"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := relay.New(cfg, relay.Options{}); err == nil ||
			!strings.HasPrefix(err.Error(), variable+": listen tcp "+taken.Addr().String()) {
			t.Errorf("New with %s in use: %v", variable, err)
		}
	}
}
