package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/upstream"
)

// errDrift is the error of an audit that found differences or could not compare all views. The output contains the
// details.
var errDrift = errors.New("at least one view differs from its origin, or could not be compared")

// newAuditCommand returns the command tender audit.
func newAuditCommand(h host) *cobra.Command {
	var of admin.AuditScope
	var wholeTier bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare the cache of a running relay with its origins",
		Long: "Audit makes a running relay compare its cache with its origins. For each node group, the\n" +
			"relay opens a separate upstream stream, subscribes again without initial versions, and\n" +
			"compares names, versions and bytes. It changes nothing. A node group takes some seconds,\n" +
			"a minute at most, and as much memory as the group itself. The exit code is 1 if there\n" +
			"are differences, or if all origins are directories, which cannot be audited.",
		Example: "  tender audit\n  tender audit --type cds\n  tender audit --origin default --group user_agent_name=envoy -o json",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flag := addAdminFlag(cmd, h)
	flags.StringVar(&of.Origin, "origin", "", "only this origin: its `name`, or default for that of TENDER_ORIGIN")
	flags.StringVar(&of.Group, "group", "", "only the node group with this `key` or name")
	flags.StringVar(&of.Type, "type", "", "only this `type`: a type URL, or a short name such as cds")
	cli.CompleteTypes(cmd)
	addReason(cmd, &of.Why)
	addTier(cmd, &wholeTier)
	output := cli.AddOutputFlag(cmd, "text")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		addUser(&of.Why)
		client.http.Timeout = admin.AuditTime + time.Minute
		return audit(cmd.Context(), client, wholeTier, of, output, cmd.OutOrStdout())
	})
	return cmd
}

// audit audits a relay, or with --tier all relays of its tier, and prints the result. It returns errDrift unless all
// views agree, and errTier if a relay of the tier failed. With --tier and JSON it prints all responses in one object.
func audit(ctx context.Context, client *adminClient, wholeTier bool, of admin.AuditScope, output *cli.OutputFlag, w io.Writer) error {
	if wholeTier && output.Output == "json" {
		answers, err := sendToTier(ctx, client, "audit", of)
		if err != nil {
			return err
		}
		return cmp.Or(output.Print(w, answers, nil), checkTier(answers))
	}
	return sendCommand(ctx, client, wholeTier, "audit", of, w, func(found admin.Audits) error {
		err := output.Print(w, found, func() error { return printAudits(w, &found) })
		return cmp.Or(err, checkViews(found.Views))
	})
}

// checkTier returns errTier if a relay failed, and errDrift unless all views of the others agree.
func checkTier(answers admin.TierAnswers) (err error) {
	for _, r := range answers.Relays {
		if r.Error != "" {
			return errTier
		}
		var found admin.Audits
		if err := json.Unmarshal(r.Answer, &found); err != nil {
			return fmt.Errorf("audit of relay %s: %w", cli.Printable(r.Address), err)
		}
		err = cmp.Or(err, checkViews(found.Views))
	}
	return err
}

// checkViews returns errDrift unless all views were compared and equal their origins.
func checkViews(views []admin.ViewAudit) error {
	for _, v := range views {
		if v.Error != "" {
			return errDrift
		}
		for _, t := range v.Types {
			if t.Differing() > 0 {
				return errDrift
			}
		}
	}
	return nil
}

// printAudits writes the skipped origins, a table with the counts of each type, and then the differing resources.
func printAudits(w io.Writer, found *admin.Audits) error {
	views := found.Views
	for _, s := range found.Skipped {
		if _, err := fmt.Fprintf(w, "origin %s not audited: %s\n", cli.Printable(s.Origin), cli.Printable(s.Reason)); err != nil {
			return err
		}
	}
	if len(views) == 0 {
		_, err := fmt.Fprintln(w, "no subscriptions to audit for this choice")
		return err
	}
	t := &table{cli.Table{Wide: true}}
	t.Row("ORIGIN", "GROUP", "TYPE", "EQUAL", "CHANGING", "OTHER CONTENT", "OTHER VERSION", "MISSING HERE", "MISSING THERE")
	for _, v := range views {
		if v.Error != "" {
			t.Row(v.Origin, nodegroup.Name(v.Group), "", "", "", "", "", "", "not compared: "+v.Error)
		}
		for _, of := range v.Types {
			t.Row(v.Origin, nodegroup.Name(v.Group), cli.ShortType(of.TypeURL), of.Equal, of.Changing, of.Content, of.Version, of.MissingHere, of.MissingThere)
		}
	}
	for _, v := range views {
		for _, of := range v.Types {
			t.differences(v, of)
		}
	}
	return t.Print(w)
}

// differences adds a row for each difference of a type, and the number of differences that the relay omitted.
func (t *table) differences(v admin.ViewAudit, of admin.TypeAudit) {
	if len(of.Differences) == 0 {
		return
	}
	t.Row()
	t.Row(fmt.Sprintf("%s of %s for %s:", cli.ShortType(of.TypeURL), v.Origin, nodegroup.Name(v.Group)))
	for _, d := range of.Differences {
		t.Row("  "+d.Name, describeDifference(d))
	}
	if more := of.Differing() - len(of.Differences); more > 0 {
		t.Row(fmt.Sprintf("  and %d more", more))
	}
}

// describeDifference returns the kind of a difference and the versions of the relay ("here") and the origin ("there").
func describeDifference(d admin.Difference) (text string) {
	here, there := cmp.Or(d.Here, "none"), cmp.Or(d.There, "none")
	switch d.Kind {
	case upstream.MissingHere:
		text = "missing here: the origin has version " + there
	case upstream.MissingThere:
		text = "missing there: the relay has version " + here
	case upstream.OtherVersion:
		text = fmt.Sprintf("same content: version %s here, %s there", here, there)
	default:
		text = fmt.Sprintf("other content: version %s here, %s there", here, there)
	}
	if d.Held {
		text += ", since the change is pending or was dropped: tender pending"
	}
	return text
}
