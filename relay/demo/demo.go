// Package demo runs a control plane, the relay and clients in one process. The control plane serves a small shop that
// keeps changing, and the clients measure how long a change takes to reach them.
//
//	mesh ─▶ origin ══ gRPC ══▶ relay ══ gRPC ══▶ clients
//	          └─ the clock of a change starts here … and stops here, in each
//
// The demo runs the relay and the servers of tender serve, over TCP on loopback. Only the mesh and the clients are
// written for the demo. The clients share connections; real Envoys do not.
//
// The package is not a stable API: programs that embed Tender use package relay.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay"
)

// The bounds of [Options].
const (
	MaxClients = 5000
	MinRate    = 0.1
	MaxRate    = 100
	MinStage   = time.Second
	MaxStage   = time.Minute
)

// Options configure a demo. Out is required; the zero value of every other field is valid.
type Options struct {
	// Clients is the number of clients, up to MaxClients. Zero means 200.
	Clients int

	// Rate is the number of changes of the mesh per second, from MinRate to MaxRate. Zero means 4.
	Rate float64

	// For is how long the mesh changes. Zero means until the context ends; with Rollout, until the rollouts are over.
	For time.Duration

	// Rollout shows how the relay distributes changes in stages, and how it halts a change that the first clients
	// reject. The demo then ends by itself.
	Rollout bool

	// Stage is how long each stage of a rollout lasts, from MinStage to MaxStage. Zero means 4 seconds.
	Stage time.Duration

	// Listen is the address on which the relay accepts clients. Empty means 127.0.0.1:18000. If the port is in use,
	// the relay listens on a free port of the same host.
	Listen string

	// Command is the path of the tender binary in the example commands that the demo prints. Empty means "tender".
	Command string

	// Envoy is the path of an Envoy binary. If it is set, an Envoy connects to the relay and routes requests to the
	// shop.
	Envoy string

	// Version is the version that the relay presents to the origin.
	Version string

	// Out receives the text output. Required.
	Out io.Writer

	// Logger receives the relay's log. Nil discards it.
	Logger *slog.Logger

	// Level is the minimum level of Logger, which tender log-level changes. Nil means that it cannot be changed.
	Level *slog.LevelVar

	network network
}

