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

	"github.com/xdstender/tender/relay/demo"
)

// newDemoCommand returns tender demo.
func newDemoCommand() *cobra.Command {
	o := demo.Options{Version: version}
	envoy := false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the relay at work: a control plane, the relay and 200 clients in one process",
		Long: "Demo runs a control plane with a small shop that keeps changing, the relay, and\n" +
			"clients below it, half of them SotW, half Delta. Each second it prints how many\n" +
			"changes reached how many clients, and how long that took: from the moment of the\n" +
			"change at the control plane until a client has it.\n\n" +
			"The relay listens on 127.0.0.1:18000, or where that is taken on a free port, and\n" +
			"takes guests: tender get, or an Envoy. With --envoy it starts the Envoy that the\n" +
			"variable ENVOY names, or that is on the PATH, and prints a URL that it serves.\n\n" +
			"With --rollout, the relay distributes changes in stages (TENDER_ROLLOUT): a good change\n" +
			"passes through three stages, one that the first clients refuse is halted and rolled back,\n" +
			"and its fix passes, while endpoints go on changing.\n\n" +
			"In the end all clients are compared with\n" +
			"the control plane; the exit code is 1 if one of them differs.",
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
	f.IntVar(&o.Clients, "clients", 200, "how many clients there are, from 1 to 5000")
	f.Float64Var(&o.Rate, "rate", 4, "changes a second, from 0.1 to 100")
	f.DurationVar(&o.For, "for", 0, "how long to run (default until Ctrl-C)")
	f.BoolVar(&envoy, "envoy", false, "also start an Envoy, and serve the shop through it")
	f.BoolVar(&o.Rollout, "rollout", false, "show how changes reach clients in stages, and how a bad one is halted; ends by itself")
	f.DurationVar(&o.Stage, "stage", 4*time.Second, "with --rollout, how long each of the three stages lasts, from 1s to 1m")
	return cmd
}

// findEnvoy returns the path of the Envoy that is installed.
func findEnvoy() (string, error) {
	name := os.Getenv("ENVOY")
	if name == "" {
		name = "envoy"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", usageError{fmt.Errorf("--envoy: no Envoy: %w; install one, or set ENVOY to its path", err)}
	}
	return path, nil
}

// checkDemo names the flag that is wrong.
func checkDemo(o demo.Options, forever, envoy bool) error {
	switch {
	case o.Clients < 1 || o.Clients > demo.MaxClients:
		return usageError{fmt.Errorf("--clients=%d: must be from 1 to %d", o.Clients, demo.MaxClients)}
	case !(o.Rate >= demo.MinRate && o.Rate <= demo.MaxRate): // NaN is neither
		return usageError{fmt.Errorf("--rate=%g: must be from %g to %d changes a second", o.Rate, demo.MinRate, demo.MaxRate)}
	case o.For <= 0 && !forever:
		return usageError{fmt.Errorf("--for=%v: must be more than 0; without the flag, the demo runs until Ctrl-C", o.For)}
	default:
		return checkDemoRollout(o, envoy)
	}
}

// checkDemoRollout names the flag that is wrong with --rollout.
func checkDemoRollout(o demo.Options, envoy bool) error {
	switch {
	case o.Stage < demo.MinStage || o.Stage > demo.MaxStage:
		return usageError{fmt.Errorf("--stage=%v: must be from %v to %v", o.Stage, demo.MinStage, demo.MaxStage)}
	case o.Rollout && o.For > 0 && o.For < o.RolloutLasts():
		return usageError{fmt.Errorf("--for=%v: --rollout needs at least %v; without --for, it ends by itself", o.For, o.RolloutLasts())}
	case o.Rollout && envoy:
		return usageError{errors.New("--envoy: not together with --rollout")}
	}
	return nil
}

// invocation returns how the reader calls this command.
func invocation(path string) string {
	switch {
	case strings.Contains(path, "go-build"):
		return "go run ./cmd/tender" // which builds somewhere in Go's cache
	case strings.Contains(path, "/"):
		return path
	default:
		return "tender"
	}
}
