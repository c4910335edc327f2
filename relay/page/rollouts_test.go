package page

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// rolling is an edition in the second of three stages, one of whose clients has refused it.
func rolling(now time.Time) *rollout.Status {
	return &rollout.Status{
		Origin: "default", Phase: rollout.Rolling, Edition: "3fa2b1c9", Resources: 12, Changed: now.Add(-14 * time.Minute),
		Stage: 2, Since: now.Add(-4 * time.Minute), Until: now.Add(6 * time.Minute), Waiting: 12, Oldest: now.Add(-15 * time.Minute),
		Check: "go", Checked: now.Add(-3 * time.Second),
		Refusals: []rollout.Refusal{{Client: rollout.Client{Node: "sidecar~7", Cohort: 1}, TypeURL: wire.ListenerType, Detail: "no such filter"}},
		Cohorts: []rollout.Cohort{
			{Name: "metadata.canary=true 10m0s", Clients: 3, Served: "3fa2b1c9", Subscribed: 3, Accepted: 3, Disconnected: 1},
			{Name: "5% 10m0s", Clients: 40, Served: "3fa2b1c9", Subscribed: 30, Accepted: 25, Refused: 1},
			{Name: "25% approve", Clients: 200},
			{Name: "the rest", Clients: 757},
		},
		Outcomes: rollout.Outcomes{Promoted: 3, Halted: 1},
	}
}

// text returns what a panel says, beside its bar.
func (p rolloutPanel) text() string {
	lines := []string{p.State + " [" + p.Class + "] for " + p.For, p.Meaning}
	if p.Reason != "" {
		lines = append(lines, "reason: "+p.Reason)
	}
	for _, f := range p.Facts {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s; %s [%s]", f.Label, f.Value, f.Note, f.Class)))
	}
	for _, h := range p.Hints {
		lines = append(lines, h.Command)
	}
	return strings.Join(lines, "\n")
}

// TestRolloutPanel holds what people are told in each state, and which commands they are given.
func TestRolloutPanel(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, tt := range []struct {
		name   string
		change func(*rollout.Status)
		want   string
	}{
		{"current", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Waiting, s.Oldest, s.Undoable = rollout.Current, 0, time.Time{}, 0, time.Time{}, true
		}, `up to date [] for 4m0s
All clients are served what the origin has.
Last edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
tender rollout undo --origin default`},
		{"cold", func(s *rollout.Status) { *s = rollout.Status{Origin: "default", Cold: true} }, `up to date [] for ` + `
All clients are served what the origin has. The relay started without a snapshot of the last good, so what the origin had then went to all clients at once.`},
		{"gathering", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Check = rollout.Gathering, 0, now.Add(2*time.Second), ""
			s.WaitsFor, s.Cohorts[0].Served, s.Cohorts[1].Served = "the origin: it is not connected, or has not confirmed what it has", "", ""
		}, `collecting changes [rolling] for 4m0s
The origin has changed. The changes are collected into an edition, which no client is served yet.
Time left: 2s;  []
Waits for: the origin: it is not connected, or has not confirmed what it has;  []
Withheld: 12 resources; oldest change 15m0s ago []
tender rollout diff --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"superseded", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Check, s.Cohorts[1].Served = rollout.Gathering, 0, time.Time{}, "", ""
		}, `collecting changes [rolling] for 4m0s
The origin has changed what edition 3fa2b1c9 changes. The changes are collected into the next edition; until then the first stage keeps edition 3fa2b1c9, and all others are served the last good.
Withheld: 12 resources; oldest change 15m0s ago []
tender rollout diff --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"held", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Large, s.Check, s.WaitsFor = rollout.Held, 0, true, "", "the end of the hold: a large part of a type is removed"
		}, `held [stale] for 4m0s
Edition 3fa2b1c9 removes a large part of a type. No client is served it yet.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Time left: 6m0s;  []
Waits for: the end of the hold: a large part of a type is removed;  []
Withheld: 12 resources; oldest change 15m0s ago []
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"waiting for the check", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.WaitsFor, s.Check, s.Failing = rollout.Held, 0, time.Time{}, "the check", "connection refused", now.Add(-5*time.Minute)
		}, `waiting to start [rolling] for 4m0s
