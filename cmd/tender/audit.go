package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/upstream"
)

// errDrift is the result of an audit that found something, or that could not be made of all
// views: what there is to say has been printed.
var errDrift = errors.New("not every view is what its origin says")

// newAuditCommand returns tender audit.
func newAuditCommand(environ func() []string) *cobra.Command {
	var of admin.Scope
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare what a running relay holds with what its origins say",
		Long: "Audit has a running relay ask its origins, on streams beside its own, once more for\n" +
			"all that it has asked them for, without saying what it holds, and compares the\n" +
			"answers with that: names, versions and bytes. It changes nothing. It takes some\n" +
			"seconds for each node group, a minute at most, and for that time as much memory as\n" +
			"the group does. The exit code is 1 if there are differences.",
		Example: "  tender audit\n  tender audit --type cds\n  tender audit --origin default --group user_agent_name=envoy -o json",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flag := addAdminFlag(cmd, environ)
	flags.StringVar(&of.Origin, "origin", "", "only this origin: default for that of TENDER_ORIGIN, else its `name`")
	flags.StringVar(&of.Group, "group", "", "only the node group with this `key`")
	flags.StringVar(&of.Type, "type", "", "only this `type`: a type URL, or a short name such as cds")
	completeTypes(cmd)
	output := addOutputFlag(cmd, "text")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		client.http.Timeout = admin.AuditTime + time.Minute
		return audit(cmd.Context(), client, of, output, cmd.OutOrStdout())
	})
	return cmd
}

// audit has a relay audited and prints what that found.
func audit(ctx context.Context, client *adminClient, of admin.Scope, output *outputFlag, w io.Writer) error {
	var found admin.Audits
	if err := client.command(ctx, "audit", of, &found); err != nil {
		return err
	}
	err := output.print(w, found, func() error { return printAudits(w, found.Views) })
	if err != nil || agrees(found.Views) {
		return err
	}
	return errDrift
}

// agrees reports whether all views are what their origins say.
func agrees(views []admin.ViewAudit) bool {
	for _, v := range views {
		if v.Error != "" {
			return false
		}
		for _, t := range v.Types {
			if t.Differing() > 0 {
				return false
			}
		}
	}
	return true
}

// printAudits writes audits for people: a table, and what differs.
func printAudits(w io.Writer, views []admin.ViewAudit) error {
	if len(views) == 0 {
		_, err := fmt.Fprintln(w, "there is nothing to compare: no view asks a control plane for anything of that")
		return err
	}
	t := &table{wide: true}
	t.row("ORIGIN", "GROUP", "TYPE", "EQUAL", "CHANGING", "OTHER CONTENT", "OTHER VERSION", "MISSING HERE", "MISSING THERE")
	for _, v := range views {
		if v.Error != "" {
			t.row(v.Origin, v.Group, "", "", "", "", "", "", "not compared: "+v.Error)
		}
		for _, of := range v.Types {
			t.row(v.Origin, v.Group, shortType(of.TypeURL), of.Equal, of.Changing, of.Content, of.Version, of.MissingHere, of.MissingThere)
		}
	}
	for _, v := range views {
		for _, of := range v.Types {
			t.differences(v, of)
		}
	}
	return t.print(w)
}

// differences adds how the resources of a type differ.
func (t *table) differences(v admin.ViewAudit, of admin.TypeAudit) {
	if len(of.Differences) == 0 {
		return
	}
	t.row()
	t.row(fmt.Sprintf("%s of %s for %s:", shortType(of.TypeURL), v.Origin, v.Group))
	for _, d := range of.Differences {
		t.row("  "+d.Name, describeDifference(d))
	}
	if more := of.Differing() - len(of.Differences); more > 0 {
		t.row(fmt.Sprintf("  and %d more", more))
	}
}

func describeDifference(d admin.Difference) string {
	here, there := cmp.Or(d.Here, "none"), cmp.Or(d.There, "none")
	switch d.Kind {
	case upstream.MissingHere:
		return "missing here: the origin has version " + there
	case upstream.MissingThere:
		text := "missing there: the relay has version " + here
		if d.Held {
			text += ", whose removal is held back or discarded: tender release"
		}
		return text
	case upstream.OtherVersion:
		return fmt.Sprintf("same content: version %s here, %s there", here, there)
	}
	return fmt.Sprintf("other content: version %s here, %s there", here, there)
}
