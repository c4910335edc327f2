package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// clientsExample and clientExample are output of the command for its help. A test prints them.
const (
	clientsExample = `4 clients: 1 rejecting, 0 stalled, 1 behind, 1 unknown, 1 in sync

NODE    GROUP  RELAY    STATE      CDS       EDS         LDS      SINCE
edge-9  pay    relay-0  unknown    unknown   -           -        1.2s
edge-1  shop   relay-0  in-sync    in sync   in sync     in sync  2h0m
edge-2  shop   relay-0  behind     in sync   behind 41s  in sync  2h0m
edge-4  shop   relay-0  rejecting  REJECTED  in sync     in sync  10m0s
`
	clientExample = `#17 edge-4 of group shop at relay-0: rejecting
    delta, 10.0.0.4:51442, connected for 10m0s

TYPE  STATE     SUBSCRIBED  ACCEPTED FOR
cds   REJECTED  *           41s
    INVALID_ARGUMENT 41s ago: unknown http filter

resources that differ from what is served to the group: 2 of 3
TYPE  NAME  SENT  ACCEPTED  SERVED  STATE
cds   cart  4     unknown   4       REJECTED
cds   web   8     7         8       REJECTED
cds   pay   2     2         2       accepted
`
)

// A clientRow is a client of a relay.
type clientRow struct {
	relay string
	*admin.Client
}

// printClients writes a line for each client, sorted by group, node ID and relay, and the relays whose clients are
// unknown.
func printClients(w io.Writer, all *listedClients, wide bool, now time.Time) error {
	t := &table{cli.Table{Wide: wide}}
	var rows []clientRow
	streams := 0 // of all clients, selected or not
	for _, r := range all.Relays {
		if r.Clients == nil {
			continue
		}
		streams += r.Totals.Streams
		for i := range r.Clients.Clients {
			rows = append(rows, clientRow{cmp.Or(r.Relay, r.Address), &r.Clients.Clients[i]})
		}
	}
	slices.SortFunc(rows, func(a, b clientRow) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.relay, b.relay), cmp.Compare(a.Number, b.Number))
	})
	t.Row(describeStates(rows, streams))
	if below := belowAll(all); below != nil {
		t.Row(describeBelow(below))
	}
	t.Row()
	if len(rows) > 0 {
		t.clientRows(rows, false, now)
	}
	for _, r := range all.Relays {
		if r.Clients == nil {
			t.Row()
			t.Row(r.Address, "UNREACHABLE: its clients are unknown")
			t.Note("%s", r.Error)
		}
	}
	return t.Print(w)
}

// belowAll returns the sum of the clients of relays below; nil if no client is a relay.
func belowAll(all *listedClients) (sum *admin.TierTotals) {
	for _, r := range all.Relays {
		if r.Clients != nil {
			sum = addBelow(sum, r.Totals.Below)
		}
	}
	return sum
}

// addBelow returns the sum of both; either may be nil.
func addBelow(a, b *admin.TierTotals) *admin.TierTotals {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	x, y := &a.TierCounts, &b.TierCounts
	return &admin.TierTotals{Relays: a.Relays + b.Relays, Silent: a.Silent + b.Silent, TierCounts: admin.TierCounts{
		Clients: x.Clients + y.Clients, InSync: x.InSync + y.InSync, Behind: x.Behind + y.Behind,
		Rejecting: x.Rejecting + y.Rejecting, Unknown: x.Unknown + y.Unknown, Pending: x.Pending + y.Pending,
	}}
}

// describeStates returns the number of the listed clients of all clients, and how many of them are in each state.
func describeStates(rows []clientRow, all int) string {
	of := make(map[string]int)
	for _, r := range rows {
		of[cmp.Or(r.Sync, admin.Unknown)]++
	}
	text := fmt.Sprintf("%d clients: ", len(rows))
	if len(rows) == 1 {
		text = "1 client: "
	}
	if len(rows) < all {
		text = fmt.Sprintf("%d of %d clients: ", len(rows), all)
	}
	var counts []string
	for _, state := range clientStates {
		counts = append(counts, fmt.Sprint(of[state], " ", strings.ReplaceAll(state, "-", " ")))
	}
	return text + strings.Join(counts, ", ")
}

