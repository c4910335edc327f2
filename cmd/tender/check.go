package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/relay/telemetry"
)

// newCheckCommand returns the command tender check.
func newCheckCommand(h host) *cobra.Command {
	var nodes []string
	var changed bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Print the configuration of tender serve, and its errors",
		Long: "Check prints every TENDER_… variable with its value, and where the value comes from. It\n" +
			"reads the files that variables name, and warns of certificates that have expired and of\n" +
			"keys that everybody can read. If tender serve would not start, check prints one line for\n" +
			"each error, and the exit code is 1. With --changed it prints only the variables whose\n" +
			"values differ from the defaults.\n\n" +
			"Check does not connect to a relay and changes nothing, so it can run beside one with the\n" +
			"same variables. It then notes that a process uses the directory TENDER_SNAPSHOT_DIR.\n\n" +
			"With --node it prints instead how TENDER_NODE_GROUP_BY groups the Nodes of clients: the\n" +
			"clients of each group, the Node that the relay sends to the origin for it, and the\n" +
			"fields of each client that the origin does not receive. A file is JSON or YAML. It\n" +
			"contains a Node (envoy.config.core.v3.Node), or an object with a Node in its field node,\n" +
			"such as the bootstrap of an Envoy or of a gRPC client. A YAML file may have several\n" +
			"documents. With TENDER_ROLLOUT, check also prints the stage of each client.",
		Example: "  tender check\n" +
			"  tender check --changed\n" +
			"  tender check -o json\n" +
			"  tender check --node envoy.yaml --node bootstrap.json\n" +
			"  TENDER_NODE_GROUP_BY=cluster,metadata.env tender check --node - <nodes.yaml",
		Args: cobra.NoArgs,
	}
	output := cli.AddOutputFlag(cmd, "text", "yaml")
	cmd.Flags().BoolVar(&changed, "changed", false, "print only variables whose values differ from their defaults")
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "`file` with Nodes of clients to group, - for stdin; may be repeated")
	cli.CompleteFile(cmd, "node")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(nodes) > 0 {
			if changed || output.Output != "text" {
				return cli.UsageError{Cause: errors.New("--node allows neither --changed nor --output")}
			}
			return checkNodes(cmd, h.environ(), nodes)
		}
		r, err := checkConfig(h.environ(), changed)
		printErr := output.Print(cmd.OutOrStdout(), r, func() error {
			if err := printSettings(cmd.OutOrStdout(), r.Variables); err != nil {
				return err
			}
			for _, line := range r.remarks() {
				cmd.PrintErrln(line)
			}
			return nil
		})
		if printErr != nil {
			return fmt.Errorf("print configuration: %w", printErr)
		}
		return err
	}
	return cmd
}

// A checkReport is the output of tender check -o json.
type checkReport struct {
	Variables []checkedVariable `json:"variables"`
	Errors    []string          `json:"errors"`   // why tender serve would not start
	Warnings  []string          `json:"warnings"` // it would start in spite of these
	Notes     []string          `json:"notes"`
}

// A checkedVariable is a [relay.Setting].
type checkedVariable struct {
	Variable string `json:"variable"`
	Value    string `json:"value"`
	Source   string `json:"source"`
	Meaning  string `json:"meaning"`
}

// checkConfig returns the report on the configuration in environ, with all variables or the changed ones. The error is
// that with which tender serve would end.
func checkConfig(environ []string, changed bool) (*checkReport, error) {
	cfg, err := loadConfig(environ)
	r := &checkReport{Variables: []checkedVariable{}, Errors: []string{}, Warnings: []string{}, Notes: []string{}}
	for _, s := range cfg.Table() {
		if !changed || isChanged(s) {
			r.Variables = append(r.Variables, checkedVariable(s))
		}
	}
	warnings, unusable := cfg.CheckFiles()
	r.Warnings = append(append(r.Warnings, warnings...), telemetry.Check(context.Background())...)
	directory := cfg.CheckSnapshotDir()
	if errors.Is(directory, snapshot.ErrLocked) { // by the relay beside which check runs
		r.Notes = append(r.Notes, fmt.Sprintf("TENDER_SNAPSHOT_DIR=%q: a running process uses the directory; "+
			"another relay can use it after that process has ended", cfg.SnapshotDir))
		directory = nil
	}
	if err = errors.Join(err, directory, unusable); err != nil {
		r.Errors = strings.Split(err.Error(), "\n")
	}
	return r, err
}

// isChanged reports whether a setting differs from its default.
func isChanged(s relay.Setting) bool {
	if s.Source == "default" {
		return false
	}
	byDefault, _ := relay.LoadConfig(nil) // has no error
	return !slices.ContainsFunc(byDefault.Table(), func(d relay.Setting) bool {
		return d.Variable == s.Variable && d.Value == s.Value
	})
}

// remarks returns the warnings and notes as lines of text.
func (r *checkReport) remarks() (lines []string) {
	for _, warning := range r.Warnings {
		lines = append(lines, "warning: "+warning)
	}
	for _, note := range r.Notes {
		lines = append(lines, "note: "+note)
	}
	return lines
}

// loadConfig reads the configuration of tender serve, which requires TENDER_ORIGIN. With an error, the configuration is
// complete too: invalid values are replaced by their defaults.
func loadConfig(environ []string) (relay.Config, error) {
	cfg, err := relay.LoadConfig(environ)
	return cfg, errors.Join(cfg.RequireOrigin(), err)
}

// printSettings writes table in columns. A value longer than widest characters does not widen the column; it shifts
// only the rest of its own line.
func printSettings(w io.Writer, table []checkedVariable) error {
	const widest = 32
	rows := append([]checkedVariable{{Variable: "VARIABLE", Value: "VALUE", Source: "SOURCE", Meaning: "MEANING"}}, table...)
	var variable, value, source int
	for _, row := range rows {
		variable = max(variable, utf8.RuneCountInString(row.Variable))
		source = max(source, utf8.RuneCountInString(row.Source))
		if n := utf8.RuneCountInString(row.Value); n <= widest {
			value = max(value, n)
		}
	}
	for _, row := range rows {
		shown := row.Value
		if shown == "" {
			shown = "-"
		}
		_, err := fmt.Fprintf(w, "%-*s  %-*s  %-*s  %s\n", variable, row.Variable, source, row.Source, value, shown, row.Meaning)
		if err != nil {
			return err
		}
	}
	return nil
}