Edition 3fa2b1c9 is ready. No client is served it yet.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Waits for: the check;  []
Withheld: 12 resources; oldest change 15m0s ago []
Check: connection refused; no answer for 5m0s [late]
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"rolling", func(s *rollout.Status) { s.Unobserved = true }, `stage 2 of 3 [rolling] for 4m0s
Clients of the first 2 stages are served edition 3fa2b1c9, all others the last good.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Stage: 2 of 3; 5% 10m0s []
Time left: 6m0s;  []
Withheld: 12 resources; oldest change 15m0s ago []
Check: go; asked 3s ago []
Evidence: none in a stage; no connected client that counts accepted the edition [late]
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"halted", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Check = rollout.Halted, 0, time.Time{}, "no: error rate"
			s.Halted = &rollout.Halt{Reason: "the check rejected the edition: error rate", At: now.Add(-2 * time.Hour)}
		}, `halted [refused] for 2h0m
Edition 3fa2b1c9 was rejected. No client is served it: all are served the last good, and endpoints go on changing. A correction at the origin starts a new rollout by itself.
reason: the check rejected the edition: error rate
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Withheld: 12 resources; oldest change 15m0s ago []
Check: no: error rate; asked 3s ago []
tender rollout diff --origin default
tender rollout resume --origin default
tender rollout promote --all --origin default`},
		{"frozen", func(s *rollout.Status) { s.Stage, s.Until, s.Frozen, s.Check = 1, time.Time{}, true, "" }, `stage 1 of 3, frozen [frozen] for 4m0s
Clients of the first stage are served edition 3fa2b1c9, all others the last good. The origin is frozen: nothing changes until it is thawed.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Stage: 1 of 3; metadata.canary=true 10m0s []
Withheld: 12 resources; oldest change 15m0s ago []
tender thaw --origin default
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := rolling(now)
			tt.change(s)
			if got := newRolloutPanel(s, now).text(); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// TestRolloutPromoteNamesWhoIsNext holds that people know whether a promotion serves a stage or all clients.
func TestRolloutPromoteNamesWhoIsNext(t *testing.T) {
	for stage, want := range map[int]string{1: "next stage", 2: "next stage", 3: "all clients"} {
		s := rolling(time.Now())
		s.Stage = stage
		if got := hintsOf(s)[1]; !strings.Contains(got.Does, want) {
			t.Errorf("in stage %d of 3: %+v, want %q", stage, got, want)
		}
	}
}

