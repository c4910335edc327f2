// Package demo shows the relay at work in one process: a control plane with a
// small shop that keeps changing, the relay, and clients that measure how long a
// change takes to reach them.
//
//	mesh ─▶ origin ══ gRPC ══▶ relay ══ gRPC ══▶ clients
//	          └─ the clock of a change starts here … and stops here, in each
//
// The relay and both servers are the ones that tender serve runs, over TCP on
// loopback. Only the mesh and the clients are made for the demo, and the clients
// share connections, as thousands of Envoys would not.
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

// Options shape a demo. But for Out, the zero value of each field works.
type Options struct {
	// Clients is how many there are, up to MaxClients. Zero means 200.
	Clients int

	// Rate is how often the mesh changes, in changes a second, from MinRate to
	// MaxRate. Zero means 4.
	Rate float64

	// For is how long the mesh changes. Zero means until the context ends, or with Rollout as long as that takes.
	For time.Duration

	// Rollout shows how the relay distributes changes in stages, and halts one that the first clients refuse. The demo
	// then ends by itself.
	Rollout bool

	// Stage is how long each stage of a rollout lasts, from MinStage to MaxStage. Zero means 4 seconds.
	Stage time.Duration

	// Listen is the relay's address. Zero means 127.0.0.1:18000. Where that is taken,
	// a free port of the same host is used.
	Listen string

	// Command is how the reader calls tender, for lines to try. Zero means "tender".
	Command string

	// Envoy is the path of an Envoy. If it is set, the Envoy runs below the relay, and the shop answers requests
	// through it.
	Envoy string

	// Version is the version that the relay presents to the origin.
	Version string

	// Out receives the text output. Required.
	Out io.Writer

	// Logger receives the relay's log. Nil discards it.
	Logger *slog.Logger

	// Level is the least level that Logger logs, for tender log-level. Nil means that it cannot be changed.
	Level *slog.LevelVar
}

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

// check names the option that is out of bounds.
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

// A demo is one run.
type demo struct {
	Options
	mesh    *mesh
	meter   *meter
	origin  *origin
	relay   *relay.Relay
	envoy   *envoy // nil if there is none
	taken   bool   // Options.Listen was
	conns   []*grpc.ClientConn
	clients []*client
	odd     []*oddClient
	cohorts *cohorts // nil without rollouts
}

// Run shows the demo until o.For has passed or ctx ends, checks that every client
// agrees with the origin, and ends everything that it started.
//
// Errors: an option out of bounds; a client that does not agree with the
// origin; what kept a part from running. The end of ctx is none.
func Run(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	d := &demo{Options: o, meter: newMeter()}
	if err := d.open(); err != nil {
		return errors.Join(err, d.close())
	}
	// Whatever happens, clients end before the relay and the relay before the origin,
	// so that nothing is cut off that would complain.
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

// runEnvoy runs the Envoy until ctx ends, if there is one.
func (d *demo) runEnvoy(ctx context.Context) error {
	if d.envoy == nil {
		return nil
	}
	return d.envoy.run(ctx, d.relay.Addrs()[0])
}

// close ends what open has started.
func (d *demo) close() error {
	err := d.cohorts.close()
	if d.envoy != nil {
		err = errors.Join(err, d.envoy.pods.close())
	}
	return err
}

// A part runs until end is called.
type part struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// begin runs a part. The end of ctx does not end it, but its failure ends ctx.
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

func (p *part) end() {
	p.cancel()
	<-p.ended
}

// failure is the cause of a context's end that the demo did not want.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// failed returns why ctx ended, or nil if the user ended it.
func failed(ctx context.Context) error {
	if f, ok := errors.AsType[failure](context.Cause(ctx)); ok {
		return f.error
	}
	return nil
}

// open makes the parts; each listens, and nothing runs but the servers of pods.
func (d *demo) open() (err error) {
	if d.Envoy != "" {
		if d.envoy, err = openEnvoy(d.Envoy); err != nil {
			return err
		}
	}
	if d.mesh, err = newMesh(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), d.envoy); err != nil {
		return err
	}
	if d.origin, err = openOrigin(d.mesh, d.meter, d.Logger); err != nil {
		return err
	}
	d.odd = oddClients
	if d.Rollout {
		d.odd = nil // no client is to refuse what another one accepts
		if d.cohorts, err = openCohorts(d.Stage); err != nil {
			return errors.Join(err, d.origin.listener.Close())
		}
	}
	if err := d.openRelay(); err != nil {
		return errors.Join(err, d.origin.listener.Close())
	}
	address := d.relay.Addrs()[0].String()
	for range min((d.Clients+9)/10, 50) {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err // of the form of the address only, which the relay took
		}
		d.conns = append(d.conns, conn)
	}
	for n := range d.Clients {
		d.clients = append(d.clients, newClient(n+1, n%2 == 1, d.meter))
	}
	d.cohorts.assign(d.clients)
	return nil
}

// openRelay makes a relay on the address that was asked for, or another port.
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

func (d *demo) newRelay(listen string) error {
	cfg, err := relay.LoadConfig(append([]string{
		"TENDER_ORIGIN=" + d.origin.listener.Addr().String(),
		"TENDER_LISTEN=" + listen,
		"TENDER_ADMIN_LISTEN=127.0.0.1:0",
		"TENDER_NODE_ID=tender-demo",
		"TENDER_DRAIN=2s", // for guests; the demo's own clients have left by then
	}, d.cohorts.environ()...))
	if err != nil {
		return err
	}
	d.relay, err = relay.New(cfg, relay.Options{Logger: slog.New(wanted{d.Logger.Handler()}), Level: d.Level, Version: d.Version})
	return err
}

// runClients runs the clients until ctx ends.
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
		_ = conn.Close() // nothing is open on it
	}
	return nil
}
