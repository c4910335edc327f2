package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// Numbers of names and details of a row that are printed without -o wide.
const (
	fewNames   = 3
	fewDetails = 3
)

// newPendingCommand returns the command tender pending.
func newPendingCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pending [REASON]",
		Short: "List the changes that clients of a running relay do not receive yet",
		Long: "Pending lists the changes of origins that a running relay has and that clients do not\n" +
			"receive yet, with the reason, the time, what ends the wait, and who decided. The\n" +
			"reasons are:\n\n" +
			"  suspect        the origin may not have meant the removals\n" +
			"  second-look    a few removals that the relay requests again\n" +
			"  large-removal  removals that are held because they are many\n" +
			"  required       removals of resources that only an operator removes (TENDER_REQUIRED)\n" +
			"  growth         a resource, or the number of resources, grows abnormally (TENDER_HOLD_GROWTH)\n" +
			"  replacement    resources that exclude one another, such as listeners on one address\n" +
			"  breaking       the changes would break clients (TENDER_VALIDATE=hold)\n" +
			"  dropped        an operator dropped them (tender drop)\n" +
			"  interval       the type was sent less than TENDER_MIN_PUSH_INTERVAL ago\n" +
			"  frozen         an operator froze the origin (tender freeze)\n" +
			"  rolled-back    an operator rolled the origin back (tender rollback)\n" +
			"  stage          a rollout has not reached all clients\n" +
			"  halted         a rollout is halted",
		Example: "  tender pending\n  tender pending breaking --type rds -o wide\n  tender pending --tier",
		Args:    cobra.MaximumNArgs(1),

		ValidArgsFunction: cli.CompleteFirst(admin.PendingReasons...),
	}
	var of admin.PendingChoice
	var wholeTier bool
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "table", "wide", "yaml")
	addPendingChoice(cmd, &of)
	cmd.Flags().BoolVar(&wholeTier, "tier", false, "list the changes of all relays of the tier (TENDER_PEERS)")
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		if len(args) > 0 {
			of.PendingReason = args[0]
		}
		return showPending(cmd.Context(), client, of, wholeTier, output, cmd.OutOrStdout())
	})
	return cmd
}

// addPendingChoice adds the flags that select pending changes to a command.
func addPendingChoice(cmd *cobra.Command, of *admin.PendingChoice) {
	flags := cmd.Flags()
	flags.StringVar(&of.Origin, "origin", "", "only of this origin: its `name`, or default for that of TENDER_ORIGIN")
	flags.StringVar(&of.Group, "group", "", "only of the node group with this `key` or name")
	flags.StringVar(&of.Type, "type", "", "only of this `type`: a type URL, or a short name such as cds")
	cli.CompleteTypes(cmd)
	flags.StringVar(&of.Name, "name", "", "only of the resource with this `name`")
}

// showPending prints the pending changes of a relay, or with --tier those of each relay of its tier.
func showPending(ctx context.Context, client *adminClient, of admin.PendingChoice, wholeTier bool, output *cli.OutputFlag, w io.Writer) error {
	wide := output.Output == "wide"
	table := func(answer admin.Pending) error { return printPending(w, answer.Pending, "pending", wide, time.Now()) }
	switch {
	case wholeTier && output.Output != "table" && !wide:
		answers, err := sendToTier(ctx, client, "pending", of)
		if err != nil {
			return err
		}
		return output.Print(w, answers, nil)
	case wholeTier:
		return sendCommand(ctx, client, true, "pending", of, w, table)
	}
	answer, err := readPending(ctx, client, of)
	if err != nil {
		return err
	}
	return output.Print(w, answer, func() error { return table(answer) })
}

