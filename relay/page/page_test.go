package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/lint"
)

// A fakeFleet is a fleet with a number of clients, of which the first has rejected a response if rejection is set.
type fakeFleet struct {
	mu        sync.Mutex // guards the fields below
	clients   int
	query     admin.ClientQuery // the last query
	rejection string            // detail of the NACK
	below     *admin.Below      // of each client
}

// locked calls a function that changes the fields.
func (f *fakeFleet) locked(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeFleet) client(n int) admin.Client {
	c := admin.Client{
		Number: uint64(n), NodeID: fmt.Sprintf("sidecar~%d", n), Group: "envoy", Variant: "delta", Began: time.Now(),
		Types: []admin.ClientType{{
			TypeURL: wire.ClusterType, Name: "cds", Wildcard: true, Version: "v2", Accepted: "v1", Nonce: "2",
		}},
	}
	c.Below = f.below
	if n == 1 && f.rejection != "" {
		c.Rejecting, c.LagSeconds = true, 42
		c.Types[0].Rejecting = true
		c.Types[0].Rejection = &admin.Rejection{At: time.Now(), Nonce: "2", Code: "INVALID_ARGUMENT", Detail: f.rejection}
	}
	return c
}

func (f *fakeFleet) Clients(q admin.ClientQuery) (admin.Clients, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.query = q
	out := admin.Clients{Totals: admin.ClientTotals{Streams: f.clients, Matching: f.clients}, Next: "somewhere"}
	if f.below != nil {
		out.Totals.Below = &admin.TierTotals{Relays: f.clients, Silent: 1, TierCounts: f.below.TierCounts}
	}
	t := admin.TypeTotals{Group: "envoy", TypeURL: wire.ClusterType, Name: "cds", Clients: f.clients}
	for n := range min(f.clients, q.Limit) {
		c := f.client(1 + n)
		out.Clients = append(out.Clients, c)
		if c.Rejecting {
			out.Totals.Rejecting, out.Totals.Lagging, out.Totals.LagSeconds = 1, 1, c.LagSeconds
			t.Rejecting, t.Lagging, t.LagSeconds = 1, 1, c.LagSeconds
		}
	}
	out.Types = []admin.TypeTotals{t}
	return out, nil
}

func (f *fakeFleet) Client(number uint64, _ admin.ClientResourceQuery) (admin.ClientDetail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number > uint64(f.clients) {
		return admin.ClientDetail{}, admin.Refuse(http.StatusNotFound, fmt.Errorf("there is no client %d", number))
	}
	return admin.ClientDetail{
		Client: f.client(int(number)), States: map[string]int{"rejected": 1},
		Resources: []admin.ClientResource{{TypeURL: wire.ClusterType, Name: "a/b&c", Version: "v2", State: "rejected"}},
	}, nil
}

func (f *fakeFleet) Resources(q admin.ResourceQuery) (admin.Resources, error) {
	return admin.Resources{
		TypeURL: q.Type, Total: 1,
		Resources: []admin.Resource{{Name: "a/b&c", Group: "envoy", Exists: true, Version: "v2", Bytes: 12}},
	}, nil
}

func (f *fakeFleet) Resource(c admin.ResourceChoice) (admin.ResourceDetail, error) {
	return admin.ResourceDetail{
		TypeURL: c.Type, Name: c.Name, Resources: []admin.Resource{{
			Name: c.Name, Group: "envoy", Exists: true, Version: "v2", SHA256: "abcd", Bytes: 12,
		}},
		Bodies:  map[string]json.RawMessage{"abcd": json.RawMessage(`"name: a/b&c\n"`)},
		States:  map[string]int{"rejected": 1},
		Holders: []admin.Holder{{Number: 1, NodeID: "sidecar~1", Group: "envoy", State: "rejected"}},
	}, nil
}

