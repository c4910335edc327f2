package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/demo"
)

// newDemoCommand returns the command tender demo.
func newDemoCommand() *cobra.Command {
	o := demo.Options{Version: version}
	envoy := false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a control plane, the relay and 200 clients in one process",
		Long: "Demo runs a control plane with a small shop that keeps changing, the relay, and its\n" +
			"clients: half SotW, half Delta. Each second it prints the number of changes, the number\n" +
			"of clients that they reached, and the time from a change at the control plane to its\n" +
			"receipt by a client.\n\n" +
			"The relay listens on 127.0.0.1:18000, or on a free port if that one is in use. Further\n" +
			"clients may connect: tender get, or an Envoy. With --envoy it starts the Envoy in the\n" +
			"variable ENVOY, or else on the PATH, and prints a URL that it serves.\n\n" +
			"With --rollout, the relay distributes changes in stages (TENDER_ROLLOUT). A good change\n" +
			"passes through three stages. A change that the first clients reject is halted and rolled\n" +
			"back, and its fix passes. Endpoints continue to change meanwhile.\n\n" +
			"At the end, demo compares all clients with the control plane. The exit code is 1 if one\n" +
			"of them differs.",
		Example: "  tender demo\n" +
			"  tender demo --envoy\n" +
			"  tender demo --for 10s\n" +
			"  tender demo --clients 1000 --rate 20\n" +
			"  tender demo --rollout",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			o.Command = invocation(os.Args[0])
			o.Level = new(slog.LevelVar)
			o.Level.Set(slog.LevelWarn)
			o.Logger = newLogger(cmd.ErrOrStderr(), o.Level, "text")
			if err := checkDemo(o, !cmd.Flags().Changed("for"), envoy); err != nil {
				return err
			}
			if envoy {
				var err error
				if o.Envoy, err = findEnvoy(); err != nil {
					return err
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends the process at once
			return demo.Run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.Clients, "clients", 200, "number of clients, from 1 to 5000")
	f.Float64Var(&o.Rate, "rate", 4, "changes per second, from 0.1 to 100")
	f.DurationVar(&o.For, "for", 0, "duration of the demo (default until Ctrl-C)")
	f.BoolVar(&envoy, "envoy", false, "also start an Envoy, and serve the shop through it")
	f.BoolVar(&o.Rollout, "rollout", false, "distribute changes in stages, halt a bad one, and end")
	f.DurationVar(&o.Stage, "stage", 4*time.Second, "with --rollout, duration of each of the three stages, from 1s to 1m")
	return cmd
}

// findEnvoy returns the path of the Envoy binary: the variable ENVOY, or else envoy on the PATH.
func findEnvoy() (string, error) {
	name := os.Getenv("ENVOY")
	if name == "" {
		name = "envoy"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", cli.UsageError{Cause: fmt.Errorf("--envoy: no Envoy: %w; install one, or set ENVOY to its path", err)}
	}
	return path, nil
}

// checkDemo returns a usage error for an invalid flag. forever means that --for is not set.
func checkDemo(o demo.Options, forever, envoy bool) error {
	switch {
	case o.Clients < 1 || o.Clients > demo.MaxClients:
		return cli.UsageError{Cause: fmt.Errorf("--clients=%d: must be from 1 to %d", o.Clients, demo.MaxClients)}
	case !(o.Rate >= demo.MinRate && o.Rate <= demo.MaxRate): // negated, so that NaN is refused
		return cli.UsageError{Cause: fmt.Errorf("--rate=%g: must be from %g to %d changes a second", o.Rate, demo.MinRate, demo.MaxRate)}
	case o.For <= 0 && !forever:
		return cli.UsageError{Cause: fmt.Errorf("--for=%v: must be more than 0; without the flag, the demo runs until Ctrl-C", o.For)}
	default:
		return checkDemoRollout(o, envoy)
	}
}

// checkDemoRollout returns a usage error for an invalid --stage, or a flag that --rollout does not allow.
func checkDemoRollout(o demo.Options, envoy bool) error {
	switch {
	case o.Stage < demo.MinStage || o.Stage > demo.MaxStage:
		return cli.UsageError{Cause: fmt.Errorf("--stage=%v: must be from %v to %v", o.Stage, demo.MinStage, demo.MaxStage)}
	case o.Rollout && o.For > 0 && o.For < o.RolloutLasts():
		return cli.UsageError{Cause: fmt.Errorf("--for=%v: --rollout needs at least %v; without --for, it ends by itself", o.For, o.RolloutLasts())}
	case o.Rollout && envoy:
		return cli.UsageError{Cause: errors.New("--envoy: not together with --rollout")}
	}
	return nil
}

// invocation returns the command line with which the user started this binary, for the commands that demo prints.
func invocation(path string) string {
	switch {
	case strings.Contains(path, "go-build"):
		return "go run ./cmd/tender" // go run starts a binary in a temporary directory or the build cache
	case strings.Contains(path, "/"):
		return path
	default:
		return "tender"
	}
}
