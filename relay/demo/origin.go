package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/upstream/files"
)

// An origin is a control plane. It serves the resources of the mesh with the same server that the relay uses for its
// clients.
type origin struct {
	listener net.Listener
	server   *downstream.Server
	grpc     *grpc.Server
	meter    *meter
	changes  chan change   // unbuffered, from submit to run
	stopped  chan struct{} // closed when run returns

	// Owned by run.
	writer *cache.Writer
	local  *files.Local
}

// openOrigin returns an origin that serves the mesh on a listener, or on a free port if that is nil. It listens already;
// run serves.
func openOrigin(m *mesh, meter *meter, listener net.Listener, log *slog.Logger) (*origin, error) {
	view, w := cache.New(cache.Config{})
	server, err := downstream.New(downstream.Config{Views: sole{view}, Identifier: "demo-origin", Logger: log})
	if err != nil {
		return nil, err
	}
	const maxRequestBytes, maxStreams = 16 << 20, 1000
	o := &origin{
		server:  server,
		grpc:    relay.NewGRPCServer(maxRequestBytes, maxStreams),
		meter:   meter,
		changes: make(chan change),
		stopped: make(chan struct{}),
		writer:  w,

		listener: listener,
		local:    files.NewLocal(pending.New(w, nil)),
	}
	server.Register(o.grpc)
	for typeURL, resources := range m.resources {
		u := wire.Update{TypeURL: typeURL, SystemVersion: "0"}
		for _, r := range resources {
			u.Resources = append(u.Resources, r)
		}
		o.local.Update(u)
	}
	if listener != nil {
		return o, nil
	}
	if o.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("open the control plane: %w", err)
	}
	return o, nil
}

// run serves clients and publishes changes until ctx ends. It may be called once.
func (o *origin) run(ctx context.Context) error {
	defer close(o.stopped)
	served := make(chan error, 1)
	// Awaited below.
	go func() { served <- o.grpc.Serve(o.listener) }()
	defer o.grpc.Stop()
	trim := time.NewTicker(10 * time.Second)
	defer trim.Stop()
	for {
		select {
		case c := <-o.changes:
			o.make(c)
		case <-o.local.Demand():
			o.local.Answer()
		case now := <-trim.C:
			o.writer.Trim(now)
			o.meter.trim(now)
		case err := <-served:
			return fmt.Errorf("serve the control plane: %w", err)
		case <-ctx.Done():
			o.server.Drain(0)
			o.grpc.Stop()
			<-served
			return nil
		}
	}
}

// submit passes a change to run. It drops the change if run has returned; the demo then ends as well.
func (o *origin) submit(c change) {
	select {
	case o.changes <- c:
	case <-o.stopped:
	}
}

// make publishes the updates of a change. Unless the change is staged, it counts the change and stamps its contents.
func (o *origin) make(c change) {
	if !c.staged {
		o.meter.changes.Add(1)
	}
	for _, u := range c.updates {
		var contents []content
		for _, r := range u.Resources {
			contents = append(contents, contentOf(u.TypeURL, r.Name, r.Value()))
		}
		if wire.FullState(u.TypeURL) {
			for _, name := range u.Removed { // SotW responses of other types do not remove resources
				contents = append(contents, contentOf(u.TypeURL, name, nil))
			}
		}
		if !c.staged {
			o.meter.stamp(time.Now(), contents...)
		}
		o.local.Update(u)
	}
}

// sole serves all nodes from one view.
type sole struct{ view *cache.View }

// Join implements downstream.Views.
func (s sole) Join(*corepb.Node, downstream.Caller) (downstream.Group, error) {
	return downstream.Group{View: s.view, Key: "all", Leave: func() {}}, nil
}
