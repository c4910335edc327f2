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

// A standIn is a fleet of as many clients as asked for, one of which refuses what it was sent.
type standIn struct {
	mu      sync.Mutex // of what follows
	clients int
	asked   admin.ClientQuery
	refusal string
}

// now changes it while somebody may be asking.
func (f *standIn) now(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *standIn) client(n int) admin.Client {
	c := admin.Client{
		Number: uint64(n), NodeID: fmt.Sprintf("sidecar~%d", n), Group: "envoy", Variant: "delta", Began: time.Now(),
		Types: []admin.ClientType{{TypeURL: wire.ClusterType, Name: "cds", Wildcard: true, Version: "v2", Accepted: "v1", Nonce: "2"}},
	}
	if n == 1 && f.refusal != "" {
		c.Refusing, c.LagSeconds = true, 42
		c.Types[0].Refusing = true
		c.Types[0].Refusal = &admin.Refusal{At: time.Now(), Nonce: "2", Code: "INVALID_ARGUMENT", Detail: f.refusal}
	}
	return c
}

func (f *standIn) Clients(q admin.ClientQuery) (admin.Clients, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	out := admin.Clients{Totals: admin.ClientTotals{Streams: f.clients, Matching: f.clients}, Next: "somewhere"}
	t := admin.TypeTotals{Group: "envoy", TypeURL: wire.ClusterType, Name: "cds", Clients: f.clients}
	for n := range min(f.clients, q.Limit) {
		c := f.client(1 + n)
		out.Clients = append(out.Clients, c)
		if c.Refusing {
			out.Totals.Refusing, out.Totals.Lagging, out.Totals.LagSeconds = 1, 1, c.LagSeconds
			t.Refusing, t.Lagging, t.LagSeconds = 1, 1, c.LagSeconds
		}
	}
	out.Types = []admin.TypeTotals{t}
	return out, nil
}

func (f *standIn) Client(number uint64, _ admin.ClientResourceQuery) (admin.ClientDetail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number > uint64(f.clients) {
		return admin.ClientDetail{}, admin.Refuse(http.StatusNotFound, fmt.Errorf("there is no client %d", number))
	}
	return admin.ClientDetail{
		Client: f.client(int(number)), States: map[string]int{"refused": 1},
		Resources: []admin.ClientResource{{TypeURL: wire.ClusterType, Name: "a/b&c", Version: "v2", State: "refused"}},
	}, nil
}

func (f *standIn) Resources(q admin.ResourceQuery) (admin.Resources, error) {
	return admin.Resources{TypeURL: q.Type, Total: 1, Resources: []admin.Resource{{Name: "a/b&c", Group: "envoy", Exists: true, Version: "v2", Bytes: 12}}}, nil
}

func (f *standIn) Resource(c admin.ResourceChoice) (admin.ResourceDetail, error) {
	return admin.ResourceDetail{
		TypeURL: c.Type, Name: c.Name, Resources: []admin.Resource{{Name: c.Name, Group: "envoy", Exists: true, Version: "v2", SHA256: "abcd", Bytes: 12}},
		Bodies: map[string]json.RawMessage{"abcd": json.RawMessage(`"name: a/b&c\n"`)}, States: map[string]int{"refused": 1},
		Holders: []admin.Holder{{Number: 1, NodeID: "sidecar~1", Group: "envoy", State: "refused"}},
	}, nil
}

func (f *standIn) History(c admin.HistoryChoice) (admin.History, error) {
	return admin.History{Changes: []admin.Change{{
		At: time.Now().Add(-time.Minute), Change: "changed", Group: "envoy", AskedAs: "*", Version: "v2", SHA256: "abcd", Bytes: 12, BytesBefore: 11,
		Diff: "@@ -1 +1 @@\n-name: <a>\n+name: a/b&c\n", Note: "cut off",
	}}}, nil
}