func (f *fakeFleet) History(c admin.HistoryChoice) (admin.History, error) {
	return admin.History{Changes: []admin.Change{{
		At: time.Now().Add(-time.Minute), Change: "changed", Group: "envoy", AskedAs: "*",
		Version: "v2", SHA256: "abcd", Bytes: 12, BytesBefore: 11,
		Diff: "@@ -1 +1 @@\n-name: <a>\n+name: a/b&c\n", Note: "cut off",
	}}}, nil
}

func someStatus() admin.Status {
	return admin.Status{
		Relay: admin.Relay{Version: "v1.2.3", Identifier: "tender/x", NodeID: "tender", Ready: true, Streams: 3},
		Origins: []admin.Origin{{
			Name: "default", Connected: true, Since: time.Now(),
			Targets: []admin.Target{{Target: "127.0.0.1:1", Active: true, State: "ready"}},
		}},
		Views: []admin.View{{
			Group: "envoy", Origin: "default", Connected: true, Streams: 3,
			Types: []admin.Type{{
				TypeURL: wire.ClusterType, Name: "cds", Entries: 100, Bytes: 100 << 10, Version: "v2", Phase: "confirmed",
			}},
		}},
	}
}

func newPages(t *testing.T, fleet admin.Fleet, status func() admin.Status) *Pages {
	t.Helper()
	p := New(Config{Status: status, Fleet: fleet, History: new(History)})
	t.Cleanup(p.Close)
	return p
}

func get(p *Pages, path string) (code int, body string) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// TestPages_Findings verifies that the overview lists findings, and has alerts for broken resources.
func TestPages_Findings(t *testing.T) {
	status := someStatus()
	status.Validation = &admin.Validation{
		Counts: []admin.FindingCount{
			{Kind: lint.Missing, TypeURL: wire.RouteType, Count: 1},
			{Kind: lint.Unknown, TypeURL: wire.RouteType, Count: 2},
		},
		Findings: []admin.Finding{
			{Group: "envoy", TypeURL: wire.RouteType, Name: "a&b", Kind: lint.Missing, Detail: "names <x>"},
		},
	}
	p := newPages(t, &fakeFleet{}, func() admin.Status { return status })
	_, body := get(p, "/")
	for _, want := range []string{
		"1 finding breaks a resource", "of 3 findings in total", "missing reference", `name=a%26b`, "names &lt;x&gt;",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the overview lacks %q:\n%s", want, body)
		}
	}
	status.Validation = new(admin.Validation)
	p = newPages(t, &fakeFleet{}, func() admin.Status { return status }) // without the cached page
	if _, body := get(p, "/"); strings.Contains(body, "Findings") {
		t.Error("the overview has a section of findings without findings")
	}
}

// TestPages_Refusals verifies that the overview has an alert for each cause of recent refusals, with its last peer.
func TestPages_Refusals(t *testing.T) {
	status := someStatus()
	now := time.Now()
	status.Refusals = []admin.Refusal{
		{Kind: "handshake", Reason: "closed", Count: 99, At: now, Error: "EOF"},
		{Kind: "handshake", Reason: "unknown_ca", Count: 8001, At: now.Add(-time.Minute), Peer: "10.0.0.1", Error: "bad <certificate>"},
		{Kind: "request", Reason: "not_utf8", Count: 4, At: now.Add(-11 * time.Minute), Peer: "10.0.0.2", Error: "long ago"},
	}
	_, body := get(newPages(t, &fakeFleet{}, func() admin.Status { return status }), "/")
	for want, has := range map[string]bool{
		"The relay refused clients 8,001 times: handshake, unknown_ca; last 10.0.0.1": true, "bad &lt;certificate&gt;": true,
		"closed": false, "long ago": false,
	} {
		if strings.Contains(body, want) != has {
			t.Errorf("the overview has %q: %t, want %t:\n%s", want, !has, has, body)
		}
	}
}

