package main

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
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
			"SIGTERM, ends all streams at once. One more signal ends the process. tender check lists\n" +
			"the variables that configure the relay.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(h.environ())
			if err != nil {
				return err
			}
			level := new(slog.LevelVar)
			level.Set(cfg.LogLevel)
			log := newLogger(cmd.ErrOrStderr(), level, cfg.LogFormat)
			received := make(chan os.Signal, 4)
			signal.Notify(received, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(received)
			return serve(cmd.Context(), cfg, log, level, received)
		},
	}
}

// serve runs the relay until ctx ends or a signal is received, and returns nil after a drain, also after a shortened
// one. Operators can change level while the relay runs; if it is nil, they cannot.
func serve(ctx context.Context, cfg relay.Config, log *slog.Logger, level *slog.LevelVar, received <-chan os.Signal) error {
	limitMemory(ctx, log)
	telemetry.LogMessages(log)
	log.LogAttrs(ctx, slog.LevelInfo, "starting",
		slog.String("origin", strings.Join(cfg.Origin, ",")),
		slog.String("version", version),
	)
	r, err := relay.New(cfg, relay.Options{Logger: log, Level: level, Version: version, Served: debug.FreeOSMemory})
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
	return untilSignalled(ctx, r, log, received)
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
}

// untilSignalled runs r until it returns. The first signal ends the context of r, which starts the drain. SIGINT, or a
// second signal, calls StopNow, which closes all client streams. After that, a further signal makes untilSignalled
// return nil while r still runs; the process then exits, which closes all connections.
func untilSignalled(ctx context.Context, r runner, log *slog.Logger, received <-chan os.Signal) error {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // received below, unless a further signal makes the process exit first
	hurried := false
	for {
		select {
		case err := <-ended:
			return err
		case sig := <-received:
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
