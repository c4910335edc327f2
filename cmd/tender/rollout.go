package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// newRolloutCommand returns the command tender rollout, with its subcommands.
func newRolloutCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Show and control the distribution of changes in stages",
		Long: "Rollout shows and controls how a running relay distributes the changes of its origins in\n" +
			"stages (TENDER_ROLLOUT). An edition contains changes that belong together, by references:\n" +
			"a part. A few clients receive it first, and the next stage receives it if they accept it.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UsageError{Cause: fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())}
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(
		newRolloutStatusCommand(h),
		newRolloutDiffCommand(h),
		newRolloutPromoteCommand(h),
		newRolloutAbortCommand(h),
		newRolloutResumeCommand(h),
		newRolloutUndoCommand(h),
	)
	return cmd
}

// newRolloutStatusCommand returns the command tender rollout status.
func newRolloutStatusCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the state of rollouts, or wait until they end",
		Long: "Status prints the rollout of each origin: its state and stage, the remaining time, the\n" +
			"condition for the next step, and the commands that apply. For each stage it prints the\n" +
			"number of clients that accepted and rejected the edition, with the error details of\n" +
			"rejections.\n\n" +
			"With --wait it returns once all rollouts have ended. The exit code is 0 if their\n" +
			"editions were promoted to all clients, or if none is open, and 1 if one is halted. It\n" +
			"does not wait for a change that the relay has not received yet.",
		Example: "  tender rollout status\n  tender rollout status --wait --timeout 1h\n  tender rollout status --origin default -o json",
		Args:    cobra.NoArgs,
	}
	var origin string
	var wait bool
	var timeout time.Duration
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "text", "yaml")
	addRolloutOrigin(cmd, &origin)
	cmd.Flags().BoolVar(&wait, "wait", false, "print each step, until the edition is promoted to all clients or halted")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "with --wait, fail after this `duration`, such as 1h (default never)")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		if cmd.Flags().Changed("timeout") && (!wait || timeout <= 0) {
			return cli.UsageError{Cause: fmt.Errorf("--timeout=%v: want --wait, and a duration such as 1h", timeout)}
		}
		w := cmd.OutOrStdout()
		r := rolloutReader{client: client, origin: origin, timeout: timeout, steps: io.Discard}
		if output.Output == "text" {
			r.steps = w
		}
		read := r.read
		if wait {
			read = r.wait
		}
		answer, ended := read(cmd.Context())
		if len(answer.Rollouts) == 0 {
			return ended
		}
		if err := output.Print(w, answer, func() error { return printRollouts(w, answer, time.Now()) }); err != nil {
			return err
		}
		return ended
	})
	return cmd
}

// addRolloutOrigin adds --origin to a command that only reads.
func addRolloutOrigin(cmd *cobra.Command, origin *string) {
	cmd.Flags().StringVar(origin, "origin", "", "only of this origin: its `name`, or default for that of TENDER_ORIGIN")
}

// newRolloutDiffCommand returns the command tender rollout diff.
func newRolloutDiffCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [TYPE [NAME]]",
		Short: "Print the changes in the edition of a rollout",
		Long: "Diff prints the resources that the edition of a rollout adds (+), removes (-) and\n" +
			"changes (~), compared with the configuration of most clients. If the rollout is halted,\n" +
			"it prints those of the rejected edition. With a NAME it prints a diff of the content as\n" +
			"JSON, in which secrets are redacted. TYPE is a type URL, or a short name such as cds.",
		Example: "  tender rollout diff\n  tender rollout diff rds\n  tender rollout diff rds shop",
		Args:    cobra.MaximumNArgs(2),

		ValidArgsFunction: cli.CompleteFirst(strings.Fields(cli.Types)...),
	}
	var origin, group string
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "text", "yaml")
	addRolloutOrigin(cmd, &origin)
	cmd.Flags().StringVar(&group, "group", "", "only in the view of the node group with this `key` or name")
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		query := url.Values{"origin": {origin}, "group": {group}, "limit": {fmt.Sprint(manyClients)}}
		for i, arg := range args {
			if arg == "" {
				return cli.UsageError{Cause: errors.New("TYPE and NAME may not be empty")}
			}
			query.Set([]string{"type", "name"}[i], arg)
		}
		diff, err := readRolloutDiff(cmd.Context(), client, query)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		return output.Print(w, diff, func() error {
			if len(args) == 2 {
				return printContents(w, diff, "last good", "edition")
			}
			return printRolloutDiff(w, diff)
		})
	})
	return cmd
}

