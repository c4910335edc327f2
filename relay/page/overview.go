package page

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream/reconcile"
)

// laggingSeconds is the lag from which the page marks a client as lagging.
const laggingSeconds = 10

// pendingAge is the maximum age of the list of pending changes, unless listing them takes long.
const pendingAge = 2 * time.Second

// overviewClients is the maximum number of clients on the overview.
const overviewClients = 20

// A tile is one number at the top of the overview.
type tile struct {
	Label, Value, Note string
	Class              string // CSS class of a problem: stale, rejected or lagging; empty without one
}

// An alert is a condition that needs attention.
type alert struct {
	Class   string // CSS class: stale, rejected, frozen or lagging
	Badge   string // word before the text; Class if empty
	Text    string
	Note    string // details
	Href    string // page with details
	Command string // command that ends the condition
}

// overview returns the status page.
func (p *Pages) overview(*http.Request) (view, error) {
	now := time.Now()
	status := p.cfg.Status()
	clients, err := p.cfg.Fleet.Clients(admin.ClientQuery{Sort: admin.ByLag, Page: admin.Page{Limit: overviewClients}})
	if err != nil {
		return view{}, err
	}
	points, rollouts := p.cfg.History.Points(), p.rollouts()
	alerts := alertsOf(&status, &clients, rollouts, now)
	title := "No problems"
	if len(alerts) > 0 {
		title = alerts[0].Text
	}
	var sections []section
	if p.tier != nil {
		sections = append(sections, section{"tier", p.tierTable(now)})
	}
	sections = append(sections, section{"summary", struct {
		Relay  admin.Relay
		Tiles  []tile
		Alerts []alert
		Tier   bool
	}{status.Relay, newTiles(&status, &clients, points), alerts, p.tier != nil}})
	if len(rollouts) > 0 {
		sections = append(sections, section{"rollouts", newRolloutPanels(rollouts, now)})
	}
	if table, any := p.pendingChanges(&status, now); any {
		sections = append(sections, section{"pending", table})
	}
	if all, _ := status.Validation.Totals(); all > 0 {
		sections = append(sections, section{"findings", status.Validation})
	}
	sections = append(sections,
		section{"fanout", newFanout(&status, clients.Types, p.cfg.History.Rates(), now)},
		section{"charts", newCharts(points, now)},
		section{"clients", clientTable{Clients: clients.Clients, Totals: clients.Totals, Now: now, More: clients.Next != ""}},
		section{"views", struct {
			Status admin.Status
			Now    time.Time
		}{status, now}},
	)
	return view{Title: title, Nav: "/", Sections: sections}, nil
}

// A pendingTable lists the pending changes.
type pendingTable struct {
	Rows  []admin.PendingChange // at most pageSize
	More  int                   // number of further rows
	Total int                   // in the status, which is newer
	Ready bool                  // the changes were listed
	Now   time.Time
}

// pendingChanges returns the table of pending changes. any is false if there are none.
func (p *Pages) pendingChanges(s *admin.Status, now time.Time) (t pendingTable, any bool) {
	if p.pending == nil {
		return t, false
	}
	t.Now = now
	for i := range s.Origins {
		for _, n := range s.Origins[i].Pending {
			t.Total += n
		}
	}
	if rows, _ := p.pending.latest(now); rows != nil {
		t.Ready = true
		t.Rows = (*rows)[:min(len(*rows), pageSize)]
		t.More = len(*rows) - len(t.Rows)
	}
	return t, t.Total+len(t.Rows) > 0
}