// clientRows adds a row for each client, with a column for each type that one of them subscribes to. With rejections, it adds
// the NACKs that still apply.
func (t *table) clientRows(rows []clientRow, rejections bool, now time.Time) {
	var types []string
	for _, r := range rows {
		for i := range r.Types {
			types = append(types, r.Types[i].TypeURL)
		}
	}
	slices.SortFunc(types, wire.CompareTypes)
	types = slices.Compact(types)
	head := []any{"NODE", "GROUP", "RELAY", cli.WideOnly("#"), cli.WideOnly("CLUSTER"), cli.WideOnly("LOCALITY"), cli.WideOnly("ADDRESS"), "STATE"}
	for _, typeURL := range types {
		head = append(head, strings.ToUpper(cli.ShortType(typeURL)))
	}
	t.Row(append(head, "SINCE")...)
	for _, r := range rows {
		cells := []any{cmp.Or(r.NodeID, fmt.Sprint("#", r.Number)), cmp.Or(nodegroup.Name(r.Group), "-"), r.relay,
			cli.WideOnly(fmt.Sprint(r.Number)), cli.WideOnly(cmp.Or(r.Cluster, "-")), cli.WideOnly(cmp.Or(r.Locality, "-")), cli.WideOnly(cmp.Or(r.Address, "-")), cmp.Or(r.Sync, admin.Unknown)}
		for _, typeURL := range types {
			cells = append(cells, syncCell(r.Client, typeURL))
		}
		t.Row(append(cells, ago(r.Began, now))...)
		if r.Below != nil {
			t.below(r.Client)
		}
		for i := range r.Types {
			if rejections {
				t.rejection(cli.ShortType(r.Types[i].TypeURL)+": ", &r.Types[i], now)
			}
		}
	}
}

// below adds notes about the clients of a relay.
func (t *table) below(c *admin.Client) {
	if !c.Below.Known {
		t.Note("is a relay that reports nothing about its clients")
		return
	}
	t.Note("is a relay with %s: %s", plural(c.Below.Clients, "client"), describeCounts(&c.Below.TierCounts))
	t.worst(c)
}

// rejection adds a note about the last NACK of a subscription if it still applies.
func (t *table) rejection(prefix string, typ *admin.ClientType, now time.Time) {
	if r := typ.Rejection; typ.Rejecting && r != nil {
		t.Note("%s%s %s ago: %s", prefix, r.Code, ago(r.At, now), cmp.Or(r.Detail, "no error detail"))
	}
}

// syncCell returns whether a client has what it is served of a type.
func syncCell(c *admin.Client, typeURL string) string {
	at := slices.IndexFunc(c.Types, func(t admin.ClientType) bool { return t.TypeURL == typeURL })
	if at < 0 {
		return "-"
	}
	return syncText(&c.Types[at])
}

// syncText returns the state of a subscription in words.
func syncText(t *admin.ClientType) string {
	switch {
	case t.Sync == admin.InSync:
		return "in sync"
	case t.Sync == admin.Rejecting:
		return "REJECTED"
	case t.Sync == admin.Behind && t.LagSeconds > 0:
		return "behind " + humanize.Seconds(t.LagSeconds)
	default:
		return cmp.Or(t.Sync, admin.Unknown) // an earlier release has no state
	}
}

// printFound writes each stream of a client, with its types and resources. With diff, the resources are only those that
// differ from what is served.
func printFound(w io.Writer, found []shownClient, diff, wide bool, now time.Time) error {
	t := &table{cli.Table{Wide: wide}}
	for i := range found {
		if i > 0 {
			t.Row()
		}
		t.client(&found[i], now)
		t.Row()
		t.subscriptions(&found[i].ClientDetail, now)
		t.Row()
		t.clientResources(&found[i].ClientDetail, diff)
	}
	return t.Print(w)
}

