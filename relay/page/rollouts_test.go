package page

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/rollout"
)

// rolling returns an edition in the second of three stages. One client has rejected it.
func rolling(now time.Time) *rollout.Status {
	return &rollout.Status{
		Origin: "default", Phase: rollout.Rolling, Edition: "3fa2b1c9", Resources: 12, Changed: now.Add(-14 * time.Minute),
		Stage: 2, Since: now.Add(-4 * time.Minute), Until: now.Add(6 * time.Minute),
		Waiting: 12, Oldest: now.Add(-15 * time.Minute),
		Check: "go", Checked: now.Add(-3 * time.Second),
		Rejections: []rollout.Rejection{{
			Client: rollout.Client{Node: "sidecar~7", Cohort: 1}, TypeURL: wire.ListenerType, Detail: "no such filter",
		}},
		Cohorts: []rollout.Cohort{
			{Name: "metadata.canary=true 10m0s", Clients: 3, Served: "3fa2b1c9", Subscribed: 3, Accepted: 3, Disconnected: 1},
			{Name: "5% 10m0s", Clients: 40, Served: "3fa2b1c9", Subscribed: 30, Accepted: 25, Rejected: 1},
			{Name: "25% approve", Clients: 200},
			{Name: "the rest", Clients: 757},
		},
		Outcomes: rollout.Outcomes{Promoted: 3, Halted: 1},
	}
}

// text returns the content of a panel except its bar.
func (p rolloutPanel) text() string {
	lines := []string{p.State + " [" + p.Class + "] for " + p.For, strings.ReplaceAll(p.Meaning, ". ", ".\n")}
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

// TestRolloutPanel verifies the text and the commands of each state.
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
All clients receive the origin's current resources.
Last edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
tender rollout undo --origin default`},
		{"cold", func(s *rollout.Status) { *s = rollout.Status{Origin: "default", Cold: true} }, `up to date [] for ` + `
All clients receive the origin's current resources.
The relay started without a snapshot of the last good, so all clients received the resources of that time at once.`},
		{"gathering", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Check = rollout.Gathering, 0, now.Add(2*time.Second), ""
			s.WaitsFor = "the origin: it is not connected or has not confirmed its state"
			s.Cohorts[0].Served, s.Cohorts[1].Served = "", ""
		}, `gathering changes [rolling] for 4m0s
The origin has changed resources.
The relay collects the changes for an edition.
No client receives them yet.
Time left: 2s;  []
Waiting for: the origin: it is not connected or has not confirmed its state;  []
Pending: 12 resources; oldest change 15m0s ago []
tender rollout diff --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"superseded", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Check, s.Cohorts[1].Served = rollout.Gathering, 0, time.Time{}, "", ""
		}, `gathering changes [rolling] for 4m0s
The origin has changed resources of edition 3fa2b1c9.
The relay collects the changes for the next edition.
Until then, the first stage receives edition 3fa2b1c9, and all others the last good.
Pending: 12 resources; oldest change 15m0s ago []
tender rollout diff --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"held", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Large, s.Check = rollout.Held, 0, true, ""
			s.WaitsFor = "the end of the hold: a large part of a type is removed"
		}, `held [stale] for 4m0s
Edition 3fa2b1c9 removes a large part of a type.
No client receives it yet.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Time left: 6m0s;  []
Waiting for: the end of the hold: a large part of a type is removed;  []
Pending: 12 resources; oldest change 15m0s ago []
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"waiting for the check", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.WaitsFor = rollout.Held, 0, time.Time{}, "the check"
			s.Check, s.Failing = "connection refused", now.Add(-5*time.Minute)
		}, `waiting to start [rolling] for 4m0s
Edition 3fa2b1c9 is ready.
No client receives it yet.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Waiting for: the check;  []
Pending: 12 resources; oldest change 15m0s ago []
Check: connection refused; failing for 5m0s [lagging]
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"rolling", func(s *rollout.Status) { s.Unobserved = true }, `stage 2 of 3 [rolling] for 4m0s
Clients of the first 2 stages receive edition 3fa2b1c9, all others the last good.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Stage: 2 of 3; 5% 10m0s []
Time left: 6m0s;  []
Pending: 12 resources; oldest change 15m0s ago []
Check: go; requested 3s ago []
Evidence: none in a stage; no client whose answer counts, or no local Envoy, accepted the edition [lagging]
tender rollout diff --origin default
tender rollout promote --origin default
tender rollout abort --origin default
tender rollout promote --all --origin default`},
		{"halted", func(s *rollout.Status) {
			s.Phase, s.Stage, s.Until, s.Check = rollout.Halted, 0, time.Time{}, "no: error rate"
			s.Halted = &rollout.Halt{Reason: "the check rejected the edition: error rate", At: now.Add(-2 * time.Hour)}
			s.Full = "64 parts are open, the maximum; lds/z has the changes of 7 parts"
		}, `halted [rejected] for 2h0m
