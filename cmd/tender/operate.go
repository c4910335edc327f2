package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
)

// newReleaseCommand returns the command tender release.
func newReleaseCommand(h host) *cobra.Command {
	return newHoldCommand(h, "release", "released", &cobra.Command{
		Short: "Send clients the changes that a running relay holds",
		Long: "Release makes a running relay send clients the changes that it holds: removals, because\n" +
			"an origin removed suspiciously many resources at once, and with TENDER_VALIDATE=hold\n" +
			"changes that would break clients. Without a selection, release lists the held changes.",
		Example: "  tender release\n  tender release --type cds\n  tender release --origin default --group user_agent_name=envoy\n  tender release --all",
	})
}

// newDiscardCommand returns the command tender discard.
func newDiscardCommand(h host) *cobra.Command {
	return newHoldCommand(h, "discard", "discarded", &cobra.Command{
		Short: "Keep the resources whose changes a running relay holds",
		Long: "Discard makes a running relay keep the resources of which it holds a removal or an\n" +
			"update. It serves them until the origin updates or removes them by name; their absence\n" +
			"from a response does not count. With TENDER_SNAPSHOT_DIR, discarded removals survive a\n" +
			"restart of the relay. Without a selection, discard lists the held changes.",
		Example: "  tender discard\n  tender discard --all",
	})
}

// newHoldCommand completes release or discard, which decide on held changes. done is the participle that is printed for
// changes to which the command was applied.
func newHoldCommand(h host, name, done string, cmd *cobra.Command) *cobra.Command {
	var of admin.HoldScope
	var fleet bool
	cmd.Use, cmd.Args = name, cobra.NoArgs
	flags := cmd.Flags()
	flag := addAdminFlag(cmd, h)
	flags.StringVar(&of.Origin, "origin", "", "only of this origin: its `name`, or default for that of TENDER_ORIGIN")
	flags.StringVar(&of.Group, "group", "", "only of the node group with this `key`")
	flags.StringVar(&of.Type, "type", "", "only of this `type`: a type URL, or a short name such as cds")
	cli.CompleteTypes(cmd)
	flags.BoolVar(&of.All, "all", false, "all held changes")
	addReason(cmd, &of.Why)
	addFleet(cmd, &fleet)
	if name == "release" {
		flags.BoolVar(&of.Discarded, "discarded", false, "apply to discarded changes, instead of waiting ones")
	}
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		out := cmd.OutOrStdout()
		if of.Scope == (admin.Scope{}) && !of.All {
			var answer admin.Holds
			if err := client.get(cmd.Context(), "/api/v1/holds", &answer); err != nil {
				return err
			}
			if err := printHolds(out, "held back", answer.Holds, time.Now()); err != nil || len(answer.Holds) == 0 {
				return err
			}
			return cli.UsageError{Cause: errors.New("choose with --origin, --group, --type, or --all")}
		}
		addUser(&of.Why)
		return sendCommand(cmd.Context(), client, fleet, name, of, out, func(answer admin.Holds) error {
			if err := printHolds(out, done, answer.Holds, time.Now()); err != nil {
				return err
			}
			return printWarning(out, answer.Warning)
		})
	})
	return cmd
}

// printHolds writes a table of held changes. done is the decision that was applied to them, or "held back" before one.
func printHolds(w io.Writer, done string, holds []admin.Hold, now time.Time) error {
	if len(holds) == 0 {
		_, err := fmt.Fprintf(w, "nothing is %s\n", done)
		return err
	}
	t := &table{cli.Table{Wide: true}}
	t.Row("ORIGIN", "GROUP", "TYPE", "RESOURCES", "SINCE", "STATE", "NAMES")
	for _, h := range holds {
		state := done
		switch {
		case done != "held back":
		case h.Discarded:
			state = "discarded: kept until the origin mentions it again"
		case h.Broken:
			state = "held back until clients can use the result"
		case h.Until.IsZero():
			state = "held back, being checked again"
		default:
			state = "held back for another " + humanize.Seconds(h.Until.Sub(now).Seconds())
		}
		if h.Reported {
			state += "; names only: returning clients reported them"
		}
		names := strings.Join(h.Names[:min(len(h.Names), 3)], ", ")
		if h.Count > 3 {
			names += ", …"
		}
		t.Row(h.Origin, cmp.Or(h.Group, "all"), cli.ShortType(h.TypeURL), h.Count, ago(h.Since, now), state, names)
		for i, reason := range h.Reasons[:min(len(h.Reasons), 3)] {
			t.Note("%s: %s", h.Names[i], reason)
		}
	}
	return t.Print(w)
}

