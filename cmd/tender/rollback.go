package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// newGenerationsCommand returns the command tender generations.
func newGenerationsCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generations",
		Short: "Print the configurations that clients were served",
		Long: "Generations prints, for each control plane and node group, the configurations that a\n" +
			"running relay served and still keeps, newest first. The name of a generation is the\n" +
			"digest of its content, which is equal on replicas that serve the same resources.\n" +
			"Endpoints and Secrets are not part of it. MEMORY is the size of the resources that the\n" +
			"next generation lacks.",
		Example: "  tender generations\n  tender generations --origin default --limit 100 -o json",
		Args:    cobra.NoArgs,
	}
	var origin, group string
	var limit int
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "text", "yaml")
	addRolloutOrigin(cmd, &origin)
	cmd.Flags().StringVar(&group, "group", "", "only of the node group with this `key` or name")
	cmd.Flags().IntVar(&limit, "limit", 10, "print at most this `number` of generations of each node group")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		query := url.Values{"origin": {origin}, "group": {group}, "limit": {fmt.Sprint(limit)}}
		var all admin.Generations
		if err := client.get(cmd.Context(), "/api/v1/generations?"+query.Encode(), &all); err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		return output.Print(w, all, func() error { return printGenerations(w, all, time.Now()) })
	})
	return cmd
}

// printGenerations writes a table of the generations of each view, newest first, and the total size.
func printGenerations(w io.Writer, all admin.Generations, now time.Time) error {
	t := &table{cli.Table{Wide: true}}
	for _, v := range all.Views {
		t.Row(fmt.Sprintf("origin %s, group %s", v.Origin, nodegroup.Name(v.Group)))
		t.Row("GENERATION", "SERVED SINCE", "FOR", "CHANGES", "MEMORY")
		for _, g := range v.Generations {
			served, kept := "still served", "-"
			if !g.Until.IsZero() {
				served, kept = humanize.Seconds(g.Until.Sub(g.Since).Seconds()), humanize.Bytes(int(g.Bytes))
			}
			t.Row(cmp.Or(g.Generation, "empty"), g.Since.Local().Format(time.DateTime)+" ("+ago(g.Since, now)+" ago)", served,
				fmt.Sprintf("+%d ~%d -%d", g.Added, g.Changed, g.Removed), kept)
		}
		if more := v.Total - len(v.Generations); more > 0 {
			t.Note("%d more: --limit", more)
		}
		t.Row()
	}
	t.Row(fmt.Sprintf("%d earlier generations hold %s of at most %s", all.Earlier, humanize.Bytes(int(all.Bytes)), humanize.Bytes(int(all.MaxBytes))))
	return t.Print(w)
}

// newRollbackCommand returns the command tender rollback.
func newRollbackCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback GENERATION|DURATION",
		Short: "Serve clients an earlier configuration until tender thaw",
		Long: "Rollback makes a running relay serve its clients an earlier configuration: a GENERATION\n" +
			"of tender generations, or the one that was served a DURATION ago, such as 10m. A node\n" +
			"group without the GENERATION returns to the configuration that it was served at that\n" +
			"time. Rollback prints the difference first; with --dry-run it does nothing else.\n\n" +
			"Later changes of the control plane wait until tender thaw. Endpoints and Secrets stay\n" +
			"those of the control plane, and the relay passes on resources that it has never served.\n" +
			"With TENDER_SNAPSHOT_DIR the rollback survives a restart of the relay.",
		Example: "  tender rollback 10m --dry-run\n  tender rollback 10m --reason 'bad routes since 14:00' --tier\n  tender rollback 3f2a01c4d9e8 --reason 'bad routes' --origin default",
		Args:    cobra.ExactArgs(1),
	}
	var of admin.RollbackScope
	var wholeTier bool
	flag := addAdminFlag(cmd, h)
	cmd.Flags().StringVar(&of.Origin, "origin", "", "only this origin: its `name`, or default for that of TENDER_ORIGIN")
	cmd.Flags().BoolVar(&of.DryRun, "dry-run", false, "print what would change, and change nothing")
	addReason(cmd, &of.Why)
	addTier(cmd, &wholeTier)
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		of.To = args[0]
		if err := of.Check(); err != nil {
			return cli.UsageError{Cause: rollbackUsage(err)}
		}
		w, each := cmd.OutOrStdout(), wholeTier && of.DryRun // each: print the difference of each relay
		if !each {
			query := url.Values{"to": {of.To}, "origin": {of.Origin}}
			if err := printDiffOf(cmd.Context(), client, "rollback", query, w); err != nil {
				return err
			}
		}
		addUser(&of.Why)
		return sendCommand(cmd.Context(), client, wholeTier, "rollback", of, w, func(answer admin.Rollbacks) error {
			if err := printDryRun(w, answer.Diff, each); err != nil {
				return err
			}
			return printRollbacks(w, answer)
		})
	})
	return cmd
}

// rollbackUsage adds the usage of tender rollback to an error of its arguments.
func rollbackUsage(err error) error {
	return errors.New("tender rollback GENERATION|DURATION --reason TEXT: " + err.Error())
}

// printDiffOf requests and writes the changes that a command, rollback or thaw, makes for clients of the relay of
// client.
func printDiffOf(ctx context.Context, client *adminClient, command string, query url.Values, w io.Writer) error {
	query.Set("limit", fmt.Sprint(manyClients))
	diff, err := readDiff(ctx, client, "/api/v1/"+command+"/diff", query)
	if err != nil {
		return err
	}
	return printDryRun(w, &diff, true)
}

// printDryRun writes the changes of a command, and nothing if diff is nil or show is false. The response of a relay to
// a dry run contains a limited number of changes; printDryRun then writes the number of the others.
func printDryRun(w io.Writer, diff *admin.RolloutDiff, show bool) error {
	if diff == nil || !show {
		return nil
	}
	if err := printRolloutDiff(w, *diff); err != nil {
		return err
	}
	if more := diff.Total - len(diff.Changes); more > 0 {
		if _, err := fmt.Fprintf(w, "%d more changes: --dry-run without --tier prints all\n", more); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// printRollbacks writes the state of each origin after a rollback as a table, and the warning of the relay.
func printRollbacks(w io.Writer, answer admin.Rollbacks) error {
	now := time.Now()
	t := &table{cli.Table{Wide: true}}
	t.Row("ORIGIN", "STATE", "VIEWS", "RESOURCES", "BY")
	for _, b := range answer.Origins {
		state, how := "changes are distributed", "-"
		switch {
		case answer.DryRun:
			state = "dry run: nothing is changed"
		case b.Freeze != nil:
			state = "ROLLED BACK"
		}
		if b.Freeze != nil {
			how = b.Freeze.Describe(now)
		}
		t.Row(b.Origin, state, b.Views, b.Resources, how)
	}
	if err := t.Print(w); err != nil {
		return err
	}
	return printWarning(w, answer.Warning)
}
