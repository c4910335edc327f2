package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// completeRest has a shell offer no files where a command says nothing of what it takes:
// most take none.
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
		panic(err) // the command has no such flag, or says this twice
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