// newRolloutPromoteCommand returns the command tender rollout promote.
func newRolloutPromoteCommand(h host) *cobra.Command {
	cmd, of := newRolloutCommanding(h, "promote", &cobra.Command{
		Short: "Serve an edition to the next stage now",
		Long: "Promote makes a running relay serve the edition of a rollout to the next stage now, or\n" +
			"to all clients after the last stage. It does not wait for any condition.\n\n" +
			"With --all, all clients are served the present state of the origin without any stage,\n" +
			"also if the rollout is halted. Use it for changes that cannot wait.",
		Example: "  tender rollout promote\n  tender rollout promote --all --origin default",
	})
	cmd.Flags().BoolVar(&of.All, "all", false, "serve all clients the present state of the origin, without any stage")
	return cmd
}

// newRolloutAbortCommand returns the command tender rollout abort.
func newRolloutAbortCommand(h host) *cobra.Command {
	cmd, of := newRolloutCommanding(h, "abort", &cobra.Command{
		Short: "Reject an edition: clients return to the last good configuration",
		Long: "Abort rejects the edition of a rollout at a running relay: the clients that were served it\n" +
			"are served the last good configuration again. The rollout is halted until the origin\n" +
			"changes one of the resources of the edition, or until tender rollout resume.",
		Example: "  tender rollout abort --reason 'errors at checkout since 02:10'",
	})
	addReason(cmd, &of.Why)
	return cmd
}

// newRolloutResumeCommand returns the command tender rollout resume.
func newRolloutResumeCommand(h host) *cobra.Command {
	cmd, _ := newRolloutCommanding(h, "resume", &cobra.Command{
		Short: "Start a halted rollout again",
		Long: "Resume makes a running relay start a halted rollout again at the first stage, with the\n" +
			"present state of the origin, including the rejected changes.",
		Example: "  tender rollout resume\n  tender rollout resume --part rds/shop",
	})
	return cmd
}

// newRolloutUndoCommand returns the command tender rollout undo.
func newRolloutUndoCommand(h host) *cobra.Command {
	cmd, of := newRolloutCommanding(h, "undo", &cobra.Command{
		Short: "Revert the newest promotion to all clients",
		Long: "Undo makes a running relay revert the newest promotion to all clients: it serves them the\n" +
			"configuration before, and rejects the edition. The rollout is then halted, as after tender\n" +
			"rollout abort. Parts that were promoted at one time are undone together, unless --part\n" +
			"selects one. Only one promotion of a part can be undone.",
		Example: "  tender rollout undo --reason 'connection resets since 02:10'",
	})
	addReason(cmd, &of.Why)
	return cmd
}

// newRolloutCommanding completes a command that changes rollouts: rollout/NAME in the admin API. The caller may bind
// further flags to the returned arguments of the request.
func newRolloutCommanding(h host, name string, cmd *cobra.Command) (*cobra.Command, *admin.RolloutScope) {
	of := new(admin.RolloutScope)
	cmd.Use, cmd.Args = name, cobra.NoArgs
	cmd.Long += "\n\nWithout --origin, the command applies to all origins whose state allows it."
	if name != "undo" {
		cmd.Long += " Without --part, it\napplies to all of their parts whose state allows it."
	}
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "text", "yaml")
	cmd.Flags().StringVar(&of.Origin, "origin", "", "only this origin: its `name`, or default for that of TENDER_ORIGIN")
	cmd.Flags().StringVar(&of.Part, "part", "", "only this part: its `name`, such as rds/shop, or the ID of its edition")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		addUser(&of.Why)
		var answer admin.Rollouts
		if err := client.command(cmd.Context(), "rollout/"+name, of, &answer); err != nil {
			return err
		}
		w, now := cmd.OutOrStdout(), time.Now()
		return output.Print(w, answer, func() error {
			for _, s := range answer.Rollouts {
				if err := printStep(w, s, now); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return cmd, of
}
