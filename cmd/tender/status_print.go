package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/rollout"
)

// A table is a [cli.Table] with methods that add parts of the status of a relay.
type table struct{ cli.Table }

// printStatus writes a status as tables. Without wide, it omits columns, resources and clients.
func printStatus(w io.Writer, s *wholeStatus, wide bool, now time.Time) error {
	t := &table{cli.Table{Wide: wide}}
	ready := "ready"
	if !s.Relay.Ready {
		ready = "NOT READY"
	}
	t.Row(fmt.Sprintf("tender %s, up %s, %s, %s", s.Relay.Version, humanize.Seconds(s.Relay.UptimeSeconds), plural(s.Relay.Streams, "stream"), ready))
	for _, reason := range s.Relay.NotReady {
		t.Note("%s", reason)
	}
	if fault := s.Relay.SnapshotFault; fault != "" {
		t.Note("snapshots and decisions are NOT WRITTEN: %s", fault)
	}
	if taken := s.Relay.Taken; taken != nil {
		t.Note("started with the state of %s (%s), which is %s old", taken.From, taken.NodeID, humanize.Seconds(taken.AgeSeconds))
	}
	if warning := s.Log.Warning(); warning != "" {
		t.Note("%s", warning)
	}
	t.Row()
	t.origins(s.Origins, now)
	t.Row()
	t.files(s.Files, now)
	t.views(s.Views, now)
	t.findings(s.Validation)
	t.refusals(s.Refusals, now)
	t.Row()
	t.clients(&s.Clients, now)
	return t.Print(w)
}

// origins adds a row for each target of an origin, and notes about errors, pending changes, freezes and rollouts.
func (t *table) origins(origins []admin.Origin, now time.Time) {
	t.Row("ORIGIN", "TARGET", "STATE", "SINCE")
	for _, o := range origins {
		for _, target := range o.Targets {
			state, since := "standby", "-"
			if target.Active {
				state, since = target.State, ago(o.Since, now)
			}
			t.Row(o.Name, target.Target, state, since)
		}
		t.originErrors(&o, now)
		if o.Directory != nil {
			t.badFiles(o.Directory)
		}
		if o.Freeze != nil {
			t.Note("%s", o.Freeze.Describe(now))
		}
		if s := o.Rollout; s != nil && s.Phase != rollout.Current {
			part := ""
			if s.Part != "" {
				part = "of part " + s.Part + ": "
			}
			t.Note("rollout %s%s: tender rollout status", part, describeRollout(s, now))
		}
		t.haltsAbove(o.HaltedAbove, now)
		if note := pendingNote(o.Pending); note != "" {
			t.Note("%s", note)
		}
		if o.EqualGroups > 0 {
			t.Note("%d node groups have the same configuration: fewer keys in TENDER_NODE_GROUP_BY would make them one, with fewer streams to the origin", o.EqualGroups)
		}
		if o.StreamsWaiting > 0 {
			t.Note("%d streams to it WAIT for the rate limit", o.StreamsWaiting)
		}
	}
}

// haltsAbove adds a note for each halt of a relay above.
func (t *table) haltsAbove(halts []admin.HaltAbove, now time.Time) {
	for _, h := range halts {
		t.Note("%s: %s", h.Describe(now), cmp.Or(h.Reason, "reason unknown"))
	}
}

// originErrors adds notes about the last error of an origin, and about its addresses that are not used.
func (t *table) originErrors(o *admin.Origin, now time.Time) {
	if o.LastError != "" {
		t.Note("last error, %s ago: %s", ago(o.LastErrorAt, now), o.LastError)
	}
	for _, a := range o.FailedAddresses {
		t.Note("%s: %s", a.Describe(now), a.Error)
	}
}

// findings adds findings about resources: the first fewFindings, or with -o wide all that the relay reports.
func (t *table) findings(v *admin.Validation) {
	all, breaking := v.Totals()
	if all == 0 {
		return
	}
	shown := v.Findings
	if !t.Wide {
		shown = shown[:min(len(shown), fewFindings)]
	}
	t.Row()
	t.Row("FINDING", "TYPE", "NAME", "GROUP")
	for _, f := range shown {
		t.Row(f.Kind.Text(), cli.ShortType(f.TypeURL), f.Name, cmp.Or(nodegroup.Name(f.Group), "all"))
		t.Note("%s", f.Detail)
	}
	if n := all - len(shown); n > 0 {
		t.Note("and %d more, %d of all %d BREAK a resource: -o wide prints %d", n, breaking, all, admin.MaxFindings)
	}
}

// refusals adds the causes for which clients were refused recently, or with -o wide all since the start.
func (t *table) refusals(all []admin.Refusal, now time.Time) {
	shown := slices.DeleteFunc(slices.Clone(all), func(r admin.Refusal) bool { return !t.Wide && !r.Recent(now) })
	if len(shown) == 0 {
		return
	}
	t.Row()
	t.Row("REFUSED BY THE RELAY", "REASON", "TIMES", "LAST", "PEER")
	for _, r := range shown {
		t.Row(r.Kind, r.Reason, r.Count, ago(r.At, now), cmp.Or(r.Peer, "-"))
		t.Note("%s", r.Error)
	}
}