// client adds what is known of a stream.
func (t *table) client(c *shownClient, now time.Time) {
	d := &c.ClientDetail
	at := ""
	if c.Relay != "" {
		at = " at " + c.Relay
	}
	t.Row(fmt.Sprintf("#%d %s of group %s%s: %s", d.Number, cmp.Or(d.NodeID, "without a node ID"), cmp.Or(nodegroup.Name(d.Group), "unknown"), at, d.Sync))
	about := []string{d.Variant, d.Address, "connected for " + ago(d.Began, now)}
	for _, more := range [][2]string{{"cluster ", d.Cluster}, {"locality ", d.Locality}, {"", d.UserAgent}, {"", d.Identity}} {
		if more[1] != "" {
			about = append(about, more[0]+more[1])
		}
	}
	if !d.StalledSince.IsZero() {
		about = append(about, "STALLED for "+ago(d.StalledSince, now))
	}
	t.Note("%s", strings.Join(slices.DeleteFunc(about, func(s string) bool { return s == "" }), ", "))
	if d.Below != nil {
		t.below(&d.Client)
	}
}

// subscriptions adds a row for each type of a client, with the last NACK if it still applies.
func (t *table) subscriptions(d *admin.ClientDetail, now time.Time) {
	t.Row("TYPE", "STATE", "SUBSCRIBED", cli.WideOnly("VERSION"), "ACCEPTED FOR")
	for i := range d.Types {
		typ := &d.Types[i]
		var wants []string
		if typ.Wildcard {
			wants = append(wants, wire.Wildcard)
		}
		if typ.Names > 0 {
			wants = append(wants, plural(typ.Names, "name"))
		}
		wants = append(wants, typ.Globs...)
		t.Row(cmp.Or(typ.Name, typ.TypeURL), syncText(typ), cmp.Or(strings.Join(wants, " "), "-"), cli.WideOnly(cmp.Or(typ.Accepted, "-")), ago(typ.AcceptedAt, now))
		t.rejection("", typ, now)
	}
}

// resourceStates are the states of resources in words.
var resourceStates = map[string]string{"not_sent": "not sent", "sent": "no answer yet", "rejected": "REJECTED"}

// clientResources adds the resources of a client, those first that differ from what is served. With diff, d has only these.
func (t *table) clientResources(d *admin.ClientDetail, diff bool) {
	all, differing := 0, 0
	for state, n := range d.States {
		if all += n; state != "accepted" {
			differing += n
		}
	}
	switch {
	case all == 0:
		t.Row("the client has subscribed to no resource")
		return
	case differing == 0:
		t.Row(fmt.Sprintf("the client has accepted all %d resources as they are served to the group", all))
	default:
		t.Row(fmt.Sprintf("resources that differ from what is served to the group: %d of %d", differing, all))
	}
	if diff && differing == 0 {
		return
	}
	t.Row("TYPE", "NAME", "SENT", "ACCEPTED", "SERVED", "STATE")
	accepted := func(r admin.ClientResource) bool { return r.State == "accepted" }
	differ := slices.DeleteFunc(slices.Clone(d.Resources), accepted)
	same := slices.DeleteFunc(slices.Clone(d.Resources), func(r admin.ClientResource) bool { return !accepted(r) })
	for _, r := range append(differ, same...) {
		t.Row(cli.ShortType(r.TypeURL), r.Name, versionText(r.Sent), versionText(r.Accepted), cmp.Or(r.Version, "-"), cmp.Or(resourceStates[r.State], r.State))
	}
}

// versionText returns a version of a client's resource: "-" if it has none, and "unknown" if that is not known.
func versionText(v admin.ClientVersion) string {
	if !v.Known {
		return "unknown"
	}
	return cmp.Or(v.Version, "-")
}
