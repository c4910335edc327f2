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
)

// waitExample is output of the command for its help. A test prints it.
const waitExample = `NOT IN SYNC after 1m0s: 1 relay is unknown, 1 origin is not received, 1 change is pending, 2 of 40 clients are not in sync

relay relay-0 (self)
origin eu is NOT CONNECTED: connection refused

ORIGIN   GROUP  TYPE  CHANGE  REASON  SINCE  UNTIL     BY     RESOURCES  NAMES
default  shop   cds   change  frozen  9m0s   operator  alice  1          web
    bad routes

NODE    GROUP  RELAY    STATE      CDS       EDS         SINCE
edge-4  shop   relay-0  rejecting  REJECTED  in sync     10m0s
    cds: INVALID_ARGUMENT 41s ago: unknown http filter
edge-2  shop   relay-0  behind     in sync   behind 41s  2h0m

relay unknown (10.0.0.2:9901)
UNKNOWN: connection refused
`

// fewWaiting is the maximum number of clients of a relay that are printed without -o wide.
const fewWaiting = 100

// printWait writes the result of tender wait, and of each relay what is not in sync.
func printWait(w io.Writer, s *waitState, of *waitChoice, wide bool, now time.Time) error {
	if _, err := fmt.Fprintln(w, cli.Printable(s.describe(of))); err != nil {
		return err
	}
	for i := range s.Relays {
		r := &s.Relays[i]
		if s.InSync || r.has() {
			continue
		}
		for _, t := range []*table{r.faults(of.wholeTier), r.changes(wide, now), r.waiting(wide, now)} {
			if t == nil {
				continue
			}
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
			if err := t.Print(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// faults returns why the relay may not have what its origins stated last; nil without a reason. With --tier, it has the relay.
func (r *relayWait) faults(wholeTier bool) *table {
	t := &table{cli.Table{Wide: true}}
	if wholeTier {
		t.Row(fmt.Sprintf("relay %s (%s)", cmp.Or(r.Relay, "unknown"), r.Address))
	}
	if r.Error != "" {
		t.Row("UNKNOWN: " + r.Error)
	}
	found := wholeTier || r.Error != ""
	for _, o := range r.Origins {
		for _, fault := range originFaults(&o) {
			t.Row(fmt.Sprintf("origin %s %s", o.Name, fault))
			found = true
		}
	}
	if !found {
		return nil
	}
	return t
}

// changes returns the pending changes of a relay; nil if there are none.
func (r *relayWait) changes(wide bool, now time.Time) *table {
	if len(r.Pending) == 0 {
		return nil
	}
	t := &table{cli.Table{Wide: true}}
	t.pendingRows(r.Pending, wide, now)
	return t
}

// waiting returns the clients of a relay that are not in sync, the most severe first; nil if there are none.
func (r *relayWait) waiting(wide bool, now time.Time) *table {
	if len(r.Clients) == 0 {
		return nil
	}
	var rows []clientRow
	for i := range r.Clients {
		rows = append(rows, clientRow{cmp.Or(r.Relay, r.Address), &r.Clients[i]})
	}
	slices.SortStableFunc(rows, func(a, b clientRow) int {
		return cmp.Or(slices.Index(clientStates, a.Sync)-slices.Index(clientStates, b.Sync), cmp.Compare(a.Group, b.Group), cmp.Compare(a.NodeID, b.NodeID))
	})
	shown := rows
	if !wide {
		shown = rows[:min(len(rows), fewWaiting)]
	}
	t := &table{cli.Table{Wide: wide}}
	t.clientRows(shown, true, now)
	if more := len(rows) - len(shown); more > 0 {
		t.Note("and %d more: -o wide prints all", more)
	}
	return t
}

// originFaults returns why a relay may not have what an origin stated last.
func originFaults(o *admin.TierOrigin) (faults []string) {
	because := ""
	if o.Error != "" {
		because = ": " + o.Error
	}
	if !o.Connected {
		return []string{"is NOT CONNECTED" + because}
	}
	if because != "" {
		faults = append(faults, "is NOT READ"+because)
	}
	if o.BadFiles > 0 {
		faults = append(faults, fmt.Sprintf("has %s: tender status", plural(o.BadFiles, "bad file")))
	}
	var stale []string
	for _, key := range o.StaleGroups[:min(len(o.StaleGroups), fewNames)] {
		stale = append(stale, nodegroup.Name(key))
	}
	if len(o.StaleGroups) > fewNames {
		stale = append(stale, "…")
	}
	if len(stale) > 0 {
		faults = append(faults, "has no stream for "+plural(len(o.StaleGroups), "node group")+": "+strings.Join(stale, ", "))
	}
	if o.StaleShared {
		faults = append(faults, "has no stream for xdstp names that node groups share")
	}
	return faults
}

// plural returns a number and a noun, such as "1 client" or "2 clients".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// waitCounts has the numbers in the first line of the output.
type waitCounts struct {
	unknown, origins, pending, matching, lacking int
	clients                                      int // with those of relays below
	below                                        *admin.TierTotals
}

// count counts over all relays.
func (s *waitState) count() (n waitCounts) {
	for i := range s.Relays {
		r := &s.Relays[i]
		n.matching += r.Matching
		n.clients += r.clients()
		n.below = addBelow(n.below, r.Below)
		n.lacking += r.NotInSync
		if r.Error != "" {
			n.unknown++
		}
		for _, o := range r.Origins {
			if !o.Receives() {
				n.origins++
			}
		}
		for _, row := range r.Pending {
			n.pending += row.Count
		}
	}
	return n
}

// describe returns the result in one line.
func (s *waitState) describe(of *waitChoice) string {
	n := s.count()
	if s.InSync {
		text := fmt.Sprintf("in sync: %s of %s accepted what the origin stated last", plural(n.matching, "client"), plural(len(s.Relays), "relay"))
		if n.below != nil {
			text += ", and " + plural(n.below.Clients, "client") + " below them"
		}
		return text
	}
	var reasons []string
	if n.unknown > 0 {
		reasons = append(reasons, are(n.unknown, "relay")+" unknown")
	}
	if n.origins > 0 {
		reasons = append(reasons, are(n.origins, "origin")+" not received")
	}
	if n.pending > 0 {
		reasons = append(reasons, are(n.pending, "change")+" pending")
	}
	if n.lacking > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %s not in sync", n.lacking, are(n.matching, "client")))
	}
	if n.below != nil && n.below.InSync < n.below.Clients {
		reasons = append(reasons, describeBelow(n.below))
	}
	if n.clients < of.clients {
		reasons = append(reasons, fmt.Sprintf("%s, want at least %d (--clients)", plural(n.clients, "client"), of.clients))
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "all is in sync now, but not for the duration of --settle")
	}
	return fmt.Sprintf("NOT IN SYNC after %s: %s", humanize.Seconds(s.WaitedSeconds), strings.Join(reasons, ", "))
}
