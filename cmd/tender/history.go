package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// newHistoryCommand returns the command tender history.
func newHistoryCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history [TYPE NAME]",
		Short: "Print the last changes of a resource, or the last actions of operators",
		Long: "History prints the last changes of a resource that a running relay remembers\n" +
			"(TENDER_HISTORY), newest first: the time of the control plane's response, the new\n" +
			"version and size, and the change of the content as a diff of YAML in which secrets\n" +
			"are redacted. TYPE is a type URL, or a short name such as cds.\n\n" +
			"Without TYPE and NAME it prints the commands of operators since the start of the relay:\n" +
			"the operator, the address, the command, the reason and the result.",
		Example: "  tender history\n  tender history cds web\n  tender history eds web --limit 1\n  tender history rds web -o json",
		Args:    cobra.MatchAll(cobra.MaximumNArgs(2), notOneArgument),

		ValidArgsFunction: cli.CompleteFirst(strings.Fields(cli.Types)...),
	}
	var group string
	var limit int
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "text")
	cmd.Flags().StringVar(&group, "group", "", "only in the view of the node group with this `key` or name")
	cmd.Flags().IntVar(&limit, "limit", 10, "print at most this `number` of changes or actions")
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		w := cmd.OutOrStdout()
		if len(args) == 0 {
			var done admin.Actions
			if err := client.get(cmd.Context(), fmt.Sprint("/api/v1/actions?limit=", limit), &done); err != nil {
				return err
			}
			return output.Print(w, done, func() error { return printActions(w, done.Actions, time.Now()) })
		}
		query := url.Values{"type": {args[0]}, "name": {args[1]}, "limit": {fmt.Sprint(limit)}}
		if group != "" {
			query.Set("group", group)
		}
		var h admin.History
		if err := client.get(cmd.Context(), "/api/v1/history?"+query.Encode(), &h); err != nil {
			return err
		}
		return output.Print(w, h, func() error { return printHistory(w, h.Changes, time.Now()) })
	})
	return cmd
}

// printHistory writes one line for each change of a resource, followed by the diff of its content.
func printHistory(w io.Writer, changes []admin.Change, now time.Time) error {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s (%s ago)  %s", c.At.Local().Format(time.DateTime), ago(c.At, now), c.Change)
		if c.SHA256 != "" {
			fmt.Fprintf(&b, "  version %s  %s", cli.Printable(cmp.Or(c.OriginVersion, c.Version)), humanize.Bytes(c.Bytes))
		}
		fmt.Fprintf(&b, "  (%s)\n", cli.Printable(nodegroup.Name(c.Group)))
		for line := range strings.Lines(c.Diff) {
			fmt.Fprintf(&b, "    %s\n", cli.Printable(strings.TrimSuffix(line, "\n")))
		}
		if c.Note != "" {
			fmt.Fprintf(&b, "    (%s)\n", cli.Printable(c.Note))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// notOneArgument refuses a TYPE without a NAME. It is a [cobra.PositionalArgs].
func notOneArgument(_ *cobra.Command, args []string) error {
	if len(args) == 1 {
		return errors.New("want TYPE and NAME of a resource, or neither")
	}
	return nil
}

// printActions writes a table of the commands of operators, also of those that the relay refused.
func printActions(w io.Writer, actions []admin.Action, now time.Time) error {
	if len(actions) == 0 {
		_, err := fmt.Fprintln(w, "no operator has sent a command since the relay started")
		return err
	}
	t := &table{cli.Table{Wide: true}}
	t.Row("TIME", "AGO", "COMMAND", "OPERATOR", "FROM", "RESULT", "REASON")
	for _, a := range actions {
		result := "done"
		switch {
		case a.Code != http.StatusOK:
			result = fmt.Sprint(a.Code)
		case a.DryRun:
			result = "dry run"
		}
		from := cmp.Or(a.From, "-")
		if a.Via != "" {
			from = a.Via
		}
		t.Row(a.At.Local().Format(time.DateTime), ago(a.At, now), a.Command, a.Operator, from, result, cmp.Or(a.Reason, "-"))
		if a.Error != "" {
			t.Note("%s", a.Error)
		}
	}
	return t.Print(w)
}