func someStatus() admin.Status {
	return admin.Status{
		Relay: admin.Relay{Version: "v1.2.3", Identifier: "tender/x", NodeID: "tender", Ready: true, Streams: 3},
		Origins: []admin.Origin{{
			Name: "default", Connected: true, Since: time.Now(), Targets: []admin.Target{{Target: "127.0.0.1:1", Active: true, State: "ready"}},
		}},
		Views: []admin.View{{
			Group: "envoy", Origin: "default", Connected: true, Streams: 3,
			Types: []admin.Type{{TypeURL: wire.ClusterType, Name: "cds", Entries: 100, Bytes: 100 << 10, Version: "v2", Phase: "confirmed"}},
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

// TestPages_Findings: the overview lists what failed validation, and alerts of what breaks a resource, and of changes that are held.
func TestPages_Findings(t *testing.T) {
	status := someStatus()
	status.Validation = &admin.Validation{
		Counts:   []admin.FindingCount{{Kind: lint.Missing, TypeURL: wire.RouteType, Count: 1}, {Kind: lint.Unknown, TypeURL: wire.RouteType, Count: 2}, {Kind: lint.Held, TypeURL: wire.ClusterType, Count: 1}},
		Findings: []admin.Finding{{TypeURL: wire.ClusterType, Name: "c", Kind: lint.Held, Detail: "served resources name it"}, {Group: "envoy", TypeURL: wire.RouteType, Name: "a&b", Kind: lint.Missing, Detail: "names <x>"}},
	}
	p := newPages(t, &standIn{}, func() admin.Status { return status })
	_, body := get(p, "/")
	for _, want := range []string{"1 finding breaks a resource", "of 4 findings in all", "1 change is held: clients could not use the result", "tender release --all", "held change", "missing reference", `name=a%26b`, "names &lt;x&gt;"} {
		if !strings.Contains(body, want) {
			t.Errorf("the overview lacks %q:\n%s", want, body)
		}
	}
	status.Validation = new(admin.Validation)
	p = newPages(t, &standIn{}, func() admin.Status { return status }) // the other one remembers the page for a second
	if _, body := get(p, "/"); strings.Contains(body, "Findings") {
		t.Error("the overview has a section of findings, and there are none")
	}
}

// TestPages holds what each page says, and that what others made up is not taken for HTML.
func TestPages(t *testing.T) {
	fleet := &standIn{clients: 3, refusal: "<script>alert(1)</script> is no filter"}
	p := newPages(t, fleet, someStatus)
	for _, tt := range []struct {
		path string
		code int
		want []string
	}{
		{"/", 200, []string{"2 problems", "1 of 3 clients refuses cds", "A client lacks a change of 42s ago", `href="/clients/1"`, "100 resources", "default"}},
		{"/clients?node=sidecar&type=cds&refused=true", 200, []string{"3 clients", "refuses cds", `value="sidecar"`, `href="/clients?after=somewhere&amp;`}},
		{"/clients/1", 200, []string{"sidecar~1", "INVALID_ARGUMENT", "&lt;script&gt;alert(1)&lt;/script&gt; is no filter", `name=a%2fb%26c`}},
		{"/clients/4", 404, []string{"there is no client 4"}},
		{"/clients/x", 404, []string{"is not the number of a client"}},
		{"/resources", 200, []string{wire.ClusterType}},
		{"/resources?type=cds", 200, []string{"1 resource of cds", "a/b&amp;c", "12 bytes"}},
		{"/resource?type=cds&name=a/b%26c", 200, []string{"name: a/b&amp;c", "refused 1", "sidecar~1", "changed 1m0s ago", `<span class="removed">-name: &lt;a&gt;`, "cut off"}},
		{"/nothing", 404, []string{"there is no such page"}},
		{"/assets/page.css", 200, []string{"--stale"}},
		{"/assets/nothing", 404, nil},
	} {
		code, body := get(p, tt.path)
		if code != tt.code {
			t.Errorf("GET %s: %d, want %d", tt.path, code, tt.code)
		}
		for _, want := range tt.want {
			if !strings.Contains(body, want) {
				t.Errorf("GET %s has no %q:\n%s", tt.path, want, body)
			}
		}
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "ZgotmplZ") {
			t.Errorf("GET %s takes what a client made up for its own:\n%s", tt.path, body)
		}
		if strings.HasPrefix(tt.path, "/assets") {
			continue
		}
		for _, bad := range []string{` style="`, " onclick", "javascript:", "http://", "https://"} {
			if strings.Contains(body, bad) {
				t.Errorf("GET %s has %q: no outside asset, and nothing that the policy of the page forbids", tt.path, bad)
			}
		}
	}
	want := admin.ClientQuery{Type: wire.ClusterType, Node: "sidecar", Refused: true, Sort: admin.ByLag, Page: admin.Page{Limit: perPage}}
	get(p, "/clients?node=sidecar&type=cds&refused=true&x=1")
	if fleet.asked != want {
		t.Errorf("the page of clients asked for %+v, want %+v", fleet.asked, want)
	}
}

// TestAlerts holds that people are told of what is wrong, worst first, and what to do.
func TestAlerts(t *testing.T) {
	s := someStatus()
	s.Relay.Ready, s.Relay.NotReady = false, []string{"the origin was not reached yet"}
	s.Origins[0].Connected, s.Origins[0].LastError, s.Origins[0].Held, s.Origins[0].Frozen = false, "connection refused", 30, true
	s.Origins[0].Freeze = &admin.Freezing{By: "alice at 127.0.0.1", Reason: "bad routes", Since: time.Now()}
	s.Origins[0].Directory = &admin.Directory{FileCount: 5, BadCount: 2, Bad: []admin.BadFile{{File: "a.yaml", Error: "a.yaml:3: no name"}, {File: "b.yaml", Error: "b.yaml:1: EOF"}}}
	s.Views[0].Stale, s.Views[0].StaleSeconds = true, 200
	s.Files = []admin.Files{{Files: []admin.File{{Variable: "TENDER_TLS_CERT"}}, Error: "no key"}, {Files: []admin.File{{Variable: "TENDER_AUTHZ"}}}}
	p := newPages(t, &standIn{clients: 3, refusal: "no"}, func() admin.Status { return s })
	_, body := get(p, "/")
	at := -1
	for _, want := range []string{
		"The relay is not ready", "the origin was not reached yet", "Origin default is not connected", "connection refused", "2 of 5 files of origin default are bad", "a.yaml:3: no name; and 1 more", "30 removals of origin default are held back",
		"tender release --origin default", "stale for 3m20s", "TENDER_TLS_CERT: the files on disk are not in force: no key", "1 of 3 clients refuses cds", "A client lacks a change",
		"are not distributed: frozen by alice at 127.0.0.1", "ago: bad routes", "a restart of the relay ends it", "tender thaw --origin default",
	} {
		next := strings.Index(body, want)
		if next <= at {
			t.Errorf("%q comes at %d, want it after what is worse, at %d", want, next, at)
		}
		at = next
	}
	for _, want := range []string{"not ready", "lost", "files", "held", "stale", "frozen"} {
		if !strings.Contains(body, `<span class="badge">`+want+"</span>") {
			t.Errorf("no alert has the badge %q", want)
		}
	}
	if strings.Contains(body, "TENDER_AUTHZ") {
		t.Error("people are told of files that are as they should be")
	}
}

// TestLive holds that who follows a page is sent what is new of it, and nothing else, until
// the page is gone or the pages are closed.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := &standIn{clients: 3}
		p := newPages(t, fleet, someStatus)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := follow(ctx, p, "/live/clients/1")
		if got := <-events; got.name != "sections" || len(got.update.Sections) != 3 {
			t.Fatalf("the first event is %+v, want all three sections", got)
		}
		fleet.now(func() { fleet.refusal = "no such filter" })
		got := <-events
		if _, types := got.update.Sections["client-types"]; !types || !strings.Contains(string(got.update.Sections["client-types"]), "no such filter") {
			t.Errorf("after a refusal: %+v, want its words", got)
		}
		if _, resources := got.update.Sections["client-resources"]; resources {
			t.Errorf("after a refusal: %+v, want nothing of the resources, which are as they were", got)
		}
		fleet.now(func() { fleet.clients = 0 })
		if got := <-events; got.name != "gone" || got.update.Title != "there is no client 1" {
			t.Errorf("after the client has left: %+v, want it gone", got)
		}
		p.Close()
		for range events { // until the response ends
		}
	})
}