// TestPages verifies the content of each page, and that texts of clients are escaped.
func TestPages(t *testing.T) {
	fleet := &fakeFleet{clients: 3, rejection: "<script>alert(1)</script> is no filter"}
	p := newPages(t, fleet, someStatus)
	for _, tt := range []struct {
		path string
		code int
		want []string
	}{
		{"/", 200, []string{
			"2 problems", "1 of 3 clients rejects cds", "A client has not accepted a change for 42s", `href="/clients/1"`,
			"100 resources", "default",
		}},
		{"/clients?node=sidecar&type=cds&rejected=true", 200, []string{
			"3 clients", "rejects cds", `value="sidecar"`, `href="/clients?after=somewhere&amp;`,
		}},
		{"/clients/1", 200, []string{
			"sidecar~1", "INVALID_ARGUMENT", "&lt;script&gt;alert(1)&lt;/script&gt; is no filter", `name=a%2fb%26c`,
		}},
		{"/clients/4", 404, []string{"there is no client 4"}},
		{"/clients/x", 404, []string{"is not the number of a client"}},
		{"/resources", 200, []string{wire.ClusterType}},
		{"/resources?type=cds", 200, []string{"1 resource of cds", "a/b&amp;c", "12 bytes"}},
		{"/resource?type=cds&name=a/b%26c", 200, []string{
			"name: a/b&amp;c", "rejected 1", "sidecar~1", "changed 1m0s ago", `<span class="removed">-name: &lt;a&gt;`, "cut off",
		}},
		{"/nothing", 404, []string{"the page does not exist"}},
		{"/assets/page.css", 200, []string{"--stale"}},
		{"/assets/nothing", 404, nil},
	} {
		code, body := get(p, tt.path)
		if code != tt.code {
			t.Errorf("GET %s: %d, want %d", tt.path, code, tt.code)
		}
		for _, want := range tt.want {
			if !strings.Contains(body, want) {
				t.Errorf("GET %s lacks %q:\n%s", tt.path, want, body)
			}
		}
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "ZgotmplZ") {
			t.Errorf("GET %s contains text of a client that is not escaped:\n%s", tt.path, body)
		}
		if strings.HasPrefix(tt.path, "/assets") {
			continue
		}
		for _, bad := range []string{` style="`, " onclick", "javascript:", "http://", "https://"} {
			if strings.Contains(body, bad) {
				t.Errorf("GET %s has %q, which the Content-Security-Policy forbids", tt.path, bad)
			}
		}
	}
	want := admin.ClientQuery{
		Type: wire.ClusterType, Node: "sidecar", Rejected: true, Sort: admin.ByLag, Page: admin.Page{Limit: pageSize},
	}
	get(p, "/clients?node=sidecar&type=cds&rejected=true&x=1")
	if fleet.query != want {
		t.Errorf("the page of clients queried %+v, want %+v", fleet.query, want)
	}
}

// TestPages_Pending verifies that the overview has one table of pending changes, if there are any.
func TestPages_Pending(t *testing.T) {
	rows := []admin.PendingChange{
		{
			Origin: "default", TypeURL: wire.RouteType, Change: "change", Reason: "breaking", Count: 4, By: "relay",
			Names: []string{"<a>", "b", "c", "d"}, Details: []string{"names <x>", "", "", ""}, Ends: "origin",
		},
		{
			Origin: "default", Group: "envoy", TypeURL: wire.ClusterType, Change: "remove", Reason: "frozen", Count: 1,
			Names: []string{"e"}, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Minute), Ends: "deadline",
			By: "alice", Note: "bad routes",
		},
	}
	status := someStatus()
	status.Origins[0].Pending = map[string]int{"breaking": 4, "frozen": 1}
	p := New(Config{
		Status: func() admin.Status { return status }, Fleet: &fakeFleet{}, History: new(History),
		Pending: func(context.Context) []admin.PendingChange { return rows },
	})
	t.Cleanup(p.Close)
	if _, body := get(p, "/"); !strings.Contains(body, "5 changes that clients do not receive yet") || !strings.Contains(body, "They are being listed.") {
		t.Errorf("the first overview does not have the number of pending changes:\n%s", body)
	}
	p.pending.reading.Wait()
	_, body := get(p, "/?again") // without the cached page
	for _, want := range []string{
		`<h2 id="pending">Pending changes</h2>`, "&lt;a&gt;, b, c, …", "&lt;a&gt;: names &lt;x&gt;", "<td data-label=\"Until\">origin</td>",
		"all</td>", "frozen", "1h0m ago", "in 1m0s", "alice", "bad routes",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the overview lacks %q:\n%s", want, body)
		}
	}
	for range 2 * pageSize {
		rows = append(rows, rows[1])
	}
	p.pending.next = time.Time{}
	get(p, "/?third")
	p.pending.reading.Wait()
	if _, body := get(p, "/?fourth"); !strings.Contains(body, "102 further rows not shown") || strings.Count(body, "bad routes") != pageSize-1 {
		t.Errorf("the overview does not show %d of %d rows:\n%s", pageSize, len(rows), body)
	}
	if _, body := get(newPages(t, &fakeFleet{}, func() admin.Status { return someStatus() }), "/"); strings.Contains(body, "Pending changes") {
		t.Error("the overview has a table of pending changes without any")
	}
}