// number of a percentage.
func percentage(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBar holds that a bar is as wide as there is room, that a cohort with more clients is wider and none is invisible, and
// what its colours stand for.
func TestBar(t *testing.T) {
	s := rolling(time.Now())
	s.Cohorts[2].Clients = 0
	b := newBar(s)
	var kinds []string
	end, widths := 0.0, make([]float64, len(b.Cohorts))
	for i, c := range b.Cohorts {
		for _, seg := range c.Segments {
			kinds = append(kinds, fmt.Sprint(c.Label, " ", seg.Class))
			if x := percentage(t, seg.X); x < end-0.02 {
				t.Errorf("%s begins at %v, over what ends at %v", seg.Title, x, end)
			}
			width := percentage(t, seg.Width)
			if widths[i] += width; width < leastSegment {
				t.Errorf("%s is %v wide: not to be seen", seg.Title, width)
			}
			end = percentage(t, seg.X) + width
		}
	}
	want := "1 accepted, 2 accepted, 2 refused, 2 unanswered, 2 unaffected, 3 nobody, rest lastgood"
	if got := strings.Join(kinds, ", "); got != want {
		t.Errorf("segments: %s, want %s", got, want)
	}
	if end < 99.9 || end > 100.01 {
		t.Errorf("the bar ends at %v %%, want 100", end)
	}
	if widths[2] < leastCohort-0.01 || widths[2] >= widths[0] || widths[0] >= widths[1] || widths[1] >= widths[3] {
		t.Errorf("cohorts of 3, 40, 0 and 757 clients are %v wide", widths)
	}
	if got, want := fmt.Sprint(b.Legend), "[{accepted accepted the edition 28} {refused refused it 1} {unanswered served it, no answer yet 4} "+
		"{unaffected served it, not affected 10} {lastgood served the last good 757}]"; got != want {
		t.Errorf("legend: %s, want %s", got, want)
	}
	if want := "Clients by stage: 1, metadata.canary=true 10m0s: 3 clients, 3 accepted the edition; 2, 5% 10m0s: 40 clients, 25 accepted the edition, 1 refused it, " +
		"4 served it, no answer yet, 10 served it, not affected; 3, 25% approve: no client; rest: 757 clients, 757 served the last good"; b.Label != want {
		t.Errorf("label: %s, want %s", b.Label, want)
	}
}

// TestBarOfOddCounts holds that a bar stays within its bounds when counts of different moments do not agree, and without clients.
func TestBarOfOddCounts(t *testing.T) {
	for name, s := range map[string]*rollout.Status{
		"no clients": {Cohorts: []rollout.Cohort{{Name: "5% 1m0s"}, {Name: "the rest"}}},
		"fewer clients than answers": {Phase: rollout.Rolling, Cohorts: []rollout.Cohort{
			{Name: "5% 1m0s", Served: "x", Clients: 1, Subscribed: 5, Accepted: 4, Refused: 3}, {Name: "the rest", Clients: 1},
		}},
		"no cohorts": {},
		"halted":     {Phase: rollout.Halted, Cohorts: []rollout.Cohort{{Name: "5% 1m0s", Clients: 2, Subscribed: 9, Accepted: 7, Refused: 2}, {Name: "the rest"}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range newBar(s).Cohorts {
				for _, seg := range c.Segments {
					if x, w := percentage(t, seg.X), percentage(t, seg.Width); x < 0 || w <= 0 || x+w > 100.01 {
						t.Errorf("%s is at %v and %v wide", seg.Title, x, w)
					}
					if s.Phase == rollout.Halted && seg.Class == "accepted" {
						t.Errorf("a halted edition is shown as accepted: %s", seg.Title)
					}
				}
			}
		})
	}
}

// TestBarOfAHaltedEdition holds that a bar shows who refused it, and that no client is served it any more.
func TestBarOfAHaltedEdition(t *testing.T) {
	s := rolling(time.Now())
	s.Phase, s.Stage = rollout.Halted, 0
	for i := range s.Cohorts {
		s.Cohorts[i].Served = ""
	}
	if got, want := fmt.Sprint(newBar(s).Legend), "[{refused refused it 1} {lastgood served the last good 999}]"; got != want {
		t.Errorf("legend: %s, want %s", got, want)
	}
}

// TestRolloutsOnThePage holds that the overview has a panel for each origin, the halted one first, that it is told of as a
// problem, and that there is none while rollouts are off.
func TestRolloutsOnThePage(t *testing.T) {
	now := time.Now()
	halted := rolling(now)
	halted.Origin, halted.Phase, halted.Stage, halted.Halted = "west", rollout.Halted, 0, &rollout.Halt{Reason: "1 client refused it", At: now.Add(-5 * time.Minute)}
	for name, rollouts := range map[string]func() []*rollout.Status{
		"no function": nil, "none": func() []*rollout.Status { return nil },
	} {
		p := New(Config{Status: someStatus, Fleet: &standIn{clients: 3}, History: new(History), Rollouts: rollouts})
		t.Cleanup(p.Close)
		if _, body := get(p, "/"); strings.Contains(body, "ollout") {
			t.Errorf("%s: the page tells of rollouts, which are off:\n%s", name, body)
		}
	}
	p := New(Config{Status: someStatus, Fleet: &standIn{clients: 3}, History: new(History), Rollouts: func() []*rollout.Status { return []*rollout.Status{rolling(now), halted} }})
	t.Cleanup(p.Close)
	_, body := get(p, "/")
	at := -1
	for _, want := range []string{
		"1 problem", `<a href="#rollouts">The rollout of origin west is halted, for 5m0s</a>`, `<section id="rollouts">`,
		"Origin west:", "1 client refused it", "tender rollout resume --origin west", "Origin default:", "stage 2 of 3", `<a href="/clients?node=sidecar~7">sidecar~7</a>`,
		"no such filter", "tender rollout promote --origin default", "3 promoted, 1 halted", `<section id="fanout">`,
	} {
		next := at + 1 + strings.Index(body[at+1:], want)
		if next <= at {
			t.Fatalf("%q is not where it should be, after %d:\n%s", want, at, body)
		}
		at = next
	}
}

// TestRolloutAlerts holds which rollouts are problems.
func TestRolloutAlerts(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name   string
		change func(*rollout.Status)
		want   string
	}{
		{"rolling", func(*rollout.Status) {}, ""},
		{"halted", func(s *rollout.Status) { s.Phase, s.Halted = rollout.Halted, &rollout.Halt{At: now.Add(-time.Minute)} }, "refused: The rollout of origin default is halted, for 1m0s"},
		{"held", func(s *rollout.Status) { s.Phase, s.Large = rollout.Held, true }, "stale: Edition 3fa2b1c9 of origin default is held: it removes a large part of a type"},
		{"a large edition that rolls", func(s *rollout.Status) { s.Large = true }, ""},
		{"check", func(s *rollout.Status) { s.Failing = now.Add(-time.Hour) }, "stale: The check of the rollout of origin default has given no answer for 1h0m"},
		{"check of the last edition", func(s *rollout.Status) { s.Phase, s.Failing = rollout.Current, now }, ""},
	} {
		s := rolling(now)
		tt.change(s)
		var got []string
		for _, a := range rolloutAlerts([]*rollout.Status{s}, now) {
			got = append(got, a.Class+": "+a.Text)
		}
		if got := strings.Join(got, "; "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// hostile are texts of a client that would like to be more than text.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</p></article></section><h1>No problems</h1>`, `' onmouseover='alert(1)`, "javascript:alert(1)",
	`{{.Origin}}`, "</script><style>main{display:none}</style>", "\u202egnp.exe\u2066", "\x00\xff\xfe\x1b[2J", "<!--", "]]>", strings.Repeat("\u0301", 2000), strings.Repeat("<&\"", 1000),
}

// TestRolloutsOfHostileClients holds that nothing that clients or the check made up is taken for HTML, and that it cannot make the
// page large.
func TestRolloutsOfHostileClients(t *testing.T) {
	plain, size := 0, func(text string) int {
		s := rolling(time.Now())
		s.Phase, s.Stage, s.Check, s.Halted = rollout.Halted, 0, text, &rollout.Halt{Reason: text, At: time.Now()}
		s.Refusals = nil
		for range rollout.MaxRefusals {
			s.Refusals = append(s.Refusals, rollout.Refusal{Client: rollout.Client{Node: text, Cohort: 9}, TypeURL: text, Detail: text})
		}
		html, err := execute(section{"rollouts", newRolloutPanels([]*rollout.Status{s}, time.Now())})
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"<script", "<img", "<style", "<h1", "<!--", " onmouseover='", `href="javascript`, "ZgotmplZ", "\x00", "No problems</h1>"} {
			if strings.Contains(string(html), bad) {
				t.Errorf("%.60q comes as %q:\n%s", text, bad, html)
			}
		}
		if n := strings.Count(string(html), "<article"); n != strings.Count(string(html), "</article>") || n != 1 {
			t.Errorf("%.60q: %d articles begin, want one that ends", text, n)
		}
		return len(html)
	}
	plain = size("no")
	for _, text := range hostile {
		if got := size(text); got > plain+64<<10 {
			t.Errorf("%.60q makes the panel %d bytes large, which is %d otherwise", text, got, plain)
		}
	}
}

// TestLiveRollouts holds that who follows the page is sent the panel when the rollout moves.
func TestLiveRollouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := &standIn{clients: 3}
		now := rolling(time.Now())
		p := New(Config{Status: func() admin.Status { return someStatus() }, Fleet: fleet, History: new(History), Rollouts: func() []*rollout.Status {
			fleet.mu.Lock()
			defer fleet.mu.Unlock()
			return []*rollout.Status{now}
		}})
		events := follow(t.Context(), p, "/live/")
		if got := <-events; !strings.Contains(string(got.update.Sections["rollouts"]), "stage 2 of 3") {
			t.Errorf("the first event is %+v, want the panel", got)
		}
		fleet.now(func() {
			now = rolling(time.Now())
			now.Stage = 3
		})
		if got := <-events; !strings.Contains(string(got.update.Sections["rollouts"]), "stage 3 of 3") {
			t.Errorf("after a step: %+v, want the panel", got)
		}
		p.Close()
		for range events { // until the response ends
		}
	})
}
