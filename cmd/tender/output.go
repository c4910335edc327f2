package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// An outputFlag is --output, of commands that print what a relay answered for people or
// for programs.
type outputFlag struct{ output string }

// addOutputFlag adds --output to a command.
func addOutputFlag(cmd *cobra.Command) *outputFlag {
	o := new(outputFlag)
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "how to print: text, json")
	return o
}

// check returns an error for an output that there is not.
func (o *outputFlag) check() error {
	if o.output != "text" && o.output != "json" {
		return usageError{fmt.Errorf("--output=%s: want text or json", o.output)}
	}
	return nil
}

// print writes an answer as JSON, or has text write it for people.
func (o *outputFlag) print(w io.Writer, answer any, text func() error) error {
	if o.output != "json" {
		return text()
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(answer)
}
