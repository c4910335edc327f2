package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// completeRest turns file completion off for commands and flags without completions of their own.
func completeRest(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
}

// completeFlag has a shell offer these values for a flag of a command.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	register(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeFile has a shell offer files for a flag of a command.
func completeFile(cmd *cobra.Command, flag string) {
	register(cmd, flag, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
}

func register(cmd *cobra.Command, flag string, offered cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offered); err != nil {
		panic(err) // the command has no such flag, or a completion already
	}
}

// completeTypes has a shell offer the short names of types for --type of a command.
func completeTypes(cmd *cobra.Command) {
	completeFlag(cmd, "type", strings.Fields(getTypes)...)
}

// completeFirst returns what has a shell offer these values for the first argument, and
// nothing for those that follow it.
func completeFirst(values ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}