// newTiles returns the numbers at the top.
func newTiles(s *admin.Status, c *admin.Clients, points []Point) []tile {
	last := Point{P50: math.NaN(), P99: math.NaN()}
	if len(points) > 0 {
		last = points[len(points)-1]
	}
	stale := 0
	for i := range s.Views {
		if s.Views[i].Stale {
			stale++
		}
	}
	class := func(bad bool, class string) string {
		if bad {
			return class
		}
		return ""
	}
	return []tile{
		{"Streams", number(float64(s.Relay.Streams)), plural(len(s.Views), "view"), ""},
		{"Deliveries per second", number(last.Deliveries), "p50 " + brief(last.P50) + ", p99 " + brief(last.P99), ""},
		{"Stale views", number(float64(stale)), "of " + number(float64(len(s.Views))), class(stale > 0, "stale")},
		{
			"Rejecting clients", number(float64(c.Totals.Rejecting)), "of " + number(float64(c.Totals.Streams)),
			class(c.Totals.Rejecting > 0, "rejected"),
		},
		{
			"Longest lag", brief(c.Totals.LagSeconds), plural(c.Totals.Lagging, "client") + " lagging",
			class(c.Totals.LagSeconds >= laggingSeconds, "lagging"),
		},
	}
}

// alertsOf returns the alerts, the most severe first.
func alertsOf(s *admin.Status, c *admin.Clients, rollouts []*rollout.Status, now time.Time) (alerts []alert) {
	if !s.Relay.Ready {
		alerts = append(alerts, alert{
			Class: "stale", Badge: "not ready", Text: "The relay is not ready", Note: strings.Join(s.Relay.NotReady, "; "),
		})
	}
	if warning := s.Log.Warning(); warning != "" {
		alerts = append(alerts, alert{Class: "stale", Badge: "log", Text: warning})
	}
	for i := range s.Origins {
		alerts = append(alerts, originAlerts(&s.Origins[i], now)...)
	}
	for i := range s.Views {
		if v := &s.Views[i]; v.Stale {
			alerts = append(alerts, alert{
				Class: "stale",
				Text: fmt.Sprintf("The view of origin %s for %s has been stale for %s",
					v.Origin, group(v.Group), brief(v.StaleSeconds)),
				Note: plural(v.Streams, "client") + " served with cached resources",
			})
		}
	}
	for i := range s.Files {
		if warning := s.Files[i].Warning(now); warning != "" {
			alerts = append(alerts, alert{Class: "stale", Badge: "files", Text: s.Files[i].Variables() + ": " + warning})
		}
	}
	alerts = append(alerts, findingAlerts(s.Validation)...)
	alerts = append(alerts, refusalAlerts(s.Refusals, now)...)
	alerts = append(alerts, rolloutAlerts(rollouts, now)...)
	for _, t := range c.Types {
		if t.Rejecting > 0 {
			alerts = append(alerts, alert{
				Class: "rejected", Href: clientsPath(t.Group, t.TypeURL) + "&rejected=true",
				Text: fmt.Sprintf("%s of %s reject%s %s",
					number(float64(t.Rejecting)), plural(t.Clients, "client"), verbEnding(t.Rejecting), short(t.TypeURL)),
				Note: "in " + group(t.Group),
			})
		}
	}
	if n := c.Totals.Stalled; n > 0 {
		alerts = append(alerts, alert{
			Class: "lagging", Badge: "stalled", Text: fmt.Sprintf("%s %s stalled: not reading responses", plural(n, "client"), isOrAre(n)),
			Href: "/clients?stalled=true",
		})
	}
	if lag := c.Totals.LagSeconds; lag >= laggingSeconds {
		alerts = append(alerts, alert{
			Class: "lagging", Text: "A client has not accepted a change for " + brief(lag),
			Note: plural(c.Totals.Lagging, "client") + " lagging", Href: "/clients",
		})
	}
	rank := []string{"stale", "rejected", "lagging", "frozen"}
	slices.SortStableFunc(alerts, func(a, b alert) int {
		return slices.Index(rank, a.Class) - slices.Index(rank, b.Class)
	})
	return alerts
}