// are returns a number, a noun and the verb, such as "1 change is" or "2 changes are".
func are(n int, thing string) string {
	if n == 1 {
		return "1 " + thing + " is"
	}
	return fmt.Sprintf("%d %ss are", n, thing)
}

// fewFindings is the maximum number of findings that are printed without -o wide.
const fewFindings = 5

// badFiles adds refused files of a file origin: the first fewBadFiles, or with -o wide all that the relay reports.
func (t *table) badFiles(d *admin.Directory) {
	shown := d.Bad
	if !t.Wide {
		shown = shown[:min(len(shown), fewBadFiles)]
	}
	for _, f := range shown {
		t.Note("BAD FILE %s: %s (%d resources of its last good content)", f.File, f.Error, f.LastGood)
	}
	if n := d.BadCount - len(shown); n > 0 {
		t.Note("and %d more bad files of %d: -o wide prints %d", n, d.FileCount, admin.MaxBadFiles)
	}
}

// fewBadFiles is the maximum number of refused files that are printed without -o wide.
const fewBadFiles = 5

// files adds the credential files with a warning, or with -o wide all credential files.
func (t *table) files(files []admin.Files, now time.Time) {
	shown := slices.DeleteFunc(slices.Clone(files), func(f admin.Files) bool { return !t.Wide && f.Warning(now) == "" })
	if len(shown) == 0 {
		return
	}
	t.Row("FILES OF", "READ", "EXPIRES IN", "STATE")
	for i := range shown {
		f := &shown[i]
		t.Row(strings.ReplaceAll(f.Variables(), "TENDER_", ""), ago(f.LoadedAt, now), ago(now, f.NotAfter), cmp.Or(f.Warning(now), "in force"))
	}
	t.Row()
}

// views adds a row for each type of a view, and a row for each view without types.
func (t *table) views(views []admin.View, now time.Time) {
	t.Row("GROUP", "ORIGIN", "TYPE", "ENTRIES", "SIZE", "CHANGED", cli.WideOnly("VERSION"), "STATE")
	for _, v := range views {
		if v.Shared && len(v.Types) == 0 {
			continue // no client has subscribed to an xdstp name
		}
		state := stateOf(&v, now)
		if len(v.Types) == 0 {
			t.Row(nodegroup.Name(v.Group), v.Origin, "-", "-", "-", "-", cli.WideOnly("-"), cmp.Or(state, "-"))
		}
		for _, typ := range v.Types {
			t.Row(nodegroup.Name(v.Group), v.Origin, cmp.Or(typ.Name, typ.TypeURL), typ.Entries, humanize.Bytes(typ.Bytes), ago(typ.ChangedAt, now), cli.WideOnly(cmp.Or(typ.Version, "-")), cmp.Or(state, typ.Phase))
		}
		for _, i := range v.Isolated {
			t.Note("the origin ENDS each stream that subscribes to %s %s: %s", cli.ShortType(i.TypeURL), strings.Join(i.Names, " "), i.Error)
		}
	}
}

// stateOf returns why a view may not serve the current resources of its origin, or "" if it is connected and not
// frozen.
func stateOf(v *admin.View, now time.Time) string {
	switch {
	case !v.FrozenAt.IsZero():
		return fmt.Sprintf("FROZEN for %s, %d pending", ago(v.FrozenAt, now), v.Pending)
	case v.Stale:
		return "STALE for " + humanize.Seconds(v.StaleSeconds)
	case !v.Connected:
		return "not connected"
	}
	return ""
}

// clients adds the totals of all clients, and the clients that reject configuration or lag.
func (t *table) clients(c *shownClients, now time.Time) {
	sum := plural(c.Totals.Streams, "client")
	if c.Totals.Matching < c.Totals.Streams {
		sum = fmt.Sprintf("%d of %s", c.Totals.Matching, sum)
	}
	sum += fmt.Sprintf(": %d rejecting, %d stalled, %d lagging", c.Totals.Rejecting, c.Totals.Stalled, c.Totals.Lagging)
	if c.Totals.Lagging > 0 {
		sum += ", at most " + humanize.Seconds(c.Totals.LagSeconds)
	}
	t.Row(sum)
	if c.Totals.Below != nil {
		t.Row(describeBelow(c.Totals.Below))
	}
	if t.Wide && len(c.Types) > 0 {
		t.Row()
		t.Row("GROUP", "TYPE", "CLIENTS", "REJECTING", "LAGGING", "LAG")
		for _, sum := range c.Types {
			t.Row(nodegroup.Name(sum.Group), cmp.Or(sum.Name, sum.TypeURL), sum.Clients, sum.Rejecting, sum.Lagging, humanize.Seconds(sum.LagSeconds))
		}
	}
	if len(c.Rejecting) > 0 {
		t.Row()
		t.Row("REJECTED BY", "NODE", cli.WideOnly("ADDRESS"), "TYPE", "AGO", cli.WideOnly("VERSION"), "CODE")
		for i := range c.Rejecting {
			t.rejections(&c.Rejecting[i], now)
		}
		t.more(c.Totals.Rejecting - len(c.Rejecting))
	}
	if len(c.Lagging) > 0 {
		t.Row()
		t.Row("LAGGING", "NODE", cli.WideOnly("ADDRESS"), "TYPE", "FOR", cli.WideOnly("VERSION"), "STATE")
		for i := range c.Lagging {
			t.lags(&c.Lagging[i], now)
		}
		t.more(c.Totals.Lagging - len(c.Lagging))
	}
	if len(c.Relays) > 0 {
		t.relays(c, now)
	}
}

