// Package serve contains the servers that Tender is compared with, and the control
// planes that it connects to. Each runs in a separate process, which the driver
// controls with [net/rpc].
package serve

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/xdstender/tender/bench/certs"
	"github.com/xdstender/tender/bench/content"
)

// ResponseBytes is the size in bytes above which resources are divided into several
// Delta responses, as in Tender.
const ResponseBytes = 1 << 20

// Options are the options of all kinds of server. The zero value is valid for raw, grpc and origin.
type Options struct {
	Kinds []content.Kind
	SotW  bool

	// Workers is the number of goroutines that send, for the kind grpc; 0 means one
	// per stream.
	Workers int

	// ByName makes the kind grpc send only the names that a client subscribes to. Otherwise
	// it sends all resources of a type. Delta only.
	ByName bool

	// TenderOptions makes the kinds gcp-linear and gcp-snapshot use the options of Tender's
	// gRPC server instead of the default ones.
	TenderOptions bool

	// TLS makes the kind grpc require mutual TLS; nil means plaintext. Resume enables session
	// resumption.
	TLS    *certs.Set
	Resume bool

	// Probe is the address to which Envoys send a health check once they have applied a change, for the kind fleet.
	Probe string

	// Groups is the number of node groups, and Opaque makes versions not be hashes, for the kind returning.
	Groups int
	Opaque bool
}

// A backend is one kind of server.
type backend interface {
	// start starts serving until the process ends, and returns the address.
	start() (address string, err error)

	// publish sends changes to the subscribed clients. Calls do not overlap.
	publish(k content.Kind, b batch) error
}

// A batch is a set of changes that a backend publishes at once.
type batch struct {
	changed []content.Stamp

	// swap also adds a resource with an index of Kind.Count or higher, and removes the one that the previous swap
	// added. Only the kind origin supports it.
	swap bool
}

// each calls publish for each change, for a backend that sends each change in a response of its own.
func (b batch) each(publish func(content.Stamp) error) error {
	if b.swap {
		return errors.New("only the kind origin adds and removes resources")
	}
	for _, s := range b.changed {
		if err := publish(s); err != nil {
			return err
		}
	}
	return nil
}

// A Server is a backend with its resources. The driver calls its methods with [net/rpc].
type Server struct {
	kind    string
	set     *content.Set
	backend backend
}

// New returns a server of a kind: raw, grpc, origin, fleet, returning, gcp-linear or gcp-snapshot.
func New(kind string) *Server { return &Server{kind: kind} }

// Start starts the server and stores its address. It must be called first, and once.
func (s *Server) Start(o Options, address *string) (err error) {
	s.set = content.NewSet(o.Kinds)
	switch s.kind {
	case "raw":
		s.backend, err = newRaw(o, s.set)
	case "grpc":
		s.backend, err = newBare(o, s.set)
	case "origin":
		s.backend = newOrigin(s.set)
	case "fleet":
		s.backend = newFleet(o)
	case "returning":
		s.backend, err = newReturning(o, s.set)
	case "gcp-linear":
		s.backend, err = newLinear(o, s.set)
	case "gcp-snapshot":
		s.backend, err = newSnapshot(o, s.set)
	default:
		err = fmt.Errorf("server %q: not one of raw, grpc, origin, fleet, returning, gcp-linear, gcp-snapshot", s.kind)
	}
	if err != nil {
		return err
	}
	*address, err = s.backend.start()
	return err
}

// Changes describes a series of Count changes, one every Every, of one resource each.
// The resources follow one another from First, or are random.
type Changes struct {
	TypeURL string
	Count   int
	Every   time.Duration
	First   int
	Random  bool

	// Swap makes each change also add an uncounted resource and remove the previously added one. Only the kind origin
	// supports it.
	Swap bool

	// At is the number of resources that change at once, every Every; 0 means 1. With Mixed, a random number from 1 to
	// At changes at once, at the same rate of changes.
	At    int
	Mixed bool
}

// Change makes changes and stores the indexes of the changed resources, in order. After a
// late change the next ones follow without a pause, so that the average rate holds.
func (s *Server) Change(c Changes, indexes *[]int) error {
	k, ok := s.set.Kind(c.TypeURL)
	if !ok {
		return fmt.Errorf("change %s: there are none", c.TypeURL)
	}
	random := rand.New(rand.NewPCG(1, uint64(c.First)))
	start := time.Now()
	at := max(c.At, 1)
	for i, size := 0, at; i < c.Count; i += size {
		time.Sleep(time.Until(start.Add(time.Duration(i) * c.Every / time.Duration(at))))
		if c.Mixed {
			size = 1 + random.IntN(at)
		}
		b := batch{swap: c.Swap}
		for n := range min(size, c.Count-i) {
			index := (c.First + i + n) % k.Count
			if c.Random {
				index = random.IntN(k.Count)
			}
			b.changed = append(b.changed, s.set.Change(c.TypeURL, index))
			*indexes = append(*indexes, index)
		}
		if err := s.backend.publish(k, b); err != nil {
			return fmt.Errorf("change %s: %w", content.Name(c.TypeURL, b.changed[0].Index), err)
		}
	}
	return nil
}

// Latest stores the latest stamps of all resources, by type URL. A client in sync has received all of them.
func (s *Server) Latest(_ struct{}, latest *map[string][]content.Stamp) error {
	*latest = map[string][]content.Stamp{}
	for _, k := range s.set.Kinds() {
		(*latest)[k.TypeURL] = s.set.Latest(k.TypeURL)
	}
	return nil
}

// A counter is a backend that counts its traffic.
type counter interface{ seen() Traffic }

// Traffic stores the traffic of the server. Errors: its kind is neither origin nor returning.
func (s *Server) Traffic(_ struct{}, t *Traffic) error {
	c, is := s.backend.(counter)
	if !is {
		return fmt.Errorf("traffic of server %s: only those of the kinds origin and returning count it", s.kind)
	}
	*t = c.seen()
	return nil
}

// version returns a version or a nonce for a response.
func version(n int) string { return strconv.Itoa(n) }

// everything returns the responses with all resources of a type, for a client without state. n is the version.
func everything(set *content.Set, k content.Kind, sotw bool, n int) (responses [][]byte) {
	if sotw {
		return [][]byte{content.Finish(set.SotW(k), k.TypeURL, version(n), version(n))}
	}
	for _, body := range k.Delta(set.Latest(k.TypeURL), ResponseBytes) {
		responses = append(responses, content.Finish(body, k.TypeURL, version(n), version(n)))
	}
	return responses
}

// update returns the response for one change. A SotW response contains all resources
// of the type.
func update(set *content.Set, k content.Kind, s content.Stamp, sotw bool, n int) []byte {
	if sotw {
		return everything(set, k, true, n)[0]
	}
	return content.Finish(k.AppendDelta(nil, s), k.TypeURL, version(n), version(n))
}
