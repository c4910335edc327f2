package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// CompleteFlag makes shells complete a flag of cmd with these values. It panics if cmd has no such flag, or if the flag
// has completions already.
func CompleteFlag(cmd *cobra.Command, flag string, values ...string) {
	register(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteFile makes shells complete a flag of cmd with file names. It panics as CompleteFlag does.
func CompleteFile(cmd *cobra.Command, flag string) {
	register(cmd, flag, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
}

// register adds a completion function for a flag. It panics if that fails, which is a bug of the command.
func register(cmd *cobra.Command, flag string, offered cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offered); err != nil {
		panic(err) // the command has no such flag, or a completion already
	}
}

// CompleteTypes makes shells complete the flag --type of cmd with the short names in Types.
func CompleteTypes(cmd *cobra.Command) {
	CompleteFlag(cmd, "type", strings.Fields(Types)...)
}

// CompleteFirst returns a function that completes the first argument with these values, and further arguments with
// nothing.
func CompleteFirst(values ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// Types lists the short names of resource types that tender get accepts, separated by spaces, as in its help.
const Types = "lds rds srds vhds cds eds leds sds rtds ecds clusters endpoints listeners routes secrets"
