package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v2"
)

// An OutputFlag is the flag --output of commands that print a relay's response as text or for programs.
type OutputFlag struct {
	Output  string
	allowed []string
}

// AddOutputFlag adds --output to a command. forms are the text forms, the first of which is the default; json is always
// added. [OutputFlag.Print] supports yaml too, if it is among them.
func AddOutputFlag(cmd *cobra.Command, forms ...string) *OutputFlag {
	o := &OutputFlag{allowed: append(forms, "json")}
	cmd.Flags().StringVarP(&o.Output, "output", "o", forms[0], "output format: "+strings.Join(o.allowed, ", "))
	CompleteFlag(cmd, "output", o.allowed...)
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.Check() }
	return o
}

// Check returns an error for an output that there is not.
func (o *OutputFlag) Check() error {
	if !slices.Contains(o.allowed, o.Output) {
		last := len(o.allowed) - 1
		return UsageError{Cause: fmt.Errorf("--output=%s: want %s or %s", o.Output, strings.Join(o.allowed[:last], ", "), o.allowed[last])}
	}
	return nil
}

// Print writes an answer as JSON or YAML, or calls text to write it as text.
func (o *OutputFlag) Print(w io.Writer, answer any, text func() error) error {
	switch o.Output {
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
	content, err := Ordered(made)
	if err != nil {
		return err
	}
	UnfoldYAML()
	if made, err = yaml.Marshal(content); err != nil {
		return err
	}
	_, err = io.WriteString(w, Escape(string(made), "\n\t"))
	return err
}
