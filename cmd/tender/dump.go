package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
)

// newDumpCommand returns the command tender dump.
func newDumpCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Write a file with diagnostics of a running relay",
		Long: "Dump writes a gzipped tar with diagnostics of a running relay: its configuration, status\n" +
			"and metrics, the clients with the longest lag, pending changes, goroutines, and with\n" +
			"TENDER_DEBUG=on the heap. It contains names and addresses, but no content of resources\n" +
			"and no secrets. Its README.txt describes the files.",
		Example: "  tender dump\n  tender dump -f /tmp/relay.tar.gz\n  tender dump -f - | tar tz",
		Args:    cobra.NoArgs,
	}
	var path string
	flag := addAdminFlag(cmd, h)
	cmd.Flags().StringVarP(&path, "file", "f", "", "`file` to create; it must not exist; - for stdout (default tender-dump-TIME.tar.gz)")
	cli.CompleteFile(cmd, "file")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		content, err := client.ask(cmd.Context(), http.MethodGet, "/api/v1/dump", nil)
		if err != nil {
			return err
		}
		if path == "-" {
			_, err = cmd.OutOrStdout().Write(content)
			return err
		}
		if path == "" {
			path = "tender-dump-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		}
		if err := writeNew(path, content); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s (%s)\n", path, humanize.Bytes(len(content)))
		return err
	})
	return cmd
}

// writeNew creates a file with mode 0600, since a dump contains names and addresses. It fails if path exists.
func writeNew(path string, content []byte) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	_, err = file.Write(content)
	return err
}

// newLogLevelCommand returns the command tender log-level.
func newLogLevelCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log-level LEVEL",
		Short: "Change the log level of a running relay to debug, info, warn or error",
		Long: "Log-level changes the log level of a running relay to debug, info, warn or error. A\n" +
			"restart of the relay resets it to TENDER_LOG_LEVEL.",
		Example: "  tender log-level debug",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: cli.CompleteFirst("debug", "info", "warn", "error"),
	}
	var to admin.LogLevel
	var wholeTier bool
	flag := addAdminFlag(cmd, h)
	addReason(cmd, &to.Why)
	addTier(cmd, &wholeTier)
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		to.Level = args[0]
		addUser(&to.Why)
		w := cmd.OutOrStdout()
		return sendCommand(cmd.Context(), client, wholeTier, "loglevel", to, w, func(changed admin.LogLevelChange) error {
			_, err := fmt.Fprintf(w, "the log level is %s, it was %s\n", cli.Printable(changed.Level), cli.Printable(changed.Before))
			return err
		})
	})
	return cmd
}