// newFreezeCommand returns the command tender freeze.
func newFreezeCommand(h host) *cobra.Command {
	var length time.Duration
	cmd, of := newFreezing(h, "freeze", &cobra.Command{
		Short: "Stop the distribution of changes by a running relay",
		Long: "Freeze stops the distribution of changes by a running relay, until tender thaw or for\n" +
			"the duration of --for. All clients, also new ones, are served the present state of the\n" +
			"relay. The relay stays connected to the origin. It requests resources that it does not\n" +
			"have yet, and serves their first response. With TENDER_SNAPSHOT_DIR the freeze survives\n" +
			"a restart of the relay; without it, freeze prints a warning. --fleet freezes all relays\n" +
			"of the tier.",
		Example: "  tender freeze --reason 'bad routes since 14:00' --for 2h\n  tender freeze --origin default",
	})
	cmd.Flags().DurationVar(&length, "for", 0, "end the freeze after this `duration`, such as 2h (default only by tender thaw)")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("for") && length <= 0 {
			return cli.UsageError{Cause: fmt.Errorf("--for=%v: want a duration of a second at least, such as 2h", length)}
		}
		of.ForSeconds = length.Seconds()
		return run(cmd, args)
	}
	return cmd
}

// newThawCommand returns the command tender thaw.
func newThawCommand(h host) *cobra.Command {
	cmd, of := newFreezing(h, "thaw", &cobra.Command{
		Short: "Resume the distribution of changes after tender freeze or tender rollback",
		Long: "Thaw makes a relay send its clients the changes since tender freeze, or the difference\n" +
			"to the generation of tender rollback: the current state of each resource. It first\n" +
			"prints this difference; with --dry-run, it does nothing else. With --fleet, it prints\n" +
			"the difference of the relay that is asked, and with --dry-run that of each relay.\n" +
			"WITHHELD is the number of names that differed.",
		Example: "  tender thaw --dry-run\n  tender thaw --reason 'routes are fixed' --fleet",
	})
	cmd.Flags().BoolVar(&of.DryRun, "dry-run", false, "print what would change, and change nothing")
	return cmd
}

// newFreezing completes freeze or thaw. The caller may bind further flags to the returned arguments of the request.
func newFreezing(h host, name string, cmd *cobra.Command) (*cobra.Command, *admin.FreezeScope) {
	of := new(admin.FreezeScope)
	var fleet bool
	cmd.Use, cmd.Args = name, cobra.NoArgs
	flag := addAdminFlag(cmd, h)
	cmd.Flags().StringVar(&of.Origin, "origin", "", "only this origin: its `name`, or default for that of TENDER_ORIGIN")
	addReason(cmd, &of.Why)
	addFleet(cmd, &fleet)
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		addUser(&of.Why)
		w, each := cmd.OutOrStdout(), fleet && of.DryRun // each: print the difference of each relay
		if name == "thaw" && !each {
			if err := printDiffOf(cmd.Context(), client, name, url.Values{"origin": {of.Origin}}, w); err != nil {
				return err
			}
		}
		return sendCommand(cmd.Context(), client, fleet, name, of, w, func(answer admin.Freezes) error {
			if err := printDryRun(w, answer.Diff, each); err != nil {
				return err
			}
			return printFreezes(w, answer)
		})
	})
	return cmd, of
}

// printFreezes writes the state of each origin after freeze or thaw as a table, and the warning of the relay.
func printFreezes(w io.Writer, answer admin.Freezes) error {
	now := time.Now()
	t := &table{cli.Table{Wide: true}}
	t.Row("ORIGIN", "STATE", "VIEWS", "WITHHELD", "BY")
	for _, f := range answer.Origins {
		state, how := "changes are distributed", "-"
		if f.Freeze != nil {
			state, how = "FROZEN", f.Freeze.Describe(now)
			if f.Freeze.Rollback != nil {
				state = "ROLLED BACK"
			}
		}
		if answer.DryRun {
			state = "dry run: nothing is changed"
		}
		t.Row(f.Origin, state, f.Views, f.Withheld, how)
	}
	if err := t.Print(w); err != nil {
		return err
	}
	return printWarning(w, answer.Warning)
}

// addReason adds --reason to an operator command.
func addReason(cmd *cobra.Command, why *admin.Why) {
	cmd.Flags().StringVar(&why.Reason, "reason", "", "`text` with the reason, for the log, the status and the page")
}

// addUser sets why.User to the user name of the operating system. If it is unknown, the relay records only the address.
func addUser(why *admin.Why) {
	if who, err := user.Current(); err == nil {
		why.User = who.Username
	}
}

// printWarning writes why a decision does not survive a restart of the relay. It writes nothing if warning is empty.
func printWarning(w io.Writer, warning string) error {
	if warning == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "note: %s\n", cli.Printable(warning))
	return err
}
