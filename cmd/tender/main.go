// Command tender is an xDS fan-out relay and its tools. The relay keeps one connection to a control plane, caches the
// responses, and serves them to thousands of clients.
//
// Each subcommand has a file of its own. The exit code is 0 on success, 1 after an error, and 2 for invalid arguments.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/cmd/tender/get"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// Set by the linker (see the Makefile).
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

func main() {
	os.Exit(run(thisHost(), os.Args[1:], os.Stdout, os.Stderr))
}

// A host has what commands use of the machine that they run on. Tests replace it.
type host struct {
	environ     func() []string   // as os.Environ, called when a command runs
	dial        dialer            // connects to the admin address of a relay
	dialOptions []grpc.DialOption // added to those of connections to xDS servers
}

// A dialer connects to an address, as [net.Dialer.DialContext].
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// thisHost returns the host of the process.
func thisHost() host { return host{environ: os.Environ, dial: new(net.Dialer).DialContext} }

// run executes the command line and returns the exit code. Commands return their errors: only run prints them.
func run(h host, args []string, stdout, stderr io.Writer) int {
	began := false // cobra has accepted the flags and arguments
	root := newRootCommand(h)
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)

	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	stderr = cmd.ErrOrStderr()
	printError(stderr, err)
	if _, wrong := errors.AsType[cli.UsageError](err); began && !wrong {
		return exitFailure
	}
	_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	return exitUsage
}

// newRootCommand returns the command tender with all subcommands.
func newRootCommand(h host) *cobra.Command {
	root := &cobra.Command{
		Use:           "tender",
		Short:         "An xDS fan-out relay",
		Long:          "Tender keeps one connection to a control plane, caches its resources, and serves them\nto thousands of Envoys and gRPC clients.",
		Version:       versionLine(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(
		newServeCommand(h),
		newCheckCommand(h),
		get.NewCommand(version, getGroups{h}, h.dialOptions...),
		newStatusCommand(h),
		newClientsCommand(h),
		newHistoryCommand(h),
		newDumpCommand(h),
		newLogLevelCommand(h),
		newPendingCommand(h),
		newWaitCommand(h),
		newPassCommand(h),
		newDropCommand(h),
		newFreezeCommand(h),
		newThawCommand(h),
		newGenerationsCommand(h),
		newDiffCommand(h),
		newRollbackCommand(h),
		newRolloutCommand(h),
		newAuditCommand(h),
		newDemoCommand(),
		newVersionCommand(),
	)
	completeRest(root)
	return root
}

// newVersionCommand returns the command tender version.
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, commit and build of this binary",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

// versionLine returns the output of tender version and tender --version, without a newline.
func versionLine() string {
	return fmt.Sprintf("tender %s (commit %s, %s, %s, %s/%s)",
		version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// printError writes err to w, each line with the prefix "tender: ". It quotes a line with unprintable characters,
// because an error may contain text from a peer that would control the terminal.
func printError(w io.Writer, err error) {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) && r != '\t' }
	var text strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(err.Error()), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if strings.ContainsFunc(line, unprintable) {
			line = strconv.Quote(line)
		}
		fmt.Fprintf(&text, "tender: %s\n", line)
	}
	_, _ = io.WriteString(w, text.String())
}

// completeRest disables file completion for all commands and flags that define no completions.
func completeRest(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
}
