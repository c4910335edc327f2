package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// TestCompletion verifies the completions of the last word of a line.
func TestCompletion(t *testing.T) {
	const files, nothing = cobra.ShellCompDirectiveDefault, cobra.ShellCompDirectiveNoFileComp
	tests := []struct {
		line      string
		want      string
		directive cobra.ShellCompDirective
	}{
		{"sta", "status", nothing},
		{"completion f", "fish", nothing},
		{"get ", cli.Types, nothing},
		{"get cds ", "", nothing},
		{"get -o ", "yaml json name wide", nothing},
		{"get --tls-ca ", "", files},
		{"history ", cli.Types, nothing},
		{"history cds web --output=", "text json", nothing},
		{"status -o ", "table wide yaml json", nothing},
		{"status --type ", cli.Types, nothing},
		{"status --admin ", "", nothing},
		{"status --cert ", "", files},
		{"audit --type ", cli.Types, nothing},
		{"pass --type ", cli.Types, nothing},
		{"pending ", strings.Join(admin.PendingReasons, " "), nothing},
		{"drop ", strings.Join(admin.DecidableReasons(), " "), nothing},
		{"drop --type=", cli.Types, nothing},
		{"rollout ", "abort diff promote resume status undo", nothing},
		{"rollout diff ", cli.Types, nothing},
		{"rollout diff rds ", "", nothing},
		{"rollout status -o ", "text yaml json", nothing},
		{"log-level ", "debug info warn error", nothing},
		{"check --node ", "", files},
		{"dump -f ", "", files},
		{"serve ", "", nothing},
	}
	for _, tt := range tests {
		code, stdout, stderr := execute(append([]string{"__complete"}, strings.Split(tt.line, " ")...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		var offered []string
		for _, line := range lines[:len(lines)-1] {
			value, _, _ := strings.Cut(line, "\t") // a description follows
			offered = append(offered, value)
		}
		directive := lines[len(lines)-1]
		if got := strings.Join(offered, " "); code != exitOK || got != tt.want || directive != fmt.Sprintf(":%d", tt.directive) {
			t.Errorf("tender %s<TAB>: code %d, %q and %s, want %q and :%d; %s", tt.line, code, got, directive, tt.want, tt.directive, stderr)
		}
	}
}
