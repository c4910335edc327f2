package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/bench/certs"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A setup describes the resources that are served, the servers and the clients.
type setup struct {
	kinds     []content.Kind
	interests []load.Interest
	sotw      bool
	clients   int
	streams   int      // clients per connection; 0 means 1
	workers   int      // goroutines that send in the bare gRPC server; 0 means one per stream
	byName    bool     // the bare gRPC server sends only the names that a client subscribes to
	environ   []string // additional environment variables of Tender
	lower     int      // Tenders that serve the clients, behind one upper Tender; 0 means a single Tender
	buffered  int      // number of clients, counted from the first, with a small receive buffer
	fleet     bool     // the control plane is go-control-plane with complete configuration for real Envoys
	groups    int      // node groups of a control plane that can restart; 0 selects another control plane
	opaque    bool     // resource versions of that control plane are not hashes
	polled    bool     // Tenders listen for REST polls
	tls       bool     // clients use mutual TLS
	gzip      bool     // clients accept compressed responses
	resume    bool     // the server of the kind grpc resumes TLS sessions
	feature   string   // client feature of every second client; empty for none
	profiled  bool     // Tender has profiles on its admin address
	sampled   float64  // fraction of the changes that Tender traces; 0 disables tracing
	stages    string   // TENDER_ROLLOUT; also enables snapshots and the admin listener. Empty enables none of them
}

// ads returns the setup with TENDER_TRANSPORT=ads.
func (s setup) ads() setup {
	s.environ = append(slices.Clone(s.environ), "TENDER_TRANSPORT=ads")
	return s
}

// A stage holds the running processes of a row: the servers, the control plane and the
// load generator.
type stage struct {
	setup
	servers   process.Group    // whose cost is measured
	changer   *process.Process // makes the changes; the measured server itself unless that is a Tender
	load      *process.Process
	addresses []string  // of the servers; clients use them in turn
	polls     string    // REST address of the last Tender; empty unless the setup is polled
	probes    []string  // addresses of the Tenders' metrics
	sink      *sink     // receives traces; nil unless the setup has some
	arrivals  *arrivals // records the changes that Envoys apply; nil unless the setup is a fleet
	operator  string    // admin address of a Tender with stages or profiles
	snapshots string    // snapshot directory of a Tender with stages
	certs     *certs.Set
	keys      string   // directory of the Tenders' certificates
	reserved  []func() // release the ports of the Tenders
	withheld  string   // type URL with an open rollout, in which clients differ from the origin; empty for none
	stderr    *output
	opened    int // clients started so far
	highest   int // peak resident memory of the servers so far, in bytes

	listening time.Duration // from the start of the last Tender until it listened
	changing  time.Duration // duration of the last changes
}

// smallBuffer is a receive buffer in bytes that is smaller than the first response of S10.
const smallBuffer = 4 << 10

// patience is the timeout of each wait.
const patience = 2 * time.Minute

// raise starts a server of a kind, and a load generator without clients. tender is the path of the binary to measure.
// The caller must call strike; raise does so itself if it fails.
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

// startTenders starts one Tender behind the origin, or st.lower Tenders behind one upper Tender.
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

