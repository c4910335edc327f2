package main

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
)

// newCheckCommand returns the command tender check.
func newCheckCommand(h host) *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Print the configuration of tender serve, and its errors",
		Long: "Check prints every TENDER_… variable with its value, and where the value comes from. It\n" +
			"reads the files that variables name, and warns of certificates that have expired and of\n" +
			"keys that everybody can read. If tender serve would not start, check prints one line for\n" +
			"each error, and the exit code is 1.\n\n" +
			"With --node it prints instead how TENDER_NODE_GROUP_BY groups the Nodes of clients: the\n" +
			"clients of each group, the Node that the relay sends to the origin for it, and the\n" +
			"fields of each client that the origin does not receive. A file is JSON or YAML. It\n" +
			"contains a Node (envoy.config.core.v3.Node), or an object with a Node in its field node,\n" +
			"such as the bootstrap of an Envoy or of a gRPC client. A YAML file may have several\n" +
			"documents. With TENDER_ROLLOUT, check also prints the stage of each client.",
		Example: "  tender check\n" +
			"  tender check --node envoy.yaml --node bootstrap.json\n" +
			"  TENDER_NODE_GROUP_BY=cluster,metadata.env tender check --node - <nodes.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(nodes) > 0 {
				return checkNodes(cmd, h.environ(), nodes)
			}
			cfg, err := loadConfig(h.environ())
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
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "`file` with Nodes of clients to group, - for stdin; may be repeated")
	cli.CompleteFile(cmd, "node")
	return cmd
}

// loadConfig reads the configuration of tender serve, which requires TENDER_ORIGIN. With an error, the configuration is
// complete too: invalid values are replaced by their defaults.
func loadConfig(environ []string) (relay.Config, error) {
	cfg, err := relay.LoadConfig(environ)
	return cfg, errors.Join(cfg.RequireOrigin(), err)
}

// printSettings writes table in columns. A value longer than widest characters does not widen the column; it shifts
// only the rest of its own line.
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
