package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v2"
)

// An outputFlag is the flag --output of commands that print a relay's response as text or for programs.
type outputFlag struct {
	output  string
	allowed []string
}

// addOutputFlag adds --output to a command. forms are the text forms, the first of which is the default; json is always
// added. [outputFlag.print] supports yaml too, if it is among them.
func addOutputFlag(cmd *cobra.Command, forms ...string) *outputFlag {
	o := &outputFlag{allowed: append(forms, "json")}
	cmd.Flags().StringVarP(&o.output, "output", "o", forms[0], "output format: "+strings.Join(o.allowed, ", "))
	completeFlag(cmd, "output", o.allowed...)
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.check() }
	return o
}

// check returns an error for an output that there is not.
func (o *outputFlag) check() error {
	if !slices.Contains(o.allowed, o.output) {
		last := len(o.allowed) - 1
		return usageError{fmt.Errorf("--output=%s: want %s or %s", o.output, strings.Join(o.allowed[:last], ", "), o.allowed[last])}
	}
	return nil
}

// print writes an answer as JSON or YAML, or calls text to write it as text.
func (o *outputFlag) print(w io.Writer, answer any, text func() error) error {
	switch o.output {
	case "json":
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(answer)
	case "yaml":
		return printYAML(w, answer)
	default:
		return text()
	}
}

// printYAML writes what JSON has of an answer as YAML, the fields in the same order.
func printYAML(w io.Writer, answer any) error {
	made, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	content, err := ordered(made)
	if err != nil {
		return err
	}
	unfolded()
	if made, err = yaml.Marshal(content); err != nil {
		return err
	}
	_, err = io.WriteString(w, escape(string(made), "\n\t"))
	return err
}
