package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/bench/certs"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
)

// A setup says what is served, and to whom.
type setup struct {
	kinds     []content.Kind
	interests []load.Interest
	sotw      bool
	clients   int
	streams   int      // clients that share a connection; 0 is one
	workers   int      // goroutines that send in the bare gRPC server
	byName    bool     // it sends clients what they name
	environ   []string // more environment for Tender
	lower     int      // Tenders that serve the clients, all behind one more; 0 is one, behind the origin
	buffered  int      // clients that have a small receive buffer: the first ones
	fleet     bool     // the control plane is go-control-plane with what real Envoys need
	groups    int      // node groups, of a control plane that restarts; 0 for another one
	opaque    bool     // its versions are no hashes
	polled    bool     // Tenders take polls
	tls       bool     // clients use mutual TLS
	resume    bool     // the bare gRPC server resumes their sessions
	feature   string   // a client feature that every second client has; empty for none
	sampled   float64  // part of the changes that a Tender traces; 0 for no traces at all
	stages    string   // TENDER_ROLLOUT of a Tender that has snapshots and an operator; empty for neither
}

// A stage is a server with what belongs to it, and the load generator, while they
// run.
type stage struct {
	setup
	servers   process.Group    // whose cost counts
	changer   *process.Process // which makes the changes; often the server
	load      *process.Process
	addresses []string  // which clients use in turn
	polls     string    // where the last Tender takes polls, if the setup has it take some
	probes    []string  // where Tenders have their metrics
	sink      *sink     // of traces, if the setup has some
	arrivals  *arrivals // of Envoys that have a change, if the setup is a fleet
	operator  string    // where a Tender with stages takes commands
	snapshots string    // its directory
	certs     *certs.Set
	keys      string // directory of the Tenders' certificates
	withheld  string // the type that it shows some clients otherwise than the origin has it; empty if there is none
	stderr    *output
	opened    int
	highest   int // resident memory of the servers, in bytes

	listening time.Duration // from the start of the last Tender until it listened
}

// smallBuffer is a receive buffer that a response of S10 does not fit.
const smallBuffer = 4 << 10

// patience is how long anything may take.
const patience = 2 * time.Minute

// raise starts a server of a kind, and a load generator without clients.
func raise(kind, tender string, s setup) (st *stage, err error) {
	st = &stage{setup: s, stderr: &output{}}
	defer func() {
		if err != nil {
			st.strike()
		}
	}()
	if st.load, err = process.StartRole(os.Stderr, "load"); err != nil {
		return nil, err
	}
	kind, tenderOptions := strings.CutSuffix(kind, "+")
	role := kind
	if kind == "tender" {
		role = "origin"
	}
	if s.tls {
		if st.certs, err = certs.New(); err != nil {
			return st, err
		}
	}
	o := serve.Options{Kinds: s.kinds, SotW: s.sotw, Workers: s.workers, ByName: s.byName, TenderOptions: tenderOptions, TLS: st.certs, Resume: s.resume}
	if s.groups > 0 {
		role, o.Groups, o.Opaque = "returning", s.groups, s.opaque
	}
	if s.fleet {
		if st.arrivals, err = newArrivals(); err != nil {
			return st, err
		}
		role, o.Probe = "fleet", st.arrivals.address
	}
	if st.changer, err = process.StartRole(os.Stderr, "serve", role); err != nil {
		return nil, err
	}
	var address string
	if err = st.changer.Call("Start", o, &address); err != nil {
		return st, err
	}
	if kind != "tender" {
		st.servers, st.addresses = process.Group{st.changer}, []string{address}
		return st, nil
	}
	return st, st.startTenders(tender, address)
}

// startTenders starts a Tender before the origin, or a tree of them.
func (st *stage) startTenders(binary, origin string) error {
	upper, err := st.startTender(binary, origin)
	if err != nil || st.lower == 0 {
		st.addresses = []string{upper}
		return err
	}
	for range st.lower {
		address, err := st.startTender(binary, upper)
		if err != nil {
			return err
		}
		st.addresses = append(st.addresses, address)
	}
	return nil
}

// startTender starts a Tender before its origin.
func (st *stage) startTender(binary, origin string) (address string, err error) {
	if address, err = freeAddress(); err != nil {
		return "", err
	}
	probe, err := freeAddress()
	if err != nil {
		return "", err
	}
	st.probes = append(st.probes, probe)
	environ, err := st.tenderEnviron(address, probe, origin)
	if err != nil {
		return "", err
	}
	p, err := process.Start(st.stderr, environ, binary, "serve")
	if err != nil {
		return "", err
	}
	st.servers = append(st.servers, p)
	st.listening, err = untilListening(address)
	return address, err
}

