package admin_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is a server on sockets, with a command that returns its arguments and counts its calls.
type rig struct {
	*admin.Server
	t             *testing.T
	admin, probes net.Listener
	reasons       atomic.Pointer[[]string]
	commands      atomic.Int64
}

// An echo is the arguments and the response of the command echo.
type echo struct {
	Text string `json:"text"`
}

// newRig starts a server. Each of options changes its configuration.
func newRig(t *testing.T, network string, options ...func(*admin.Config)) *rig {
	t.Helper()
	r := &rig{t: t}
	r.reasons.Store(new([]string))
	cfg := admin.Config{
		Ready:  func() []string { return *r.reasons.Load() },
		Status: func() admin.Status { return admin.Status{Relay: admin.Relay{Version: "v1"}} },
		Fleet:  echoFleet{},
		Commands: []admin.Command{admin.NewCommand("echo", func(_ context.Context, e echo) (echo, error) {
			r.commands.Add(1)
			switch e.Text {
			case "missing":
				return e, admin.Refuse(http.StatusNotFound, errors.New("there is no such thing"))
			case "broken":
				return e, errors.New("it broke")
			}
			return e, nil
		})},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics\n") }),
		Pending: func(context.Context, admin.PendingChoice) (admin.Pending, error) {
			return admin.Pending{Pending: []admin.PendingChange{}}, nil
		},
		Settings:    func() string { return "" },
		PendingDiff: func(context.Context, admin.RolloutChoice) (admin.RolloutDiff, error) { return admin.RolloutDiff{}, nil },
		ThawDiff:    func(context.Context, admin.RolloutChoice) (admin.RolloutDiff, error) { return admin.RolloutDiff{}, nil },
		Generations: func(admin.GenerationChoice) (admin.Generations, error) { return admin.Generations{}, nil },
		RollbackDiff: func(context.Context, string, admin.RolloutChoice) (admin.RolloutDiff, error) {
			return admin.RolloutDiff{}, nil
		},
		GRPC: grpc.NewServer(),
	}
	for _, option := range options {
		option(&cfg)
	}
	s := admin.New(cfg)
	r.Server = s
	listen := func(name string) net.Listener {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), name)
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	r.admin, r.probes = listen("admin"), listen("probes")
	ended := make(chan error, 2)
	go func() { ended <- s.Serve(r.admin) }() // both are received below
	go func() { ended <- s.ServeProbes(r.probes) }()
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("Serve: %v", err)
			}
		}
	})
	return r
}

// ask sends a request on a new connection, and returns the response with its body.
func (r *rig) ask(to net.Listener, method, path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	conn, err := net.Dial(to.Addr().Network(), to.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	host := to.Addr().String()
	lines := []string{method + " " + path + " HTTP/1.1"}
	for _, h := range header {
		if given, ok := strings.CutPrefix(h, "Host: "); ok {
			host = given
			continue
		}
		lines = append(lines, h)
	}
	lines = append(lines, "Host: "+host, fmt.Sprint("Content-Length: ", len(body)), "Connection: close", "", body)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")); err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	_ = resp.Body.Close()
	return resp, string(text)
}

// TestB8_Probes verifies that the probe server has three paths only, which the admin server has too.
func TestB8_Probes(t *testing.T) {
	r := newRig(t, "tcp")
	for _, l := range []net.Listener{r.admin, r.probes} {
		for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "ok\n", "/metrics": "metrics\n"} {
			if resp, text := r.ask(l, "GET", path, ""); resp.StatusCode != http.StatusOK || text != want {
				t.Errorf("GET %s: %s %q, want 200 %q", path, resp.Status, text, want)
			}
		}
	}
	r.reasons.Store(&[]string{"no origin", "no port"})
	resp, text := r.ask(r.probes, "GET", "/readyz", "")
	const want = "not ready: no origin\nnot ready: no port\n"
	if resp.StatusCode != http.StatusServiceUnavailable || text != want {
		t.Errorf("GET /readyz of a relay that is not ready: %s %q, want 503 %q", resp.Status, text, want)
	}
	if resp, _ := r.ask(r.probes, "GET", "/livez", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("GET /livez of a relay that is not ready: %s, want 200, because a restart does not help", resp.Status)
	}
	for _, path := range []string{"/", "/api/v1/status", "/api/v1/echo", "/debug/pprof/"} {
		if resp, _ := r.ask(r.probes, "GET", path, ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s of the probe server: %s, want 404", path, resp.Status)
		}
	}
	// The Host of a kubelet is the address of the pod, that of Prometheus can be any name.
	if resp, _ := r.ask(r.probes, "GET", "/metrics", "", "Host: tender.mesh.svc"); resp.StatusCode != http.StatusOK {
		t.Errorf("GET /metrics of tender.mesh.svc: %s, want 200", resp.Status)
	}
}

