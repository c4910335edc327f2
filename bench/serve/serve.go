// Package serve holds the servers that Tender is compared with, and the control
// plane that it is placed behind. Each runs in a process of its own and is told
// what to do by [net/rpc].
package serve

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/xdstender/tender/bench/certs"
	"github.com/xdstender/tender/bench/content"
)

// ResponseBytes is the size at which a Delta response ends and another one
// follows, as in Tender.
const ResponseBytes = 1 << 20

// Options say how a server serves. The zero value works for each.
type Options struct {
	Kinds []content.Kind
	SotW  bool

	// Workers is how many goroutines send, in the server that is bare grpc-go; 0 is
	// one for each stream.
	Workers int

	// ByName has the server that is bare grpc-go send a client only what it names; else
	// it sends all of a type. Delta only.
	ByName bool

	// TenderOptions says that go-control-plane runs on a gRPC server with Tender's
	// options rather than the default ones.
	TenderOptions bool

	// TLS has the bare gRPC server take mutual TLS only, and Resume has it resume sessions. nil is plaintext.
	TLS    *certs.Set
	Resume bool

	// Probe is the address that Envoys send a health check to once they have a change, for the kind fleet.
	Probe string

	// Groups is how many node groups there are, and Opaque has versions be no hashes, for the kind returning.
	Groups int
	Opaque bool
}

// A backend is one kind of server.
type backend interface {
	// start serves, and returns the address.
	start() (address string, err error)

	// publish lets the clients have a change. Calls do not overlap.
	publish(k content.Kind, s content.Stamp) error
}

// A batch is what a control plane changes at once.
type batch struct {
	changed []content.Stamp

	// swap has it also add a resource whose number is Kind.Count or higher, and remove the one that was added before.
	swap bool
}

// A batcher is a backend that publishes a batch in one response.
type batcher interface {
	publishBatch(k content.Kind, b batch)
}

// A Server is what the driver talks to: a backend, and what it serves.
type Server struct {
	kind    string
	set     *content.Set
	backend backend
}

// New returns a server of a kind: raw, grpc, transport, origin, fleet, returning, gcp-linear or gcp-snapshot.
func New(kind string) *Server { return &Server{kind: kind} }

// Start starts the server; the reply is its address.
func (s *Server) Start(o Options, address *string) (err error) {
	s.set = content.NewSet(o.Kinds)
	switch s.kind {
	case "raw":
		s.backend, err = newRaw(o, s.set)
	case "grpc":
		s.backend, err = newBare(o, s.set)
	case "transport":
		s.backend, err = newDedicated(o, s.set)
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
		err = fmt.Errorf("server %q: not one of raw, grpc, transport, origin, fleet, returning, gcp-linear, gcp-snapshot", s.kind)
	}
	if err != nil {
		return err
	}
	*address, err = s.backend.start()
	return err
}

// Changes says which changes to make: Count of them, one every so often, of one
// resource each: the next one after First, or any one.
type Changes struct {
	TypeURL string
	Count   int
	Every   time.Duration
	First   int
	Random  bool

	// Swap has each change also add a resource that is not counted, and remove the one that was added before. At is
	// how many resources change at once; 0 is one. Only a server of the kind origin does either.
	Swap bool
	At   int
}

// Change makes changes; the reply is their resources' numbers, in order. If it is
// late it makes up for it.
func (s *Server) Change(c Changes, indexes *[]int) error {
	k, ok := s.set.Kind(c.TypeURL)
	if !ok {
		return fmt.Errorf("change %s: there are none", c.TypeURL)
	}
	random := rand.New(rand.NewPCG(1, uint64(c.First)))
	start := time.Now()
	at := max(c.At, 1)
	for i := 0; i < c.Count; i += at {
		time.Sleep(time.Until(start.Add(time.Duration(i/at) * c.Every)))
		b := batch{swap: c.Swap}
		for n := range min(at, c.Count-i) {
			index := (c.First + i + n) % k.Count
			if c.Random {
				index = random.IntN(k.Count)
			}
			b.changed = append(b.changed, s.set.Change(c.TypeURL, index))
			*indexes = append(*indexes, index)
		}
		if err := s.publish(k, b); err != nil {
			return fmt.Errorf("change %s: %w", content.Name(c.TypeURL, b.changed[0].Index), err)
		}
	}
	return nil
}

// publish lets the clients have a batch.
func (s *Server) publish(k content.Kind, b batch) error {
	if o, is := s.backend.(batcher); is {
		o.publishBatch(k, b)
		return nil
	}
	if b.swap || len(b.changed) > 1 {
		return fmt.Errorf("server %s: it changes one resource at a time", s.kind)
	}
	return s.backend.publish(k, b.changed[0])
}

// Latest returns what a client that is in sync has.
func (s *Server) Latest(_ struct{}, latest *map[string][]content.Stamp) error {
	*latest = map[string][]content.Stamp{}
	for _, k := range s.set.Kinds() {
		(*latest)[k.TypeURL] = s.set.Latest(k.TypeURL)
	}
	return nil
}

// A counter is a backend that counts what it is asked for.
type counter interface{ seen() Traffic }

// Traffic returns what a server of the kind origin or returning was asked for and has sent.
func (s *Server) Traffic(_ struct{}, t *Traffic) error {
	c, is := s.backend.(counter)
	if !is {
		return fmt.Errorf("traffic of server %s: only those of the kinds origin and returning count it", s.kind)
	}
	*t = c.seen()
	return nil
}

// version is a type's version, or a nonce, of the usual length.
func version(n int) string { return strconv.Itoa(n) }

// everything returns the responses for a client that has nothing of a type.
func everything(set *content.Set, k content.Kind, sotw bool, n int) (responses [][]byte) {
	if sotw {
		return [][]byte{content.Finish(set.SotW(k), k.TypeURL, version(n), version(n))}
	}
	for _, body := range k.Delta(set.Latest(k.TypeURL), ResponseBytes) {
		responses = append(responses, content.Finish(body, k.TypeURL, version(n), version(n)))
	}
	return responses
}

// update returns the response that tells a client of one change: with SotW, all
// there is.
func update(set *content.Set, k content.Kind, s content.Stamp, sotw bool, n int) []byte {
	if sotw {
		return everything(set, k, true, n)[0]
	}
	return content.Finish(k.AppendDelta(nil, s), k.TypeURL, version(n), version(n))
}
