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

// An OutputFlag is the flag --output of a command that prints a response of a relay as text, JSON or YAML.
type OutputFlag struct {
	Output  string   // the value of the flag
	allowed []string // its valid values
}

// AddOutputFlag adds --output to a command, and sets cmd.PreRunE to validate it. forms are the valid values besides
// json, with the default first. [OutputFlag.Print] writes YAML for yaml, and calls its text function for all other
// forms.
func AddOutputFlag(cmd *cobra.Command, forms ...string) *OutputFlag {
	o := &OutputFlag{allowed: append(forms, "json")}
	cmd.Flags().StringVarP(&o.Output, "output", "o", forms[0], "output format: "+strings.Join(o.allowed, ", "))
	CompleteFlag(cmd, "output", o.allowed...)
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.Check() }
	return o
}

// Check returns a [UsageError] if the value of the flag is not valid.
func (o *OutputFlag) Check() error {
	if !slices.Contains(o.allowed, o.Output) {
		last := len(o.allowed) - 1
		return UsageError{Cause: fmt.Errorf("--output=%s: want %s or %s", o.Output, strings.Join(o.allowed[:last], ", "), o.allowed[last])}
	}
	return nil
}

// Print writes answer as JSON or YAML to w, or calls text, which writes it in the selected text form.
func (o *OutputFlag) Print(w io.Writer, answer any, text func() error) error {
	switch o.Output {
	case "json":
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false)
		return out.Encode(answer)
	case "yaml":
		return printYAML(w, answer)
	default:
		return text()
	}
}

// printYAML writes answer as YAML, with the field names and the order of its JSON. It escapes unprintable characters.
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