// TestAdmin_UnknownPathsOfTheAPI verifies that errors of the API are JSON, also for a path or a method that it lacks.
func TestAdmin_UnknownPathsOfTheAPI(t *testing.T) {
	r := newRig(t, "tcp")
	for request, want := range map[string]string{
		"GET /api/v1/echo": "405 POST", "HEAD /api/v1/echo": "405 POST", "DELETE /api/v1/echo": "405 POST",
		"PUT /api/v1/status": "405 GET, HEAD", "POST /api/v1/status": "405 GET, HEAD",
		"GET /api/v1/nothing": "404 ", "POST /api/v1/nothing": "404 ", "GET /api/": "404 ",
	} {
		method, path, _ := strings.Cut(request, " ")
		resp, text := r.ask(r.admin, method, path, "")
		got := fmt.Sprintf("%d %s", resp.StatusCode, resp.Header.Get("Allow"))
		var body struct{ Error string }
		if err := json.Unmarshal([]byte(text), &body); method != "HEAD" && (err != nil || body.Error == "") ||
			got != want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %s, %s %q, want %s and an error in JSON", request, got, resp.Header.Get("Content-Type"), text, want)
		}
	}
}

// TestAdmin_HostHeader verifies the protection from DNS rebinding: a page whose name resolves to 127.0.0.1 sends that
// name as Host.
func TestAdmin_HostHeader(t *testing.T) {
	r := newRig(t, "tcp")
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:18080": 200, "127.0.0.1": 200, "127.0.0.1:1": 200, "[::1]:18080": 200,
		"[::1]": 200, "127.1.2.3": 200,
		"attacker.example": 421, "attacker.example:18080": 421, "localhost.attacker.example": 421,
		"127.0.0.1.nip.io": 421, "": 421, "10.1.2.3:80": 421, "0.0.0.0:18080": 421, "[::]": 421,
	} {
		resp, text := r.ask(r.admin, "GET", "/api/v1/status", "", "Host: "+host)
		wantText := fmt.Sprintf(`the Host header \"%s\" is neither`, host)
		if resp.StatusCode != want || want == 421 && !strings.Contains(text, wantText) {
			t.Errorf("Host %q: %s %s, want %d", host, resp.Status, text, want)
		}
	}
	// Browsers cannot connect to a Unix socket.
	u := newRig(t, "unix")
	if resp, _ := u.ask(u.admin, "GET", "/api/v1/status", "", "Host: any"); resp.StatusCode != 200 {
		t.Errorf("Unix socket: %s, want 200", resp.Status)
	}
}

// TestAdmin_Headers verifies the security headers of responses.
func TestAdmin_Headers(t *testing.T) {
	r := newRig(t, "tcp")
	for _, path := range []string{"/livez", "/api/v1/status", "/missing", "/api/v1/echo"} {
		resp, _ := r.ask(r.admin, "GET", path, "")
		csp := resp.Header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") ||
			strings.Contains(csp, "unsafe") {
			t.Errorf("GET %s: Content-Security-Policy %q", path, csp)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
			"Cache-Control": "no-store",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("GET %s: %s %q, want %q", path, name, got, want)
			}
		}
	}
}

