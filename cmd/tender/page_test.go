package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write deploy/docs/cli.md")

// TestCLIPage verifies that deploy/docs/cli.md describes the commands. With -update it writes the page.
func TestCLIPage(t *testing.T) {
	const name = "../../deploy/docs/cli.md"
	want := cliPage()
	got, err := os.ReadFile(name)
	if *update {
		err = os.WriteFile(name, []byte(want), 0o644)
	} else if string(got) != want {
		t.Errorf("%s differs from the commands; run\n\tgo test ./cmd/tender -run TestCLIPage -update\n(-want +got)\n%s", name, cmp.Diff(want, string(got)))
	}
	if err != nil {
		t.Error(err)
	}
}

// cliPage returns the content of deploy/docs/cli.md.
func cliPage() string {
	var b strings.Builder
	b.WriteString(`# Commands

This page is generated from the commands (` + "`go test ./cmd/tender -run TestCLIPage -update`" + `).

All commands exit with 0 for success, 1 for a failure and 2 for wrong usage. Commands for operators send requests to the
admin address: ` + "`--admin`" + `, or else ` + "`TENDER_ADMIN_LISTEN`" + `. Releases contain manual pages and shell completions.
With ` + "`-o json`" + `, most commands print the responses of the [API](status.md). The output of ` + "`clients`" + `, ` + "`status`" + ` and ` + "`wait`" + `
has [schemas](output.schema.json) of its own.

| Command | Purpose |
| --- | --- |
`)
	root := newRootCommand(thisHost())
	commands := documented(root)
	for _, c := range commands {
		anchor := strings.ReplaceAll(c.CommandPath(), " ", "-")
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), anchor, c.Short)
	}
	for _, c := range commands {
		writeCommand(&b, c)
	}
	return b.String()
}

// documented returns the available subcommands of c and their subcommands, in the order of the help.
func documented(c *cobra.Command) (all []*cobra.Command) {
	for _, below := range c.Commands() {
		if !below.IsAvailableCommand() {
			continue
		}
		all = append(append(all, below), documented(below)...)
	}
	return all
}

// writeCommand writes the section of a command: its description, usage, flags and examples.
func writeCommand(b *strings.Builder, c *cobra.Command) {
	c.InitDefaultHelpFlag()
	fmt.Fprintf(b, "\n## `%s`\n\n", c.CommandPath())
	if text := c.Long; text != "" {
		fmt.Fprintf(b, "```text\n%s\n```\n\n", strings.TrimSpace(text))
	} else {
		fmt.Fprintf(b, "%s.\n\n", c.Short)
	}
	fmt.Fprintf(b, "```text\n%s\n", c.UseLine())
	if flags := c.NonInheritedFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(b, "\nFlags:\n%s", flags)
	}
	if flags := c.InheritedFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(b, "\nInherited flags:\n%s", flags)
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n%s\n", strings.TrimRight(c.Example, "\n"))
	}
	b.WriteString("```\n")
}