Edition 3fa2b1c9 was rejected.
All clients receive the last good of what it changes, and other changes as usual.
A correction at the origin starts a new rollout.
reason: the check rejected the edition: error rate
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Parts: 64 parts are open, the maximum; lds/z has the changes of 7 parts;  []
Pending: 12 resources; oldest change 15m0s ago []
Check: no: error rate; requested 3s ago []
tender rollout diff --origin default
tender rollout resume --origin default
tender rollout promote --all --origin default`},
		{"frozen", func(s *rollout.Status) {
			s.Stage, s.Until, s.Frozen, s.Check = 1, time.Time{}, true, ""
		}, `stage 1 of 3, frozen [frozen] for 4m0s
Clients of the first stage receive edition 3fa2b1c9, all others the last good.
The origin is frozen: no change is distributed until it is thawed.
Edition: 3fa2b1c9; 12 resources, changed 14m0s ago []
Stage: 1 of 3; metadata.canary=true 10m0s []
Pending: 12 resources; oldest change 15m0s ago []
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

// TestPromoteHintNamesNextClients verifies that the hint about promote names the next stage, or all clients.
func TestPromoteHintNamesNextClients(t *testing.T) {
	for stage, want := range map[int]string{1: "next stage", 2: "next stage", 3: "all clients"} {
		s := rolling(time.Now())
		s.Stage = stage
		if got := newHints(s)[1]; !strings.Contains(got.Effect, want) {
			t.Errorf("hint in stage %d of 3: %+v, want %q", stage, got, want)
		}
	}
}

// percentage returns the number of a percentage.
func percentage(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBar verifies that a bar fills its width, that a cohort with more clients is wider, that each cohort is visible,
// and the legend.
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
				t.Errorf("%s begins at %v, before the end of the last segment at %v", seg.Title, x, end)
			}
			width := percentage(t, seg.Width)
			if widths[i] += width; width < minSegmentWidth {
				t.Errorf("%s is %v wide, want at least %v", seg.Title, width, minSegmentWidth)
			}
			end = percentage(t, seg.X) + width
		}
	}
	want := "1 accepted, 2 accepted, 2 rejected, 2 unanswered, 2 unaffected, 3 empty, rest lastgood"
	if got := strings.Join(kinds, ", "); got != want {
		t.Errorf("segments: %s, want %s", got, want)
	}
	if end < 99.9 || end > 100.01 {
		t.Errorf("the bar ends at %v %%, want 100", end)
	}
	if widths[2] < minCohortWidth-0.01 || widths[2] >= widths[0] || widths[0] >= widths[1] || widths[1] >= widths[3] {
		t.Errorf("cohorts of 3, 40, 0 and 757 clients are %v wide", widths)
	}
	if got, want := fmt.Sprint(b.Legend), "[{accepted accepted the edition 28} {rejected rejected the edition 1} "+
		"{unanswered served the edition, not answered 4} {unaffected served the edition, not affected 10} "+
		"{lastgood served the last good 757}]"; got != want {
		t.Errorf("legend: %s, want %s", got, want)
	}
	if want := "Clients by stage: 1, metadata.canary=true 10m0s: 3 clients, 3 accepted the edition; " +
		"2, 5% 10m0s: 40 clients, 25 accepted the edition, 1 rejected the edition, " +
		"4 served the edition, not answered, 10 served the edition, not affected; " +
		"3, 25% approve: no client; rest: 757 clients, 757 served the last good"; b.Label != want {
		t.Errorf("label: %s, want %s", b.Label, want)
	}
}