// originAlerts returns the alerts of an origin.
func originAlerts(o *admin.Origin, now time.Time) (alerts []alert) {
	if !o.Connected {
		a := alert{Class: "stale", Badge: "lost", Text: fmt.Sprintf("Origin %s is not connected", o.Name), Note: o.LastError}
		if !o.Since.IsZero() {
			a.Text += ", for " + ago(o.Since, now)
		}
		alerts = append(alerts, a)
	}
	for _, a := range o.FailedAddresses {
		alerts = append(alerts, alert{Class: "lagging", Badge: "failover", Text: "Origin " + o.Name + ": " + a.Describe(now), Note: a.Error})
	}
	if d := o.Directory; d != nil && d.BadCount > 0 {
		note := d.Bad[0].Error
		if d.BadCount > 1 {
			note += fmt.Sprintf("; and %d more", d.BadCount-1)
		}
		alerts = append(alerts, alert{
			Class: "stale", Badge: "files", Note: note,
			Text: fmt.Sprintf("%s of %s of origin %s %s invalid",
				number(float64(d.BadCount)), plural(d.FileCount, "file"), o.Name, isOrAre(d.BadCount)),
		})
	}
	alerts = append(alerts, pendingAlerts(o)...)
	for _, h := range o.HaltedAbove {
		alerts = append(alerts, alert{Class: "frozen", Badge: "halted", Text: h.Describe(now), Note: humanize.Cut(h.Reason, maxDetail)})
	}
	if f := o.Freeze; f != nil {
		note := "to end the freeze:"
		if !f.SurvivesRestart {
			note = "a restart of the relay also ends the freeze; to end it now:"
		}
		alerts = append(alerts, alert{
			Class: "frozen", Text: fmt.Sprintf("Changes of origin %s are not distributed: %s", o.Name, f.Describe(now)),
			Note: note, Command: "tender thaw --origin " + o.Name,
		})
	}
	return alerts
}

// decided are the reasons of pending changes for which an operator may have to decide.
var decided = []reconcile.Reason{reconcile.SecondLook, reconcile.LargeRemoval, reconcile.Breaking, reconcile.Required, reconcile.Growth}

// pendingAlerts returns alerts for the pending changes of an origin.
func pendingAlerts(o *admin.Origin) (alerts []alert) {
	for _, reason := range decided {
		n := o.Pending[string(reason)]
		if n == 0 {
			continue
		}
		alerts = append(alerts, alert{
			Class: "stale", Badge: "pending", Href: "#pending",
			Text: fmt.Sprintf("%s of origin %s %s pending: %s", plural(n, "change"), o.Name, isOrAre(n), reason),
			Note: "to send them to clients:", Command: fmt.Sprintf("tender pass %s --origin %s", reason, o.Name),
		})
	}
	return alerts
}

// findingAlerts returns alerts for findings that make a resource unusable. Other findings may only be differences of
// versions.
func findingAlerts(v *admin.Validation) (alerts []alert) {
	all, breaking := v.Totals()
	if breaking > 0 {
		alerts = append(alerts, alert{
			Class: "rejected", Href: "#findings", Note: "of " + plural(all, "finding") + " in total",
			Text: fmt.Sprintf("%s break%s a resource", plural(breaking, "finding"), verbEnding(breaking)),
		})
	}
	return alerts
}

// refusalAlerts returns an alert for each cause for which the relay has refused clients recently.
func refusalAlerts(all []admin.Refusal, now time.Time) (alerts []alert) {
	for i := range all {
		r := &all[i]
		if !r.Recent(now) {
			continue
		}
		text := fmt.Sprintf("The relay refused clients %s: %s, %s; last", plural(int(r.Count), "time"), r.Kind, r.Reason)
		if r.Peer != "" {
			text += " " + r.Peer
		}
		alerts = append(alerts, alert{Class: "rejected", Badge: "refused", Text: text + " " + ago(r.At, now) + " ago", Note: r.Error})
	}
	return alerts
}

// isOrAre returns the verb for a count.
func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// group returns the name of a node group in a sentence.
func group(key string) string { return "group " + groupName(key) }
