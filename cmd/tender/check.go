package main

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/relay"
)

// newCheckCommand returns tender check.
func newCheckCommand(environ func() []string) *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Print the configuration that tender serve would use, and what is wrong with it",
		Long: "Check prints every TENDER_… variable with the value that applies and where it\n" +
			"comes from. It ends with 1, and one line for each error, where tender serve\n" +
			"would not start. It reads the files that variables name, and warns of\n" +
			"certificates that have expired and of keys that everybody may read.\n\n" +
			"With --node it prints instead what TENDER_NODE_GROUP_BY makes of the Nodes of\n" +
			"clients: which of them share a group, the Node that the origin is shown for it,\n" +
			"and what the origin is not shown of each client's. A file is JSON or YAML, and\n" +
			"holds a Node (envoy.config.core.v3.Node), or an object with one in its field\n" +
			"node, such as the bootstrap of an Envoy or of a gRPC client; or several of\n" +
			"these, as YAML documents. With TENDER_ROLLOUT it prints the stage of each client.",
		Example: "  tender check\n" +
			"  tender check --node envoy.yaml --node bootstrap.json\n" +
			"  TENDER_NODE_GROUP_BY=cluster,metadata.env tender check --node - <nodes.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(nodes) > 0 {
				return checkNodes(cmd, environ(), nodes)
			}
			cfg, err := loadConfig(environ())
			if err := printSettings(cmd.OutOrStdout(), cfg.Table()); err != nil {
				return fmt.Errorf("print configuration: %w", err)
			}
			for _, renamed := range cfg.Renamings() {
				cmd.PrintErrln("warning: " + renamed.String())
			}
			warnings, unusable := cfg.CheckFiles()
			for _, warning := range warnings {
				cmd.PrintErrln("warning: " + warning)
			}
			return errors.Join(err, cfg.CheckSnapshotDir(), unusable)
		},
	}
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "`file` with clients' Nodes to sort into groups, - for stdin; may be given several times")
	completeFile(cmd, "node")
	return cmd
}

// loadConfig reads the configuration of a relay that is to serve.
func loadConfig(environ []string) (relay.Config, error) {
	cfg, err := relay.LoadConfig(environ)
	return cfg, errors.Join(cfg.RequireOrigin(), err)
}

// printSettings writes table in columns. A value that is longer than most moves
// only its own line.
func printSettings(w io.Writer, table []relay.Setting) error {
	const widest = 32
	rows := append([]relay.Setting{{Variable: "VARIABLE", Value: "VALUE", Source: "SOURCE", Meaning: "MEANING"}}, table...)
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
