package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
)

// newDumpCommand returns tender dump.
func newDumpCommand(environ func() []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Write a file with all that helps to understand a running relay from afar",
		Long: "Dump writes a gzipped tar of what a running relay tells operators: its configuration,\n" +
			"status and metrics, the clients that are furthest behind, what is held back, and its\n" +
			"goroutines; with TENDER_DEBUG=on its heap too. README.txt in it says what is in it:\n" +
			"names and addresses are, the contents of resources and secrets are not.",
		Example: "  tender dump\n  tender dump -f /tmp/relay.tar.gz\n  tender dump -f - | tar tz",
		Args:    cobra.NoArgs,
	}
	var path string
	flag := addAdminFlag(cmd, environ)
	cmd.Flags().StringVarP(&path, "file", "f", "", "the `file`, which must not exist; - for stdout (default tender-dump-TIME.tar.gz)")
	completeFile(cmd, "file")
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

// writeNew writes a file that only its owner may read, and that did not exist.
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

// newLogLevelCommand returns tender log-level.
func newLogLevelCommand(environ func() []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log-level LEVEL",
		Short: "Change the least level that a running relay logs: debug, info, warn or error",
		Long: "Log-level changes the least level that a running relay logs, to debug, info, warn or\n" +
			"error, until it is changed again: after a restart it is that of TENDER_LOG_LEVEL.",
		Example: "  tender log-level debug",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: completeFirst("debug", "info", "warn", "error"),
	}
	flag := addAdminFlag(cmd, environ)
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		var changed admin.LogLevelChange
		if err := client.command(cmd.Context(), "loglevel", admin.LogLevel{Level: args[0]}, &changed); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "the log level is %s, it was %s\n", printable(changed.Level), printable(changed.Before))
		return err
	})
	return cmd
}