// TestAdmin_CompactResponses verifies that a program that accepts nothing but JSON gets the same response without indentation.
func TestAdmin_CompactResponses(t *testing.T) {
	r := newRig(t, "tcp")
	_, indented := r.ask(r.admin, "GET", "/api/v1/status", "")
	_, browser := r.ask(r.admin, "GET", "/api/v1/status", "", "Accept: text/html, application/json")
	_, compact := r.ask(r.admin, "GET", "/api/v1/status", "", "Accept: application/json")
	var want bytes.Buffer
	if err := json.Compact(&want, []byte(indented)); err != nil {
		t.Fatal(err)
	}
	if compact != want.String() && compact != want.String()+"\n" || !strings.Contains(indented, "\n  \"") || browser != indented {
		t.Errorf("with Accept: application/json, the response is %q, and %q otherwise", compact, indented)
	}
}

// TestAdmin_Commands verifies that a command requires a POST with a JSON object, which no page of another site can
// send.
func TestAdmin_Commands(t *testing.T) {
	r := newRig(t, "tcp")
	const media = "Content-Type: application/json"
	own := "Origin: http://" + r.admin.Addr().String()
	for _, tt := range []struct {
		name, body string
		header     []string
		code       int
		want       string // part of the response
	}{
		{"curl", `{"text":"a"}`, []string{media}, 200, `"text": "a"`},
		{"no arguments", ``, []string{media}, 200, `"text": ""`},
		{"own page", `{}`, []string{media, own, "Sec-Fetch-Site: same-origin"}, 200, `"text": ""`},
		{"own page in an old browser", `{}`, []string{media, own}, 200, `"text": ""`},
		{"an error", `{"text":"broken"}`, []string{media}, 500, `"error": "it broke"`},
		{"a refusal", `{"text":"missing"}`, []string{media}, 404, `"error": "there is no such thing"`},
		{"another site", `{}`, []string{media, own, "Sec-Fetch-Site: cross-site"}, 403, "another site"},
		{"same site, another origin", `{}`, []string{media, own, "Sec-Fetch-Site: same-site"}, 403, "another site"},
		{"another site in an old browser", `{}`, []string{media, "Origin: https://attacker.example"}, 403, "another site"},
		{"page without an origin", `{}`, []string{media, "Origin: null"}, 403, "another site"},
		{"another port", `{}`, []string{media, "Origin: http://127.0.0.1:1"}, 403, "another site"},
		{"another name", `{}`, []string{media, "Host: attacker.example"}, 421, "Host header"},
		{"HTML form", `text=a`, []string{"Content-Type: application/x-www-form-urlencoded"}, 415, "application/json"},
		{"JSON as plain text", `{}`, []string{"Content-Type: text/plain"}, 415, "application/json"},
		{"no type", ``, nil, 415, "application/json"},
		{"an unknown field", `{"test":"a"}`, []string{media}, 400, `unknown field \"test\"`},
		{"another type", `{"text":1}`, []string{media}, 400, "read arguments"},
		{"a list", `[]`, []string{media}, 400, "not a JSON object"},
		{"null", `null`, []string{media}, 400, "not a JSON object"},
		{"two objects", `{}{}`, []string{media}, 400, "data after the JSON object"},
		{"incomplete object", `{"text":`, []string{media}, 400, "read arguments"},
		{"too large", `{"text":"` + strings.Repeat("a", 1<<20) + `"}`, []string{media}, 413, "1048576 bytes"},
	} {
		before := r.commands.Load()
		resp, text := r.ask(r.admin, "POST", "/api/v1/echo", tt.body, tt.header...)
		if resp.StatusCode != tt.code || !strings.Contains(text, tt.want) || !json.Valid([]byte(text)) {
			t.Errorf("%s: %s %s, want %d and JSON with %s", tt.name, resp.Status, text, tt.code, tt.want)
		}
		called := tt.code == 200 || tt.code == 404 || tt.code == 500
		if (r.commands.Load() > before) != called {
			t.Errorf("%s: the command was called: %t, want %t", tt.name, !called, called)
		}
	}
}

