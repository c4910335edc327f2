package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// CompleteFlag has a shell offer these values for a flag of a command.
func CompleteFlag(cmd *cobra.Command, flag string, values ...string) {
	register(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteFile has a shell offer files for a flag of a command.
func CompleteFile(cmd *cobra.Command, flag string) {
	register(cmd, flag, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
}

func register(cmd *cobra.Command, flag string, offered cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offered); err != nil {
		panic(err) // the command has no such flag, or a completion already
	}
}

// CompleteTypes has a shell offer the short names of types for --type of a command.
func CompleteTypes(cmd *cobra.Command) {
	CompleteFlag(cmd, "type", strings.Fields(Types)...)
}

// CompleteFirst returns what has a shell offer these values for the first argument, and
// nothing for those that follow it.
func CompleteFirst(values ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// Types are the short names that tender get takes, as its help lists them.
const Types = "lds rds srds vhds cds eds leds sds rtds ecds clusters endpoints listeners routes secrets"