// readPending requests the pending changes of a relay.
func readPending(ctx context.Context, client *adminClient, of admin.PendingChoice) (answer admin.Pending, err error) {
	query := make(url.Values)
	for name, value := range map[string]string{
		"origin": of.Origin, "group": of.Group, "type": of.Type, "name": of.Name, "reason": of.PendingReason,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	err = client.get(ctx, "/api/v1/pending?"+query.Encode(), &answer)
	return answer, err
}

// newPassCommand returns the command tender pass.
func newPassCommand(h host) *cobra.Command {
	return newDecisionCommand(h, "pass", "passed", &cobra.Command{
		Short: "Send clients pending changes of a running relay now",
		Long: "Pass makes a running relay send clients the chosen pending changes at once: removals\n" +
			"that the relay holds, and with TENDER_VALIDATE=hold changes that would break clients.\n" +
			"Choose with a REASON as in tender pending, with flags, or with --all. Dropped changes\n" +
			"pass only with the REASON dropped. A change that replaces another resource passes with\n" +
			"the removal of that resource, and alone only by its name or with the REASON replacement.\n" +
			"Pass does not end a freeze, a rollback or a rollout: use tender thaw or tender rollout.",
		Example: "  tender pass large-removal --type cds --dry-run\n  tender pass --name web --reason 'web was retired'\n  tender pass --origin default --group user_agent_name=envoy\n  tender pass dropped\n  tender pass --all",
	})
}

// newDropCommand returns the command tender drop.
func newDropCommand(h host) *cobra.Command {
	return newDecisionCommand(h, "drop", "dropped", &cobra.Command{
		Short: "Keep the resources whose changes are pending at a running relay",
		Long: "Drop makes a running relay keep the resources of the chosen pending changes. It serves\n" +
			"them until the origin updates or removes them by name; their absence from a response\n" +
			"does not count. Choose with a REASON as in tender pending, with flags, or with --all.\n" +
			"With TENDER_SNAPSHOT_DIR, dropped removals survive a restart of the relay. tender pass\n" +
			"dropped reverts a drop. Changes that wait for a thaw or a rollout cannot be dropped:\n" +
			"use tender rollback or tender rollout abort.",
		Example: "  tender drop large-removal --type cds\n  tender drop breaking --name web\n  tender drop --all --tier",
	})
}

// newDecisionCommand completes pass or drop. done is the participle that is printed for changes to which the command was
// applied.
func newDecisionCommand(h host, name, done string, cmd *cobra.Command) *cobra.Command {
	var of admin.PendingScope
	var wholeTier bool
	cmd.Use, cmd.Args = name+" [REASON]", cobra.MaximumNArgs(1)
	cmd.ValidArgsFunction = cli.CompleteFirst(admin.DecidableReasons()...)
	flag := addAdminFlag(cmd, h)
	addPendingChoice(cmd, &of.PendingChoice)
	cmd.Flags().BoolVar(&of.All, "all", false, "all pending changes that "+name+" decides on")
	cmd.Flags().BoolVar(&of.DryRun, "dry-run", false, "print the changes to which it would apply, and change nothing")
	addReason(cmd, &of.Why)
	addTier(cmd, &wholeTier)
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		if len(args) > 0 {
			of.PendingReason = args[0]
		}
		if of.PendingChoice == (admin.PendingChoice{}) && !of.All {
			return cli.UsageError{Cause: errors.New("want a REASON, --type, --name, --group, --origin or --all; tender pending lists the changes")}
		}
		addUser(&of.Why)
		w := cmd.OutOrStdout()
		return sendCommand(cmd.Context(), client, wholeTier, name, of, w, func(answer admin.PendingDecision) error {
			return printDecision(w, done, &answer, time.Now())
		})
	})
	return cmd
}

// printDecision writes the changes to which pass or drop was applied, and notes about the others.
func printDecision(w io.Writer, done string, answer *admin.PendingDecision, now time.Time) error {
	state := done
	if answer.DryRun {
		state = "dry run: would be " + done
	}
	if err := printPending(w, answer.Pending, state, false, now); err != nil {
		return err
	}
	for _, s := range answer.Skipped {
		_, err := fmt.Fprintf(w, "note: %s not %s: %s: use %s\n", are(s.Count, "change"), done, cli.Printable(s.Reason), cli.Printable(s.Use))
		if err != nil {
			return err
		}
	}
	return printWarning(w, answer.Warning)
}

// printPending writes a table of pending changes. state is "pending", or what was done with them. wide prints all names that
// the relay has sent.
func printPending(w io.Writer, rows []admin.PendingChange, state string, wide bool, now time.Time) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintf(w, "nothing is %s\n", strings.TrimPrefix(state, "dry run: would be "))
		return err
	}
	if state != "pending" {
		if _, err := fmt.Fprintf(w, "%s:\n", state); err != nil {
			return err
		}
	}
	t := &table{cli.Table{Wide: true}}
	t.pendingRows(rows, wide, now)
	return t.Print(w)
}

// pendingRows adds a row for each set of pending changes. wide adds all names that the relay has sent.
func (t *table) pendingRows(rows []admin.PendingChange, wide bool, now time.Time) {
	names, details := fewNames, fewDetails
	if wide {
		names, details = admin.MaxPendingNames, admin.MaxPendingNames
	}
	t.Row("ORIGIN", "GROUP", "TYPE", "CHANGE", "REASON", "SINCE", "UNTIL", "BY", "RESOURCES", "NAMES")
	for i := range rows {
		r := &rows[i]
		t.Row(r.Origin, cmp.Or(nodegroup.Name(r.Group), "all"), cli.ShortType(r.TypeURL), r.Change, r.Reason, ago(r.Since, now),
			r.ShownUntil(now), r.By, r.Count, r.ShownNames(names))
		if r.Note != "" {
			t.Note("%s", r.Note)
		}
		if r.Reported {
			t.Note("names only: returning clients reported them")
		}
		for i, detail := range r.Details[:min(len(r.Details), details)] {
			t.Note("%s: %s", r.Names[i], detail)
		}
	}
}

// pendingNote returns the numbers of an origin's pending changes in words; empty if there are none.
func pendingNote(pending map[string]int) string {
	total := 0
	var parts []string
	for _, reason := range admin.PendingReasons {
		if n := pending[reason]; n > 0 {
			total += n
			parts = append(parts, fmt.Sprintf("%d %s", n, reason))
		}
	}
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%s PENDING (%s): tender pending", are(total, "change"), strings.Join(parts, ", "))
}