// TestAlerts verifies that the overview has an alert for each condition, the most severe first, with a command.
func TestAlerts(t *testing.T) {
	s := someStatus()
	s.Relay.Ready, s.Relay.NotReady = false, []string{"the origin was not reached yet"}
	o := &s.Origins[0]
	o.Connected, o.LastError, o.Frozen = false, "connection refused", true
	o.Pending = map[string]int{"suspect": 7, "large-removal": 30, "breaking": 1}
	o.FailedAddresses = []admin.FailedAddress{{Target: "cp:1", Address: "10.0.0.3:1", Since: time.Now().Add(-time.Hour), Error: "no server"}}
	o.HaltedAbove = []admin.HaltAbove{{Relay: "zone:1", Part: "cds/a", At: time.Now(), Stage: 2, Reason: "<b>no"}}
	o.Freeze = &admin.Freezing{By: "alice at 127.0.0.1", Reason: "bad routes", Since: time.Now()}
	o.Directory = &admin.Directory{FileCount: 5, BadCount: 2, Bad: []admin.BadFile{
		{File: "a.yaml", Error: "a.yaml:3: no name"}, {File: "b.yaml", Error: "b.yaml:1: EOF"},
	}}
	s.Views[0].Stale, s.Views[0].StaleSeconds = true, 200
	s.Files = []admin.Files{
		{Files: []admin.File{{Variable: "TENDER_TLS_CERT"}}, Error: "no key"},
		{Files: []admin.File{{Variable: "TENDER_AUTHZ"}}},
	}
	s.Log = &admin.Log{Dropped: map[string]int64{"debug": 7, "error": 0}, StalledSeconds: 90}
	p := newPages(t, &fakeFleet{clients: 3, rejection: "no"}, func() admin.Status { return s })
	_, body := get(p, "/")
	at := -1
	for _, want := range []string{
		"The relay is not ready", "the origin was not reached yet",
		"log NOT READ for 1m30s", "DROPPED since the start: 7 debug", "Origin default is not connected", "connection refused",
		"2 of 5 files of origin default are invalid", "a.yaml:3: no name; and 1 more",
		"30 changes of origin default are pending: large-removal", "tender pass large-removal --origin default",
		"1 change of origin default is pending: breaking", "tender pass breaking --origin default", "stale for 3m20s",
		"TENDER_TLS_CERT: the files on disk are not in use: no key", "1 of 3 clients rejects cds",
		"10.0.0.3:1 of cp:1 is NOT USED for 1h0m", "no server", "A client has not accepted a change", "cds/a HALTED ABOVE by zone:1", ", after stage 2, not followed here", "&lt;b&gt;no", "are not distributed: frozen by alice at 127.0.0.1", "ago: bad routes",
		"a restart of the relay also ends the freeze", "tender thaw --origin default",
	} {
		next := strings.Index(body, want)
		if next <= at {
			t.Errorf("%q is at %d, want it after the alert at %d", want, next, at)
		}
		at = next
	}
	for _, want := range []string{"not ready", "log", "lost", "files", "failover", "lagging", "pending", "stale", "halted", "frozen"} {
		if !strings.Contains(body, `<span class="badge">`+want+"</span>") {
			t.Errorf("no alert has the badge %q", want)
		}
	}
	if strings.Contains(body, "TENDER_AUTHZ") {
		t.Error("the overview has an alert for valid files")
	}
}