// TestLiveIsBounded holds that only so many may follow pages.
func TestLiveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPages(t, &standIn{}, someStatus)
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan event
		for range maxFollowers {
			all = append(all, follow(ctx, p, "/live/"))
		}
		synctest.Wait()
		if code, body := get(p, "/live/"); code != http.StatusServiceUnavailable {
			t.Errorf("one more gets %d %q, want 503", code, body)
		}
		cancel()
		for _, events := range all {
			for range events {
			}
		}
		if len(p.places) != 0 {
			t.Errorf("%d places are taken once all have gone, want none", len(p.places))
		}
	})
}

// An event is one of a page that is followed.
type event struct {
	name   string
	update update
}

// follow follows a page until ctx ends or the response does, which closes the channel.
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

// TestHistory holds what rates and percentiles are made of.
func TestHistory(t *testing.T) {
	var h History
	of := GroupType{"envoy", wire.ClusterType}
	at := time.Unix(1000, 0)
	add := func(deliveries, refusals int64, latencies ...int64) Point {
		s := Sample{At: at, Streams: 7, Counts: map[GroupType]Counts{of: {deliveries, refusals}}}
		copy(s.Latency.Buckets[:], latencies) // up to 1ms, up to 2.5ms, …
		h.Add(s)
		at = at.Add(interval)
		points := h.Points()
		if len(points) == 0 {
			return Point{}
		}
		return points[len(points)-1]
	}
	if got := add(100, 0); len(h.Points()) != 0 {
		t.Errorf("after one sample there is a point: %+v", got)
	}
	if got := add(150, 5); got.Deliveries != 10 || got.Refusals != 1 || got.Streams != 7 || !math.IsNaN(got.P50) {
		t.Errorf("50 deliveries and 5 refusals in 5s: %+v, want 10 and 1 a second, and no latency", got)
	}
	if got := h.Rates()[of]; got != (Rates{10, 1}) {
		t.Errorf("rates of the type: %+v, want 10 and 1", got)
	}
	if got := add(150, 5, 50, 50); got.P50 != 0.001 || got.P99 < 0.0024 || got.P99 > 0.0025 {
		t.Errorf("half within 1ms, half within 2.5ms: p50 %v, p99 %v", got.P50, got.P99)
	}
	above := make([]int64, len(downstream.Bounds)+1)
	above[0], above[1], above[len(above)-1] = 50, 50, 1
	if got := add(150, 5, above...); got.P50 != 60 {
		t.Errorf("one above all bounds: p50 %v, want the highest bound", got.P50)
	}
	if got := add(10, 0, above...); got.Deliveries != 2 {
		t.Errorf("a group that began anew, and 10 deliveries since: %v a second, want 2", got.Deliveries)
	}
	for range 2*kept + 10 {
		newest := add(10, 0, above...)
		points := h.Points()
		if oldest := points[0].At; newest.At.Sub(oldest) != time.Duration(len(points)-1)*interval || len(points) > kept {
			t.Fatalf("%d points, the oldest of %v and the newest of %v; want %d at most, without a gap", len(points), oldest, newest.At, kept)
		}
	}
	if got := len(h.Points()); got != kept {
		t.Errorf("%d points, want %d", got, kept)
	}
}

// TestFormat holds how numbers are written for people.
func TestFormat(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{brief(0), "0s"}, {brief(0.0042), "4.2ms"}, {brief(0.42), "400ms"}, {brief(42), "42s"}, {brief(200), "3m20s"}, {brief(3 * 86400), "3d0h"}, {brief(math.NaN()), "–"},
		{number(0.123), "0.12"}, {number(7.25), "7.2"}, {number(42), "42"}, {number(1234567), "1,234,567"}, {number(999.6), "1,000"},
		{plural(1, "client"), "1 client"}, {plural(1000, "client"), "1,000 clients"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
	for n, want := range map[float64]float64{0: 0, 0.3: 0.5, 1: 1, 1.1: 2, 7: 10, 42: 50, 501: 1000} {
		if got := nice(n); math.Abs(got-want) > 1e-9 {
			t.Errorf("nice(%v) = %v, want %v", n, got, want)
		}
	}
}
