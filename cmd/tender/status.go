package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/relay/admin"
)

// newStatusCommand returns tender status.
func newStatusCommand(environ func() []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print how a running relay and its origins stand",
		Long: "Status asks a running relay, by its admin address, how its origins stand and what\n" +
			"it holds of them: for each node group and origin a view, with what is stale and\n" +
			"since when.",
		Example: "  tender status\n  tender status --admin unix:/run/tender/admin.sock -o json",
		Args:    cobra.NoArgs,
	}
	flag := addAdminFlag(cmd, environ)
	output := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := output.check(); err != nil {
			return err
		}
		client, err := flag.client()
		if err != nil {
			return err
		}
		var s admin.Status
		if err := client.get(cmd.Context(), "/api/v1/status", &s); err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		return output.print(w, s, func() error { return printStatus(w, &s, time.Now()) })
	}
	return cmd
}

// A row writes a row of a table.
type row func(cells ...any)

// printStatus writes a status for people.
func printStatus(w io.Writer, s *admin.Status, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := row(func(cells ...any) {
		texts := make([]string, len(cells))
		for i, cell := range cells {
			texts[i] = printable(fmt.Sprint(cell))
		}
		_, _ = fmt.Fprintln(t, strings.Join(texts, "\t")) // Flush has the error
	})
	ready := "ready"
	if !s.Relay.Ready {
		ready = "not ready: " + strings.Join(s.Relay.NotReady, "; ")
	}
	row(fmt.Sprintf("tender %s, up %s, %d streams, %s", s.Relay.Version, brief(s.Relay.UptimeSeconds), s.Relay.Streams, ready))
	row()
	row.origins(s.Origins, now)
	row()
	row.views(s.Views, now)
	return t.Flush()
}

func (row row) origins(origins []admin.Origin, now time.Time) {
	row("ORIGIN", "TARGET", "STATE", "SINCE", "LAST ERROR")
	for _, o := range origins {
		for _, target := range o.Targets {
			state, since, last := "standby", "-", "-"
			if target.Active {
				state, since, last = target.State, ago(o.Since, now), cmp.Or(o.LastError, "-")
			}
			row(o.Name, target.Target, state, since, last)
		}
		if o.Held > 0 {
			row(o.Name, "", fmt.Sprintf("%d removals are HELD BACK: tender release", o.Held))
		}
	}
}

func (row row) views(views []admin.View, now time.Time) {
	row("GROUP", "ORIGIN", "STREAMS", "TYPE", "ENTRIES", "BYTES", "STATE", "CHANGED", "VERSION")
	for _, v := range views {
		if v.Shared && len(v.Types) == 0 {
			continue // nobody has asked for an xdstp name
		}
		state := stateOf(&v, now)
		if len(v.Types) == 0 {
			row(v.Group, v.Origin, v.Streams, "-", 0, 0, cmp.Or(state, "-"), "-", "-")
		}
		for _, typ := range v.Types {
			row(v.Group, v.Origin, v.Streams, cmp.Or(typ.Name, typ.TypeURL), typ.Entries, typ.Bytes, cmp.Or(state, typ.Phase), ago(typ.ChangedAt, now), cmp.Or(typ.Version, "-"))
		}
	}
}

// stateOf returns what people should know of a view, or nothing if it is as it should be.
func stateOf(v *admin.View, now time.Time) string {
	switch {
	case !v.FrozenAt.IsZero():
		return fmt.Sprintf("FROZEN for %s, %d withheld", ago(v.FrozenAt, now), v.Withheld)
	case v.Stale:
		return "STALE for " + brief(v.StaleSeconds)
	case !v.Connected:
		return "not connected"
	}
	return ""
}

// ago returns how long ago something was, or a dash if it never was.
func ago(then, now time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return brief(now.Sub(then).Seconds())
}

// brief returns a number of seconds as one reads it: 0.4s, 12s, 3m20s, 5h1m, 12d3h.
func brief(seconds float64) string {
	d := time.Duration(max(seconds, 0) * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