// TestClientsOfRelays verifies that the pages of clients have what a relay has reported, and escape it.
func TestClientsOfRelays(t *testing.T) {
	fleet := &fakeFleet{clients: 1, below: &admin.Below{
		Known: true, At: time.Now(), TierCounts: admin.TierCounts{Clients: 1200, InSync: 1199, Rejecting: 1, Pending: 2},
		Worst: []admin.TierClient{{NodeID: "<edge-4>", Via: []string{"zone", "cell"}, TypeURL: wire.ClusterType, Sync: admin.Rejecting, LagSeconds: 3, Detail: "<b>no"}},
	}}
	p := newPages(t, fleet, someStatus)
	const counts = "1,200 clients, 1 rejecting, 0 behind, 0 unknown, 1199 in sync; 2 changes pending there"
	for path, wants := range map[string][]string{
		"/clients":   {"Below 1 relay: " + counts + "; 1 relay silent"},
		"/clients/1": {counts + "; reported", "&lt;edge-4&gt;", "zone, cell", "&lt;b&gt;no"},
	} {
		_, body := get(p, path)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q:\n%s", path, want, body)
			}
		}
	}
	fleet.locked(func() { fleet.below = &admin.Below{} })
	if _, body := get(newPages(t, fleet, someStatus), "/clients/1"); !strings.Contains(body, "Unknown: the relay reports nothing.") {
		t.Errorf("the page of a silent relay does not say so:\n%s", body)
	}
}

// TestLive verifies that an event has only the changed sections of a page. If the page does not exist any more, the
// event is gone. The stream ends when the pages are closed.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := &fakeFleet{clients: 3}
		p := newPages(t, fleet, someStatus)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := follow(ctx, p, "/live/clients/1")
		if got := <-events; got.name != "sections" || len(got.update.Sections) != 3 {
			t.Fatalf("first event %+v, want all three sections", got)
		}
		fleet.locked(func() { fleet.rejection = "no such filter" })
		got := <-events
		if types := got.update.Sections["client-types"]; !strings.Contains(string(types), "no such filter") {
			t.Errorf("event after a rejection: %+v, want its detail", got)
		}
		if _, resources := got.update.Sections["client-resources"]; resources {
			t.Errorf("event after a rejection: %+v, want no section of the resources, which have not changed", got)
		}
		fleet.locked(func() { fleet.clients = 0 })
		if got := <-events; got.name != "gone" || got.update.Title != "there is no client 1" {
			t.Errorf("event after the client has disconnected: %+v, want gone", got)
		}
		p.Close()
		for range events { // until the response ends
		}
	})
}

// TestLiveIsBounded verifies the limit of event streams.
func TestLiveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPages(t, &fakeFleet{}, someStatus)
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan event
		for range maxFollowers {
			all = append(all, follow(ctx, p, "/live/"))
		}
		synctest.Wait()
		if code, body := get(p, "/live/"); code != http.StatusServiceUnavailable {
			t.Errorf("one event stream more: %d %q, want 503", code, body)
		}
		cancel()
		for _, events := range all {
			for range events {
			}
		}
		if len(p.followers) != 0 {
			t.Errorf("%d event streams count after all have ended, want 0", len(p.followers))
		}
	})
}

// An event is a server-sent event of a page.
type event struct {
	name   string
	update update
}

