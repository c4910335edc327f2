package main

import (
	"fmt"
	"io"
	"net/url"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// newFreezeCommand returns the command tender freeze.
func newFreezeCommand(h host) *cobra.Command {
	var length time.Duration
	cmd, of := newFreezing(h, "freeze", &cobra.Command{
		Short: "Stop the distribution of changes by a running relay",
		Long: "Freeze stops the distribution of changes by a running relay, until tender thaw or for\n" +
			"the duration of --for. All clients, also new ones, are served the present state of the\n" +
			"relay. The relay stays connected to the origin. It requests resources that it does not\n" +
			"have yet, and serves their first response. With TENDER_SNAPSHOT_DIR the freeze survives\n" +
			"a restart of the relay; without it, freeze prints a warning. --tier freezes all relays\n" +
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
			"prints this difference; with --dry-run, it does nothing else. With --tier, it prints\n" +
			"the difference of the relay that is asked, and with --dry-run that of each relay.\n" +
			"PENDING is the number of names that differed.",
		Example: "  tender thaw --dry-run\n  tender thaw --reason 'routes are fixed' --tier",
	})
	cmd.Flags().BoolVar(&of.DryRun, "dry-run", false, "print what would change, and change nothing")
	return cmd
}

// newFreezing completes freeze or thaw. The caller may bind further flags to the returned arguments of the request.
func newFreezing(h host, name string, cmd *cobra.Command) (*cobra.Command, *admin.FreezeScope) {
	of := new(admin.FreezeScope)
	var wholeTier bool
	cmd.Use, cmd.Args = name, cobra.NoArgs
	flag := addAdminFlag(cmd, h)
	cmd.Flags().StringVar(&of.Origin, "origin", "", "only this origin: its `name`, or default for that of TENDER_ORIGIN")
	addReason(cmd, &of.Why)
	addTier(cmd, &wholeTier)
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		addUser(&of.Why)
		w, each := cmd.OutOrStdout(), wholeTier && of.DryRun // each: print the difference of each relay
		if name == "thaw" && !each {
			if err := printDiffOf(cmd.Context(), client, name, url.Values{"origin": {of.Origin}}, w); err != nil {
				return err
			}
		}
		return sendCommand(cmd.Context(), client, wholeTier, name, of, w, func(answer admin.Freezes) error {
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
	t.Row("ORIGIN", "STATE", "VIEWS", "PENDING", "BY")
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
		t.Row(f.Origin, state, f.Views, f.Pending, how)
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
