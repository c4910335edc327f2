package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/humanize"
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
		Long: "Check prints every TENDER_… variable with its value and its source:\n\n" +
			"  default      it is not set\n" +
			"  environment  it is set\n" +
			"  refused      it is set to a value that tender serve does not accept\n" +
			"  missing      it is not set, but has to be\n" +
			"  unknown      there is no such variable; the value is not shown, as it may be a secret\n\n" +
			"Check also reads the files that variables name, and warns of certificates that have\n" +
			"expired and of keys that everybody can read. It runs the Envoy of TENDER_CHECK_ENVOY with\n" +
			"--version, as the relay does at its start. If tender serve would not start, check\n" +
			"prints one line for each error, and the exit code is 1. In JSON and YAML, an error has\n" +
			"the variables that it concerns. With --changed, check prints only the variables whose\n" +
			"values differ from the defaults, and those with errors.\n\n" +
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
		_, r, err := checkConfig(h.environ())
		r.Warnings = append(r.Warnings, telemetry.Check(cmd.Context())...)
		if changed {
			r.Variables = slices.DeleteFunc(r.Variables, r.isUnchanged)
		}
		if err := output.Print(cmd.OutOrStdout(), r, func() error { return r.print(cmd) }); err != nil {
			return fmt.Errorf("print configuration: %w", err)
		}
		return err
	}
	return cmd
}

// print writes the report as text, without the errors.
func (r *checkReport) print(cmd *cobra.Command) error {
	if err := printSettings(cmd.OutOrStdout(), r.Variables); err != nil {
		return err
	}
	for _, line := range r.remarks() {
		cmd.PrintErrln(line)
	}
	return nil
}

// A checkReport is the output of tender check -o json.
type checkReport struct {
	Variables []checkedVariable `json:"variables"`
	Errors    []checkedError    `json:"errors"`   // why tender serve would not start
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

// A checkedError is a [relay.ConfigError].
type checkedError struct {
	Variables []string `json:"variables"` // the one whose value is refused comes first
	Message   string   `json:"message"`
}

// loadChecked returns the configuration in environ, with warnings about its files. The error is that with which tender serve
// ends. With an error, the configuration is complete too: invalid values are replaced by their defaults.
func loadChecked(environ []string) (cfg relay.Config, warnings []string, err error) {
	cfg, err = relay.LoadConfig(environ)
	warnings, unusable := cfg.CheckFiles()
	return cfg, warnings, errors.Join(cfg.RequireOrigin(), err, unusable)
}

// checkConfig returns the configuration in environ as loadChecked does, with a report. It also returns an error if the
// snapshot directory is not usable: tender serve then serves without it, and tries again.
func checkConfig(environ []string) (relay.Config, *checkReport, error) {
	cfg, warnings, err := loadChecked(environ)
	r := &checkReport{Variables: []checkedVariable{}, Errors: []checkedError{}, Warnings: []string{}, Notes: []string{}}
	for _, s := range cfg.Table() {
		r.Variables = append(r.Variables, checkedVariable(s))
	}
	r.Warnings = append(r.Warnings, warnings...)
	directory := cfg.CheckSnapshotDir()
	if errors.Is(directory, snapshot.ErrLocked) { // by the relay beside which check runs
		r.Notes = append(r.Notes, fmt.Sprintf("TENDER_SNAPSHOT_DIR=%q: a running process uses the directory; "+
			"another relay can use it after that process has ended", cfg.SnapshotDir))
		directory = nil
	}
	_, envoy := cfg.OpenEnvoy(slog.New(slog.DiscardHandler))
	err = errors.Join(err, directory, envoy)
	for _, e := range relay.ConfigErrors(err) {
		r.Errors = append(r.Errors, checkedError{e.Variables, e.Message})
	}
	return cfg, r, err
}

// isUnchanged reports whether a variable has its default and no error.
func (r *checkReport) isUnchanged(v checkedVariable) bool {
	concerns := func(e checkedError) bool { return slices.Contains(e.Variables, v.Variable) }
	byDefault, _ := relay.LoadConfig(nil) // has no error
	isDefault := func(d relay.Setting) bool { return d.Variable == v.Variable && d.Value == v.Value }
	return !slices.ContainsFunc(r.Errors, concerns) &&
		(v.Source == relay.SourceDefault || slices.ContainsFunc(byDefault.Table(), isDefault))
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

// printSettings writes table in columns. A longer name or value than is usual does not widen its column; it shifts only the
// rest of its own line. The names of unknown variables may be very long, and are cut.
func printSettings(w io.Writer, table []checkedVariable) error {
	const widestVariable, widestValue, mostVariable = 48, 32, 120
	rows := append([]checkedVariable{{Variable: "VARIABLE", Value: "VALUE", Source: "SOURCE", Meaning: "MEANING"}}, table...)
	var variable, value, source int
	for _, row := range rows {
		if n := utf8.RuneCountInString(row.Variable); n <= widestVariable {
			variable = max(variable, n)
		}
		source = max(source, utf8.RuneCountInString(row.Source))
		if n := utf8.RuneCountInString(row.Value); n <= widestValue {
			value = max(value, n)
		}
	}
	for _, row := range rows {
		shown := row.Value
		if shown == "" {
			shown = "-"
		}
		_, err := fmt.Fprintf(w, "%-*s  %-*s  %-*s  %s\n", variable, humanize.Cut(row.Variable, mostVariable), source, row.Source, value, shown, row.Meaning)
		if err != nil {
			return err
		}
	}
	return nil
}