// follow returns the events of a page. The channel is closed when the response ends, also because of ctx.
func follow(ctx context.Context, p *Pages, path string) <-chan event {
	body, w := newPipe()
	r := httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx)
	go func() {
		p.ServeHTTP(w, r)
		w.end()
	}()
	events := make(chan event)
	go func() {
		defer close(events)
		var e event
		for lines := bufio.NewScanner(body); lines.Scan(); {
			switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
			case "event":
				e = event{name: value}
			case "data":
				if err := json.Unmarshal([]byte(value), &e.update); err != nil {
					e.name = err.Error()
				}
			case "":
				select {
				case events <- e:
				case <-ctx.Done():
				}
			}
		}
	}()
	return events
}

// TestHistory verifies the rates and percentiles of samples.
func TestHistory(t *testing.T) {
	var h History
	key := GroupType{"envoy", wire.ClusterType}
	at := time.Unix(1000, 0)
	add := func(deliveries, rejections int64, latencies ...int64) Point {
		s := Sample{At: at, Streams: 7, Counts: map[GroupType]Counts{key: {deliveries, rejections}}}
		copy(s.Latency.Buckets[:], latencies) // up to 1ms, up to 2.5ms, …
		h.Add(s)
		at = at.Add(sampleInterval)
		points := h.Points()
		if len(points) == 0 {
			return Point{}
		}
		return points[len(points)-1]
	}
	if got := add(100, 0); len(h.Points()) != 0 {
		t.Errorf("point after one sample: %+v, want none", got)
	}
	if got := add(150, 5); got.Deliveries != 10 || got.Rejections != 1 || got.Streams != 7 || !math.IsNaN(got.P50) {
		t.Errorf("50 deliveries and 5 rejections in 5s: %+v, want 10 and 1 per second, and no latency", got)
	}
	if got := h.Rates()[key]; got != (Rates{10, 1}) {
		t.Errorf("rates of the type: %+v, want 10 and 1", got)
	}
	if got := add(150, 5, 50, 50); got.P50 != 0.001 || got.P99 < 0.0024 || got.P99 > 0.0025 {
		t.Errorf("half within 1ms, half within 2.5ms: p50 %v, p99 %v, want 1ms and 2.5ms", got.P50, got.P99)
	}
	above := make([]int64, len(downstream.Bounds)+1)
	above[0], above[1], above[len(above)-1] = 50, 50, 1
	if got := add(150, 5, above...); got.P50 != 60 {
		t.Errorf("one value above all bounds: p50 %v, want the highest bound", got.P50)
	}
	if got := add(10, 0, above...); got.Deliveries != 2 {
		t.Errorf("10 deliveries since a group started again: %v per second, want 2", got.Deliveries)
	}
	for range 2*maxPoints + 10 {
		newest := add(10, 0, above...)
		points := h.Points()
		oldest, span := points[0].At, time.Duration(len(points)-1)*sampleInterval
		if newest.At.Sub(oldest) != span || len(points) > maxPoints {
			t.Fatalf("%d points from %v to %v; want at most %d without a gap", len(points), oldest, newest.At, maxPoints)
		}
	}
	if got := len(h.Points()); got != maxPoints {
		t.Errorf("%d points, want %d", got, maxPoints)
	}
}

// TestFormat verifies the format of numbers.
func TestFormat(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{brief(0), "0s"}, {brief(0.0042), "4.2ms"}, {brief(0.42), "400ms"}, {brief(42), "42s"},
		{brief(200), "3m20s"}, {brief(3 * 86400), "3d0h"}, {brief(math.NaN()), "–"},
		{number(0.123), "0.12"}, {number(7.25), "7.2"}, {number(42), "42"}, {number(1234567), "1,234,567"},
		{number(999.6), "1,000"},
		{plural(1, "client"), "1 client"}, {plural(1000, "client"), "1,000 clients"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
	for n, want := range map[float64]float64{0: 0, 0.3: 0.5, 1: 1, 1.1: 2, 7: 10, 42: 50, 501: 1000} {
		if got := roundUp(n); math.Abs(got-want) > 1e-9 {
			t.Errorf("roundUp(%v) = %v, want %v", n, got, want)
		}
	}
}
