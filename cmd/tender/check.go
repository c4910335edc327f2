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
	return &cobra.Command{
		Use:   "check",
		Short: "Print the configuration that tender serve would use, and what is wrong with it",
		Long: "Check prints every TENDER_… variable with the value that applies and where it\n" +
			"comes from. It ends with 1, and one line for each error, where tender serve\n" +
			"would not start.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(environ())
			if err := printSettings(cmd.OutOrStdout(), cfg.Table()); err != nil {
				return fmt.Errorf("print configuration: %w", err)
			}
			return err
		},
	}
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
