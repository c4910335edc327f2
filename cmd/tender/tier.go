package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// errTier is the error of a command that failed on at least one relay of a tier. The output contains the details.
var errTier = errors.New("at least one relay did not carry out the command")

// addTier adds --tier to an operator command.
func addTier(cmd *cobra.Command, wholeTier *bool) {
	cmd.Flags().BoolVar(wholeTier, "tier", false, "send the command to all relays of the tier (TENDER_PEERS)")
}

// sendCommand sends a command to a relay, or with --tier to all relays of its tier, and calls show for each successful
// response. With --tier, it writes a heading per relay to w, and continues after a failed relay. It then returns
// errTier, or the last error of show.
func sendCommand[A any](ctx context.Context, client *adminClient, wholeTier bool, name string, args any, w io.Writer, show func(A) error) error {
	if !wholeTier {
		var answer A
		if err := client.command(ctx, name, args, &answer); err != nil {
			return err
		}
		return show(answer)
	}
	answers, err := sendToTier(ctx, client, name, args)
	if err != nil {
		return err
	}
	var failed error
	for _, r := range answers.Relays {
		if _, err := fmt.Fprintf(w, "relay %s (%s)\n", cli.Printable(r.Address), cli.Printable(cmp.Or(r.NodeID, "unknown"))); err != nil {
			return err
		}
		var answer A
		err := json.Unmarshal(r.Answer, &answer)
		switch {
		case r.Error != "":
			failed = errTier
			_, err = fmt.Fprintf(w, "FAILED: %s\n", cli.Printable(r.Error))
		case err == nil:
			if showErr := show(answer); showErr != nil {
				failed = showErr
			}
		}
		if err != nil {
			return err
		}
	}
	return failed
}

// sendToTier makes the relay send a command to all relays of its tier, itself included. It raises the timeout
// of client, because an audit may take as long as [admin.AuditTime].
func sendToTier(ctx context.Context, client *adminClient, name string, args any) (answers admin.TierAnswers, err error) {
	client.http.Timeout = admin.AuditTime + 2*time.Minute
	err = client.command(ctx, "tier/"+name, args, &answers)
	return answers, err
}

// printTier writes tables of the relays of a tier, of the generations that they serve, and of types whose versions
// differ.
func printTier(w io.Writer, s *admin.TierStatus) error {
	t := &table{cli.Table{Wide: true}}
	t.Row("RELAY", "NODE", "VERSION", "READY", "STREAMS", "REJECTING", "LAGGING", "PENDING", "FROZEN")
	for _, r := range s.Relays {
		if r.TierSummary == nil {
			t.Row(r.Address, "UNREACHABLE")
			t.Note("%s", r.Error)
			continue
		}
		ready := "yes"
		if !r.Ready {
			ready = "NO"
		}
		t.Row(r.Address, r.NodeID, r.Version, ready, r.Streams, r.Rejecting, r.Lagging, r.Pending, cmp.Or(strings.Join(r.Frozen, ","), "-"))
		if r.Below != nil {
			t.Note("%s", describeBelow(r.Below))
		}
	}
	t.Row()
	t.Row("GROUP", "ORIGIN", "GENERATION", "RELAYS")
	t.generations(s)
	for _, d := range s.Disagreements {
		t.Row()
		t.Row(fmt.Sprintf("DISAGREEMENT on %s of %s for %s:", cli.ShortType(d.TypeURL), d.Origin, nodegroup.Name(d.Group)))
		for _, version := range slices.Sorted(maps.Keys(d.Versions)) {
			t.Row("  "+version, strings.Join(d.Versions[version], ", "))
		}
	}
	return t.Print(w)
}

// generations adds a row for each generation of each view, with the relays that serve it. It notes views that are not
// compared.
func (t *table) generations(s *admin.TierStatus) {
	for _, r := range s.Relays {
		if r.TierSummary != nil && r.Omitted > 0 {
			t.Note("%s has %d more views, which are not compared", r.Address, r.Omitted)
		}
	}
	for _, g := range s.Generations() {
		t.Row(nodegroup.Name(g.Group), g.Origin, g.Generation, strings.Join(g.Relays, ", "))
	}
}

// readTierStatus requests the status of all relays of a tier. Unreachable relays are part of the status, with their error.
func readTierStatus(ctx context.Context, client *adminClient) (*admin.TierStatus, error) {
	s := new(admin.TierStatus)
	text, err := client.ask(ctx, http.MethodGet, "/api/v1/tier", nil)
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	return s, err
}