// withDefaults replaces zero values by defaults and returns an error if an option is out of bounds.
func (o Options) withDefaults() (Options, error) {
	if o.Clients == 0 {
		o.Clients = 200
	}
	if o.Rate == 0 {
		o.Rate = 4
	}
	o.Stage = o.stage()
	if o.Listen == "" {
		o.Listen = "127.0.0.1:18000"
	}
	if o.Command == "" {
		o.Command = "tender"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(o.check(), o.checkRollout())
}

// check returns an error that names the option that is out of bounds.
func (o Options) check() error {
	switch {
	case o.Clients < 1 || o.Clients > MaxClients:
		return fmt.Errorf("demo: Clients = %d, must be from 1 to %d", o.Clients, MaxClients)
	case !(o.Rate >= MinRate && o.Rate <= MaxRate): // NaN is neither
		return fmt.Errorf("demo: Rate = %g, must be from %g to %d", o.Rate, MinRate, MaxRate)
	case o.For < 0:
		return fmt.Errorf("demo: For = %v, must not be negative", o.For)
	}
	return nil
}

// checkRollout checks the options of rollouts as check does.
func (o Options) checkRollout() error {
	switch {
	case o.Stage < MinStage || o.Stage > MaxStage:
		return fmt.Errorf("demo: Stage = %v, must be from %v to %v", o.Stage, MinStage, MaxStage)
	case o.Rollout && o.For > 0 && o.For < o.RolloutLasts():
		return fmt.Errorf("demo: For = %v, must be at least %v with Rollout", o.For, o.RolloutLasts())
	case o.Rollout && o.Envoy != "":
		return errors.New("demo: Rollout and Envoy exclude each other")
	}
	return nil
}

// interval returns the time between two changes of the mesh.
func (o Options) interval() time.Duration { return time.Duration(float64(time.Second) / o.Rate) }

// A demo is one run of [Run]. Its fields do not change after open.
type demo struct {
	Options
	mesh    *mesh
	meter   *meter
	origin  *origin
	relay   *relay.Relay
	envoy   *envoy // nil if there is none
	taken   bool   // the port of Options.Listen was in use
	conns   []*grpc.ClientConn
	clients []*client
	odd     []*oddClient // nil with rollouts
	cohorts *cohorts     // nil without rollouts
}

// Run shows the demo until o.For has passed or ctx ends. It then checks that every client has the resources of the
// origin, and stops everything that it started.
//
// It returns an error if an option is out of bounds, if a client disagrees with the origin, or if a part fails. The
// end of ctx is not an error.
func Run(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	d := &demo{Options: o, meter: newMeter()}
	if err := d.open(); err != nil {
		return errors.Join(err, d.close())
	}
	// Clients end before the relay, and the relay ends before the origin. In another order, the relay would log
	// warnings about closed streams.
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	origin := begin(ctx, d.origin.run, fail)
	relay := begin(ctx, d.relay.Run, fail)
	clients := begin(ctx, d.runClients, fail)
	proxy := begin(ctx, d.runEnvoy, fail)
	err = d.show(ctx)
	proxy.end()
	clients.end()
	relay.end()
	origin.end()
	return errors.Join(err, d.close())
}

// runEnvoy runs the Envoy until ctx ends. Without an Envoy, it returns nil at once.
func (d *demo) runEnvoy(ctx context.Context) error {
	if d.envoy == nil {
		return nil
	}
	return d.envoy.run(ctx, d.relay.Addrs()[0])
}

// close releases what open started: the snapshot directory and the servers of pods.
func (d *demo) close() error {
	err := d.cohorts.close()
	if d.envoy != nil {
		err = errors.Join(err, d.envoy.pods.close())
	}
	return err
}

// A part is a goroutine that runs until end is called.
type part struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// begin starts a part. The part does not end with ctx, so that parts can end in order; the caller must call end. An
// error of the part is passed to fail.
func begin(ctx context.Context, run func(context.Context) error, fail context.CancelCauseFunc) *part {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{cancel: cancel, ended: make(chan struct{})}
	// Awaited by end.
	go func() {
		defer close(p.ended)
		if err := run(ctx); err != nil {
			fail(failure{err})
		}
	}()
	return p
}

// end cancels the part and waits until it has returned.
func (p *part) end() {
	p.cancel()
	<-p.ended
}

// failure is the cause of a context that was cancelled because a part failed.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// failed returns the error of the part that ended ctx. It returns nil if the user ended ctx, or if ctx has not ended.
func failed(ctx context.Context) error {
	if f, ok := errors.AsType[failure](context.Cause(ctx)); ok {
		return f.error
	}
	return nil
}

// open creates the parts and opens their listeners. Only the servers of pods run already. The caller must call close,
// even after an error.
func (d *demo) open() (err error) {
	if d.Envoy != "" {
		if d.envoy, err = openEnvoy(d.Envoy); err != nil {
			return err
		}
	}
	if d.mesh, err = newMesh(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), d.envoy); err != nil {
		return err
	}
	if d.origin, err = openOrigin(d.mesh, d.meter, d.network.origin, d.Logger); err != nil {
		return err
	}
	d.odd = oddClients
	if d.Rollout {
		d.odd = nil // a client that rejects what others accept would halt rollouts
		if d.cohorts, err = openCohorts(d.Stage); err != nil {
			return errors.Join(err, d.origin.listener.Close())
		}
	}
	if err := d.openRelay(); err != nil {
		return errors.Join(err, d.origin.listener.Close())
	}
	address := d.relay.Addrs()[0].String()
	for range min((d.Clients+9)/10, 50) {
		conn, err := grpc.NewClient("passthrough:///"+address,
			append(d.network.dialOptions(d.network.clients), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return err // NewClient fails only on a malformed address
		}
		d.conns = append(d.conns, conn)
	}
	for n := range d.Clients {
		d.clients = append(d.clients, newClient(n+1, n%2 == 1, d.meter))
	}
	d.cohorts.assign(d.clients)
	return nil
}

// openRelay creates a relay that listens on Options.Listen, or on a free port of the same host if that port is in use.
func (d *demo) openRelay() error {
	err := d.newRelay(d.Listen)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	host, _, splitErr := net.SplitHostPort(d.Listen)
	if splitErr != nil {
		return err
	}
	d.taken = true
	return d.newRelay(net.JoinHostPort(host, "0"))
}

// newRelay creates a relay of the origin that listens on an address. It opens the listeners.
func (d *demo) newRelay(listen string) error {
	cfg, err := relay.LoadConfig(append([]string{
		"TENDER_ORIGIN=" + d.origin.listener.Addr().String(),
		"TENDER_LISTEN=" + listen,
		"TENDER_ADMIN_LISTEN=127.0.0.1:0",
		"TENDER_NODE_ID=tender-demo",
		"TENDER_MAX_CONNECTIONS=1000", // within the limit of open files of most hosts
		"TENDER_DRAIN=2s",             // for clients that the user connected; those of the demo have disconnected
	}, d.cohorts.environ()...))
	if err != nil {
		return err
	}
	d.relay, err = relay.New(cfg, relay.Options{
		Logger: slog.New(wanted{d.Logger.Handler()}), Level: d.Level, Version: d.Version,
		Listeners: listeners(d.network.clients), AdminListeners: listeners(d.network.operators),
		DialOptions: d.network.dialOptions(d.network.origin),
	})
	return err
}

// runClients runs the clients and the odd clients until ctx ends, then closes their connections.
func (d *demo) runClients(ctx context.Context) error {
	var running sync.WaitGroup
	for i, c := range d.clients {
		running.Go(func() { c.run(ctx, d.conns[i%len(d.conns)]) }) // awaited below
	}
	for _, o := range d.odd {
		running.Go(func() { // awaited below
			if err := o.run(ctx, d.conns[0]); ctx.Err() == nil {
				d.Logger.Warn("odd client", slog.Any("err", err))
			}
		})
	}
	running.Wait()
	<-ctx.Done()
	for _, conn := range d.conns {
		_ = conn.Close() // no stream is open on it
	}
	return nil
}