// TestBarOfOddCounts verifies that a bar stays within its bounds without clients, and with counts that disagree because
// they were sampled at different times.
func TestBarOfOddCounts(t *testing.T) {
	for name, s := range map[string]*rollout.Status{
		"no clients": {Cohorts: []rollout.Cohort{{Name: "5% 1m0s"}, {Name: "the rest"}}},
		"fewer clients than answers": {Phase: rollout.Rolling, Cohorts: []rollout.Cohort{
			{Name: "5% 1m0s", Served: "x", Clients: 1, Subscribed: 5, Accepted: 4, Rejected: 3}, {Name: "the rest", Clients: 1},
		}},
		"no cohorts": {},
		"halted": {Phase: rollout.Halted, Cohorts: []rollout.Cohort{
			{Name: "5% 1m0s", Clients: 2, Subscribed: 9, Accepted: 7, Rejected: 2}, {Name: "the rest"},
		}},
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

// TestBarOfAHaltedEdition verifies that a bar shows the clients that rejected the edition, and that all are served the
// last good.
func TestBarOfAHaltedEdition(t *testing.T) {
	s := rolling(time.Now())
	s.Phase, s.Stage = rollout.Halted, 0
	for i := range s.Cohorts {
		s.Cohorts[i].Served = ""
	}
	const want = "[{rejected rejected the edition 1} {lastgood served the last good 999}]"
	if got := fmt.Sprint(newBar(s).Legend); got != want {
		t.Errorf("legend: %s, want %s", got, want)
	}
}

// TestRolloutsOnThePage verifies that the overview has a panel for each origin, the halted rollout first and as an
// alert. It has no panel if rollouts are off.
func TestRolloutsOnThePage(t *testing.T) {
	now := time.Now()
	halted := rolling(now)
	halted.Origin, halted.Phase, halted.Stage = "west", rollout.Halted, 0
	halted.Halted = &rollout.Halt{Reason: "1 client rejected the edition", At: now.Add(-5 * time.Minute)}
	for name, rollouts := range map[string]func() []*rollout.Status{
		"no function": nil, "none": func() []*rollout.Status { return nil },
	} {
		p := New(Config{Status: someStatus, Fleet: &fakeFleet{clients: 3}, History: new(History), Rollouts: rollouts})
		t.Cleanup(p.Close)
		if _, body := get(p, "/"); strings.Contains(body, "ollout") {
			t.Errorf("%s: the page has rollouts, which are off:\n%s", name, body)
		}
	}
	p := New(Config{
		Status: someStatus, Fleet: &fakeFleet{clients: 3}, History: new(History),
		Rollouts: func() []*rollout.Status { return []*rollout.Status{rolling(now), halted} },
	})
	t.Cleanup(p.Close)
	_, body := get(p, "/")
	at := -1
	for _, want := range []string{
		"1 problem", `<a href="#rollouts">The rollout of origin west is halted, for 5m0s</a>`, `<section id="rollouts">`,
		"Origin west:", "1 client rejected the edition", "tender rollout resume --origin west",
		"Origin default:", "stage 2 of 3", `<a href="/clients?node=sidecar~7">sidecar~7</a>`,
		"no such filter", "tender rollout promote --origin default", "3 promoted, 1 halted", `<section id="fanout">`,
	} {
		next := at + 1 + strings.Index(body[at+1:], want)
		if next <= at {
			t.Fatalf("%q is not after %d:\n%s", want, at, body)
		}
		at = next
	}
}

// TestRolloutAlerts verifies which states of rollouts cause an alert.
func TestRolloutAlerts(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name   string
		change func(*rollout.Status)
		want   string
	}{
		{"rolling", func(*rollout.Status) {}, ""},
		{
			"halted", func(s *rollout.Status) { s.Phase, s.Halted = rollout.Halted, &rollout.Halt{At: now.Add(-time.Minute)} },
			"rejected: The rollout of origin default is halted, for 1m0s",
		},
		{
			"held", func(s *rollout.Status) { s.Phase, s.Large = rollout.Held, true },
			"stale: Edition 3fa2b1c9 of origin default is held: it removes a large part of a type",
		},
		{"rolling a large edition", func(s *rollout.Status) { s.Large = true }, ""},
		{
			"failing check", func(s *rollout.Status) { s.Failing = now.Add(-time.Hour) },
			"stale: The check of the rollout of origin default has failed for 1h0m",
		},
		{"failing check of the last edition", func(s *rollout.Status) { s.Phase, s.Failing = rollout.Current, now }, ""},
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

// hostile are texts of a client that attempts to inject HTML or to enlarge the page.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</p></article></section><h1>No problems</h1>`,
	`' onmouseover='alert(1)`, "javascript:alert(1)", `{{.Origin}}`, "</script><style>main{display:none}</style>",
	"\u202egnp.exe\u2066", "\x00\xff\xfe\x1b[2J", "<!--", "]]>",
	strings.Repeat("\u0301", 2000), strings.Repeat("<&\"", 1000),
}

// TestRolloutsOfHostileClients verifies that texts of clients and of the check are escaped, and cannot make the page
// large.
func TestRolloutsOfHostileClients(t *testing.T) {
	plain, size := 0, func(text string) int {
		s := rolling(time.Now())
		s.Phase, s.Stage, s.Check, s.Halted = rollout.Halted, 0, text, &rollout.Halt{Reason: text, At: time.Now()}
		s.Rejections = nil
		for range rollout.MaxRejections {
			client := rollout.Client{Node: text, Cohort: 9}
			s.Rejections = append(s.Rejections, rollout.Rejection{Client: client, TypeURL: text, Detail: text})
		}
		html, err := execute(section{"rollouts", newRolloutPanels([]*rollout.Status{s}, time.Now())})
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{
			"<script", "<img", "<style", "<h1", "<!--", " onmouseover='",
			`href="javascript`, "ZgotmplZ", "\x00", "No problems</h1>",
		} {
			if strings.Contains(string(html), bad) {
				t.Errorf("the panel of %.60q contains %q:\n%s", text, bad, html)
			}
		}
		if n := strings.Count(string(html), "<article"); n != strings.Count(string(html), "</article>") || n != 1 {
			t.Errorf("the panel of %.60q has %d articles, want one with an end", text, n)
		}
		return len(html)
	}
	plain = size("no")
	for _, text := range hostile {
		if got := size(text); got > plain+64<<10 {
			t.Errorf("the panel of %.60q has %d bytes, that of a short text %d", text, got, plain)
		}
	}
}

// TestLiveRollouts verifies that an event has the panel after each step of the rollout.
func TestLiveRollouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := &fakeFleet{clients: 3}
		current := rolling(time.Now())
		p := New(Config{Status: someStatus, Fleet: fleet, History: new(History), Rollouts: func() []*rollout.Status {
			fleet.mu.Lock()
			defer fleet.mu.Unlock()
			return []*rollout.Status{current}
		}})
		events := follow(t.Context(), p, "/live/")
		if got := <-events; !strings.Contains(string(got.update.Sections["rollouts"]), "stage 2 of 3") {
			t.Errorf("first event %+v, want the panel", got)
		}
		fleet.locked(func() {
			current = rolling(time.Now())
			current.Stage = 3
		})
		if got := <-events; !strings.Contains(string(got.update.Sections["rollouts"]), "stage 3 of 3") {
			t.Errorf("event after a step: %+v, want the panel", got)
		}
		p.Close()
		for range events { // until the response ends
		}
	})
}

