package main

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/telemetry"
)

// newServeCommand returns the command tender serve.
func newServeCommand(h host) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the relay, configured by TENDER_… variables (see tender check)",
		Long: "Serve runs the relay until a signal ends it. SIGTERM drains: streams end without an\n" +
			"error within TENDER_DRAIN, so that clients connect to another relay. SIGINT, or a second\n" +
			"SIGTERM, ends all streams at once. One more signal ends the process. SIGHUP reads the\n" +
			"files of certificates, tokens and rules again. tender check lists the variables that\n" +
			"configure the relay.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := loadChecked(h.environ())
			level := new(slog.LevelVar)
			log, queue := newQueuedLogger(cmd.ErrOrStderr(), level, cfg.LogFormat)
			cmd.SetErr(lastWords{queue}) // also for an error of the configuration
			if err != nil {
				return err
			}
			defer queue.Flush(lastWordsTime)
			level.Set(cfg.LogLevel)
			logLibraries(log, os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL"))
			signals, stop := receiveSignals()
			defer stop()
			opts := relay.Options{
				Logger: log, LogQueue: queue, Level: level, Version: version, ReleaseMemory: releaseMemory,
			}
			return serve(cmd.Context(), cfg, opts, signals)
		},
	}
}

// signals are the received signals.
type signals struct {
	end    <-chan os.Signal // SIGINT and SIGTERM
	reload <-chan os.Signal // SIGHUP; of its own, so that many of them cannot displace a SIGTERM
}

// receiveSignals receives signals until stop is called. SIGPIPE, after the reader of the log has exited, and SIGUSR1 and
// SIGUSR2 have no effect.
func receiveSignals() (s signals, stop func()) {
	end, reload := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	signal.Notify(reload, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2)
	return signals{end, reload}, func() {
		signal.Stop(end)
		signal.Stop(reload)
	}
}

// serve runs the relay until ctx ends or a signal is received, and returns nil after a drain, also after a shortened
// one.
func serve(ctx context.Context, cfg relay.Config, opts relay.Options, s signals) error {
	log := opts.Logger
	limitMemory(ctx, log)
	telemetry.LogMessages(log)
	log.LogAttrs(ctx, slog.LevelInfo, "starting",
		slog.String("origin", strings.Join(cfg.Origin, ",")),
		slog.String("version", version),
	)
	r, err := relay.New(cfg, opts)
	if err != nil {
		return err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "listening",
		slog.String("listen", addresses(r.Addrs())),
		slog.String("tls_listen", cmp.Or(addresses(r.TLSAddrs()), "off")),
		slog.String("rest_listen", cmp.Or(addresses(r.RESTAddrs()), "off")),
		slog.String("admin_listen", cmp.Or(addresses(r.AdminAddrs()), "off")),
		slog.String("probe_listen", cmp.Or(addresses(r.ProbeAddrs()), "off")),
	)
	return untilSignalled(ctx, r, log, s)
}

// addresses formats bound addresses as in TENDER_LISTEN. Port 0 is replaced by the port that the system chose.
func addresses(addrs []net.Addr) string {
	var names []string
	for _, a := range addrs {
		name := a.String()
		if a.Network() == "unix" {
			name = "unix:" + name
		}
		names = append(names, name)
	}
	return strings.Join(names, ",")
}

// A runner is the part of [relay.Relay] that untilSignalled calls.
type runner interface {
	Run(ctx context.Context) error
	StopNow()
	Reload()
}

// untilSignalled runs r until it returns. The first signal ends the context of r, which starts the drain. SIGINT, or a
// second signal, calls StopNow, which closes all client streams. After that, a further signal makes untilSignalled
// return nil while r still runs; the process then exits, which closes all connections. SIGHUP calls Reload.
func untilSignalled(ctx context.Context, r runner, log *slog.Logger, s signals) error {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // received below, unless a further signal makes the process exit first
	hurried := false
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				log.Info("drain ended")
			}
			return err
		case <-s.reload:
			r.Reload()
		case sig := <-s.end:
			log := log.With(slog.String("signal", sig.String()))
			switch {
			case hurried:
				log.WarnContext(ctx, "stopping with streams open")
				return nil
			case sig == os.Interrupt || ctx.Err() != nil:
				log.InfoContext(ctx, "ending all streams")
				hurried = true
				r.StopNow()
			default:
				log.InfoContext(ctx, "draining")
			}
			drain()
		}
	}
}

// limitMemory sets the memory limit of the Go runtime to 90 % of the memory limit of the container, unless GOMEMLIMIT
// is set. Without either limit, it logs nothing.
func limitMemory(ctx context.Context, log *slog.Logger) {
	limit, err := memlimit.Set()
	if err != nil {
		log.LogAttrs(ctx, slog.LevelDebug, "no memory limit", slog.Any("err", err))
		return
	}
	if limit < math.MaxInt64 {
		log.LogAttrs(ctx, slog.LevelDebug, "memory limit", slog.Int64("bytes", limit))
	}
}