// tenderEnviron returns the variables of a Tender.
func (st *stage) tenderEnviron(address, probe, origin string) (environ []string, err error) {
	environ = append([]string{
		"TENDER_ORIGIN=" + origin, "TENDER_LISTEN=" + address, "TENDER_ADMIN_LISTEN=off", "TENDER_PROBE_LISTEN=" + probe, "TENDER_LOG_LEVEL=warn",
	}, st.environ...)
	if st.polled {
		if st.polls, err = freeAddress(); err != nil {
			return nil, err
		}
		environ = append(environ, "TENDER_REST_LISTEN="+st.polls)
	}
	if st.sampled > 0 {
		if st.sink == nil {
			if st.sink, err = newSink(); err != nil {
				return nil, err
			}
		}
		environ = append(environ, st.sink.environ(st.sampled)...)
	}
	if st.certs != nil {
		more, err := st.secure()
		if err != nil {
			return nil, err
		}
		environ = append(environ, more...)
	}
	if st.stages != "" {
		more, err := st.runInStages()
		if err != nil {
			return nil, err
		}
		environ = append(environ, more...)
	}
	return environ, nil
}

// strike ends all processes.
func (st *stage) strike() {
	for _, p := range append(process.Group{st.load, st.changer}, st.servers...) {
		if p != nil {
			p.Kill()
		}
	}
	if st.sink != nil {
		st.sink.close()
	}
	if st.arrivals != nil {
		st.arrivals.close()
	}
	for _, temporary := range []string{st.snapshots, st.keys} {
		if temporary != "" {
			_ = os.RemoveAll(temporary)
		}
	}
}

// openOf returns the order to start clients, up to n of all.
func (st *stage) openOf(first, n int) load.Open {
	return load.Open{
		Addresses: st.addresses, SotW: st.sotw, Interests: st.interests, ReceiveBuffer: smallBuffer, Buffered: st.buffered,
		First: first, Clients: n - first, All: max(n, st.clients), Streams: st.streams, Feature: st.feature, TLS: st.certs,
	}
}

// open starts clients, up to n of all, and waits until they are in sync. It returns
// how long that took.
func (st *stage) open(n int) (time.Duration, error) {
	start := time.Now()
	if err := st.load.Call("Open", st.openOf(st.opened, n), &struct{}{}); err != nil {
		return 0, err
	}
	st.opened = n
	p, err := st.await(fmt.Sprintf("%d clients in sync", n), func(p load.Progress) bool { return p.Synced == n })
	return time.Unix(0, p.Last).Sub(start), err
}

// join connects n clients more, one after the other, and measures how long the slowest takes to be in sync.
func (st *stage) join(f *figures, n int) error {
	for range n {
		took, err := st.open(st.opened + 1)
		if err != nil {
			return err
		}
		f.join = max(f.join, milliseconds(took))
	}
	return nil
}

// await waits until the load generator has come so far.
func (st *stage) await(what string, reached func(load.Progress) bool) (p load.Progress, err error) {
	return awaitLoad(st.load, what, reached)
}

// awaitLoad is await for any load generator.
func awaitLoad(generator *process.Process, what string, reached func(load.Progress) bool) (p load.Progress, err error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		p = load.Progress{} // what is 0 is not sent
		if err := generator.Call("Progress", struct{}{}, &p); err != nil {
			return p, err
		}
		if reached(p) {
			return p, nil
		}
		if time.Now().After(deadline) {
			return p, fmt.Errorf("wait for %s: not after %v, but %+v", what, patience, p)
		}
	}
}

// change makes changes, and returns how many deliveries they mean.
func (st *stage) change(c serve.Changes) (deliveries int, err error) {
	var audience, indexes []int
	if err := st.load.Call("Audience", c.TypeURL, &audience); err != nil {
		return 0, err
	}
	if err := st.changer.Call("Change", c, &indexes); err != nil {
		return 0, err
	}
	for _, i := range indexes {
		deliveries += audience[i]
	}
	return deliveries, nil
}

// inSync waits until every client has what the server has, but for what is withheld. It is an
// error if that does not happen: a change was lost.
func (st *stage) inSync() error {
	var latest map[string][]content.Stamp
	if err := st.changer.Call("Latest", struct{}{}, &latest); err != nil {
		return err
	}
	delete(latest, st.withheld)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		n := 0
		if err := errors.Join(st.load.Call("Differences", latest, &n), st.load.Call("Progress", struct{}{}, &load.Progress{})); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d deliveries were lost", n)
		}
	}
}

// output keeps what a process says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

// String returns what was said so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// untilListening returns how long it took until address could be connected to.
func untilListening(address string) (time.Duration, error) {
	start := time.Now()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return time.Since(start), conn.Close()
		}
		if time.Since(start) > 10*time.Second {
			return 0, fmt.Errorf("wait until %s listens: %w", address, err)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// said returns what Tender said, for an error.
func (st *stage) said() string {
	if s := st.stderr.String(); s != "" {
		return "\nthe server said:\n" + s[max(0, len(s)-2000):]
	}
	return ""
}