// TestB53_PanelHasRowsOfParts: the panel of a rollout has a row for each open part, if there are several, and its commands
// name the part that it shows.
func TestB53_PanelHasRowsOfParts(t *testing.T) {
	halted := &rollout.Status{
		Origin: "default", Part: "rds/shop", Phase: rollout.Halted, Edition: "ab", Resources: 2,
		Halted: &rollout.Halt{Reason: "a client rejected it"},
	}
	rolling := &rollout.Status{Origin: "default", Part: "cds/cart", Phase: rollout.Rolling, Edition: "cd", Resources: 1, Stage: 1}
	promoted := &rollout.Status{Origin: "default", Part: "cds/old", Phase: rollout.Current, Undoable: true}
	s := *halted
	s.Parts = []*rollout.Status{halted, rolling, promoted}
	p := newRolloutPanel(&s, time.Now())
	want := []partRow{
		{Name: "rds/shop", State: "halted", Edition: "ab", Resources: 2, Reason: "a client rejected it", Rejected: true},
		{Name: "cds/cart", State: "stage 1 of 0", Edition: "cd", Resources: 1},
	}
	if !slices.Equal(p.Parts, want) {
		t.Errorf("the rows are %+v, want %+v", p.Parts, want)
	}
	if !slices.ContainsFunc(p.Hints, func(h hint) bool {
		return h.Command == "tender rollout resume --part rds/shop --origin default"
	}) {
		t.Errorf("the commands are %+v, want a resume of the part", p.Hints)
	}
	s.Parts = s.Parts[:1]
	if p := newRolloutPanel(&s, time.Now()); p.Parts != nil {
		t.Errorf("a single part has the rows %+v, want none", p.Parts)
	}
}