// relays adds the clients that are relays, with their clients.
func (t *table) relays(c *shownClients, now time.Time) {
	t.Row()
	t.Row("BELOW", "RELAY", "GROUP", "CLIENTS", "REJECTING", "BEHIND", "UNKNOWN", "PENDING", "REPORTED")
	for i := range c.Relays {
		t.relay(&c.Relays[i], now)
	}
	t.more(c.Totals.Below.Relays - len(c.Relays))
}

// relay adds a row about the clients of a relay, with the worst of them.
func (t *table) relay(c *admin.Client, now time.Time) {
	b := c.Below
	reported := ago(b.At, now) + " ago"
	if !b.Known {
		reported = "SILENT"
	}
	t.Row(fmt.Sprint("#", c.Number), c.NodeID, nodegroup.Name(c.Group), b.Clients, b.Rejecting, b.Behind, b.Unknown, b.Pending, reported)
	t.worst(c)
}

// worst adds notes about the clients of a relay that are not in sync.
func (t *table) worst(c *admin.Client) {
	for _, w := range c.Below.Worst {
		about := []string{w.NodeID}
		if len(w.Via) > 0 {
			about = append(about, "(via "+strings.Join(w.Via, ", ")+")")
		}
		if w.TypeURL != "" {
			about = append(about, cli.ShortType(w.TypeURL))
		}
		text := strings.Join(about, " ") + ": " + syncText(&admin.ClientType{Sync: w.Sync, LagSeconds: w.LagSeconds})
		if w.Detail != "" {
			text += ": " + w.Detail
		}
		t.Note("%s", text)
	}
}

// describeBelow returns the number of the clients of relays below, and how many of them are in each state.
func describeBelow(b *admin.TierTotals) string {
	text := fmt.Sprintf("below %s: %s: %s", plural(b.Relays, "relay"), plural(b.Clients, "client"), describeCounts(&b.TierCounts))
	if b.Silent > 0 {
		text += fmt.Sprintf("; the clients of %s are UNKNOWN", plural(b.Silent, "relay"))
	}
	return text
}

// describeCounts returns how many clients of relays below are in each state.
func describeCounts(c *admin.TierCounts) string {
	text := fmt.Sprintf("%d rejecting, %d behind, %d unknown, %d in sync", c.Rejecting, c.Behind, c.Unknown, c.InSync)
	if c.Pending > 0 {
		text += ", " + are(c.Pending, "change") + " pending there"
	}
	return text
}

// more notes that n clients are not printed.
func (t *table) more(n int) {
	if n > 0 {
		t.Note("and %d more: -o wide prints %d, --node and --type select", n, manyClients)
	}
}

// rejections adds a row for each type of which the client rejected the newest version, with the error detail.
func (t *table) rejections(c *admin.Client, now time.Time) {
	for _, typ := range c.Types {
		if !typ.Rejecting || typ.Rejection == nil {
			continue
		}
		r := typ.Rejection
		t.Row(fmt.Sprint("#", c.Number), c.NodeID, cli.WideOnly(c.Address), cmp.Or(typ.Name, typ.TypeURL), ago(r.At, now), cli.WideOnly(cmp.Or(r.Version, "-")), r.Code)
		t.Note("%s", cmp.Or(r.Detail, "no error detail"))
	}
}

// lags adds a row for each type of which the client has not accepted the newest version.
func (t *table) lags(c *admin.Client, now time.Time) {
	for _, typ := range c.Types {
		if typ.LagSeconds == 0 {
			continue
		}
		state := "sent, not acknowledged"
		switch {
		case !c.StalledSince.IsZero():
			state = "STALLED for " + ago(c.StalledSince, now)
		case typ.Rejecting:
			state = "REJECTED"
		case !typ.Pending:
			state = "not sent yet"
		}
		t.Row(fmt.Sprint("#", c.Number), c.NodeID, cli.WideOnly(c.Address), cmp.Or(typ.Name, typ.TypeURL), humanize.Seconds(typ.LagSeconds), cli.WideOnly(cmp.Or(typ.Accepted, "-")), state)
	}
}

// ago formats the time from then to now, or returns "-" if one of them is zero.
func ago(then, now time.Time) string {
	if then.IsZero() || now.IsZero() {
		return "-"
	}
	return humanize.Seconds(now.Sub(then).Seconds())
}