// TestAdmin_Methods verifies that each route permits only its method: GET and HEAD, or POST for commands.
func TestAdmin_Methods(t *testing.T) {
	t.Parallel()
	r := newRig(t, "tcp", debugging)
	routes := r.Routes()
	if len(routes) < 10 || routes["/api/v1/echo"] != "POST" || routes["/debug/pprof/profile"] != "GET" {
		t.Fatalf("routes %v, want the routes of probes, status, holds, pprof and the command", routes)
	}
	for path, method := range routes {
		allow := map[string]string{"GET": "GET, HEAD", "POST": "POST"}[method]
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"} {
			allowed := slices.Contains(strings.Split(allow, ", "), method)
			resp, _ := r.ask(r.admin, method, path+shortQuery[path], "", "Content-Type: application/json")
			got, gotAllow := resp.StatusCode != http.StatusMethodNotAllowed, resp.Header.Get("Allow")
			if got != allowed || !allowed && gotAllow != allow {
				t.Errorf("%s %s: %s, Allow %q; want allowed methods %s", method, path, resp.Status, gotAllow, allow)
			}
		}
	}
	if n := r.commands.Load(); n != 1 {
		t.Errorf("the command was called %d times, want once, by POST", n)
	}
}

// shortQuery has the queries that make profiles as short as possible.
var shortQuery = map[string]string{"/debug/pprof/profile": "?seconds=1", "/debug/pprof/trace": "?seconds=0.01"}

// debugging enables /debug/pprof.
func debugging(cfg *admin.Config) { cfg.Debug = true }

// TestAdmin_Debug verifies that only the admin server has profiles, and only with TENDER_DEBUG.
func TestAdmin_Debug(t *testing.T) {
	for path, want := range map[string]string{
		"/debug/pprof/": "goroutine", "/debug/pprof/heap?debug=1": "heap profile", "/debug/pprof/cmdline": "admin.test",
	} {
		r := newRig(t, "tcp", debugging)
		if resp, text := r.ask(r.admin, "GET", path, ""); resp.StatusCode != 200 || !strings.Contains(text, want) {
			t.Errorf("GET %s: %s %.200s, want 200 and %s", path, resp.Status, text, want)
		}
		off := newRig(t, "tcp")
		for server, resp := range map[string]*http.Response{
			"the probe server":                   first(r.ask(r.probes, "GET", path, "")),
			"the admin server without debugging": first(off.ask(off.admin, "GET", path, "")),
		} {
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("GET %s of %s: %s, want 404", path, server, resp.Status)
			}
		}
	}
}

func first[A, B any](a A, _ B) A { return a }

// TestAdmin_ProfilesAreBounded verifies the limit of two minutes for a profile.
func TestAdmin_ProfilesAreBounded(t *testing.T) {
	r := newRig(t, "tcp", debugging)
	for query, want := range map[string]string{
		"profile?seconds=121":         `seconds=\"121\": want at most 120`,
		"trace?seconds=1e9":           `seconds=\"1e9\": want`,
		"trace?seconds=NaN":           `seconds=\"NaN\": want`,
		"heap?seconds=3600":           `seconds=\"3600\": want`,
		"goroutine?seconds=1&seconds": "", // the first value applies
	} {
		resp, text := r.ask(r.admin, "GET", "/debug/pprof/"+query, "")
		if refused := resp.StatusCode == http.StatusBadRequest; refused != (want != "") || !strings.Contains(text, want) {
			t.Errorf("GET %s: %s %.200s, want %s", query, resp.Status, text, want)
		}
	}
}

// TestAdmin_Embedded verifies that a page of another site cannot embed a response, but may link to it.
func TestAdmin_Embedded(t *testing.T) {
	r := newRig(t, "tcp")
	for _, tt := range []struct {
		site, mode, dest string
		code             int
	}{
		{"cross-site", "no-cors", "image", 403},
		{"same-site", "no-cors", "script", 403}, // another port of this host
		{"cross-site", "navigate", "iframe", 403},
		{"cross-site", "cors", "empty", 403},
		{"cross-site", "navigate", "document", 200},
		{"same-origin", "cors", "empty", 200},
		{"none", "navigate", "document", 200},
	} {
		resp, _ := r.ask(r.admin, "GET", "/api/v1/status", "",
			"Sec-Fetch-Site: "+tt.site, "Sec-Fetch-Mode: "+tt.mode, "Sec-Fetch-Dest: "+tt.dest)
		if resp.StatusCode != tt.code {
			t.Errorf("GET with %+v: %s, want %d", tt, resp.Status, tt.code)
		}
	}
}