// startTender starts a Tender with the given origin, and waits until it listens.
func (st *stage) startTender(binary, origin string) (address string, err error) {
	if address, err = st.reserve(); err != nil {
		return "", err
	}
	probe, err := st.reserve()
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

// tenderEnviron returns the environment of a Tender. It starts the sink of traces and creates directories as needed.
func (st *stage) tenderEnviron(address, probe, origin string) (environ []string, err error) {
	environ = append([]string{
		"TENDER_ORIGIN=" + origin, "TENDER_LISTEN=" + address, "TENDER_ADMIN_LISTEN=off", "TENDER_PROBE_LISTEN=" + probe, "TENDER_LOG_LEVEL=warn",
	}, st.environ...)
	if st.polled {
		if st.polls, err = st.reserve(); err != nil {
			return nil, err
		}
		environ = append(environ, "TENDER_REST_LISTEN="+st.polls)
	}
	if st.profiled {
		if st.operator, err = st.reserve(); err != nil {
			return nil, err
		}
		environ = append(environ, "TENDER_ADMIN_LISTEN="+st.operator, "TENDER_DEBUG=on")
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

// strike kills all processes, closes the servers of the driver and removes temporary directories.
func (st *stage) strike() {
	for _, p := range append(process.Group{st.load, st.changer}, st.servers...) {
		if p != nil {
			p.Kill()
		}
	}
	for _, release := range st.reserved {
		release()
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

// openOf returns the arguments that start the clients with numbers from first to n-1.
func (st *stage) openOf(first, n int) load.Open {
	return load.Open{
		Addresses: st.addresses, SotW: st.sotw, Interests: st.interests, ReceiveBuffer: smallBuffer, Buffered: st.buffered,
		First: first, Clients: n - first, All: max(n, st.clients), Streams: st.streams, Feature: st.feature, Gzip: st.gzip, TLS: st.certs,
	}
}

// open starts clients until n are started in total, waits until all are in sync, and
// returns the time that this took.
func (st *stage) open(n int) (time.Duration, error) {
	start := time.Now()
	if err := st.load.Call("Open", st.openOf(st.opened, n), &struct{}{}); err != nil {
		return 0, err
	}
	st.opened = n
	p, err := st.await(fmt.Sprintf("%d clients in sync", n), func(p load.Progress) bool { return p.Synced == n })
	return time.Unix(0, p.Last).Sub(start), err
}

// join connects n further clients, one after the other, and records the median and the longest time until one is in sync.
func (st *stage) join(f *figures, n int) error {
	var all []float64
	for range n {
		took, err := st.open(st.opened + 1)
		if err != nil {
			return err
		}
		all = append(all, milliseconds(took))
	}
	f.joined, f.join = median(all), slices.Max(all)
	return nil
}

// await polls the progress of the load generator until reached returns true. what describes that state in the error.
func (st *stage) await(what string, reached func(load.Progress) bool) (p load.Progress, err error) {
	return awaitLoad(st.load, what, reached)
}

// awaitLoad is await for a given load generator.
func awaitLoad(generator *process.Process, what string, reached func(load.Progress) bool) (p load.Progress, err error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		p = load.Progress{} // gob omits zero fields, so the old values would remain
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

// change makes changes, and returns the number of deliveries to clients that they cause.
func (st *stage) change(c serve.Changes) (deliveries int, err error) {
	var audience, indexes []int
	if err := st.load.Call("Audience", c.TypeURL, &audience); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := st.changer.Call("Change", c, &indexes); err != nil {
		return 0, err
	}
	st.changing = time.Since(start)
	for _, i := range indexes {
		deliveries += audience[i]
	}
	return deliveries, nil
}

// inSync waits until every client has received the latest change of each resource, except for the
// withheld type. A timeout means that deliveries were lost.
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

// output collects the standard error of a process. It is safe for concurrent use.
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

// String returns everything that was written so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// reserve returns a loopback address on which a Tender can listen. Until strike, no other process gets its port.
func (st *stage) reserve() (string, error) {
	address, release, err := proxy.Reserve()
	if err != nil {
		return "", fmt.Errorf("reserve a port: %w", err)
	}
	st.reserved = append(st.reserved, release)
	return address, nil
}

// untilListening waits until a connection to address succeeds, and returns the time that this took.
func untilListening(address string) (time.Duration, error) {
	start := time.Now()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return time.Since(start), conn.Close()
		}
		if time.Since(start) > patience {
			return 0, fmt.Errorf("wait until %s listens: %w", address, err)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// said returns the end of the servers' standard error, to append to an error; empty if nothing was written.
func (st *stage) said() string {
	if s := st.stderr.String(); s != "" {
		return "\nthe server said:\n" + s[max(0, len(s)-2000):]
	}
	return ""
}
