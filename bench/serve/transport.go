package serve

import (
	"fmt"
	"net"
	"sync"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/transport"
)

// dedicated is the counterpart of bare on the experimental package transport. Each change is encoded once, and the
// goroutine that publishes it writes to all connections.
type dedicated struct {
	set    *content.Set
	sotw   bool
	server *transport.Server

	// Guarded by mu, so that the first response of a stream and the later changes keep their order.
	mu      sync.Mutex
	streams map[string]map[*transport.Conn][]*transport.Stream // by type
	serial  int
	first   map[string][][]byte // by type: the responses for a new client; nil after a change
	last    map[string][]byte   // by type: the latest change
}

func newDedicated(o Options, set *content.Set) (*dedicated, error) {
	d := &dedicated{
		set: set, sotw: o.SotW, streams: map[string]map[*transport.Conn][]*transport.Stream{},
		first: map[string][][]byte{}, last: map[string][]byte{},
	}
	if o.TLS == nil {
		d.server = transport.New(d, transport.DefaultLimits(), nil)
		return d, nil
	}
	config, err := o.TLS.Server(o.Resume)
	if err != nil {
		return nil, err
	}
	d.server = transport.New(d, transport.DefaultLimits(), config)
	return d, nil
}

// start implements backend.
func (d *dedicated) start() (string, error) {
	for _, k := range d.set.Kinds() {
		d.first[k.TypeURL] = everything(d.set, k, d.sotw, d.serial)
		d.streams[k.TypeURL] = map[*transport.Conn][]*transport.Stream{}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	go func() { _ = d.server.Serve(l) }() // until the process ends
	return l.Addr().String(), nil
}

// publish implements backend.
func (d *dedicated) publish(k content.Kind, s content.Stamp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serial++
	response := update(d.set, k, s, d.sotw, d.serial)
	d.last[k.TypeURL], d.first[k.TypeURL] = response, nil
	for c, streams := range d.streams[k.TypeURL] {
		c.SendAll(streams, response)
	}
	return nil
}

// Open implements transport.Handler.
func (d *dedicated) Open(_ *transport.Stream, path string) error {
	if path != "/"+service+"/DeltaAggregatedResources" && path != "/"+service+"/StreamAggregatedResources" {
		return transport.Error{Code: 12, Message: "unknown method"}
	}
	return nil
}

// Message implements transport.Handler.
func (d *dedicated) Message(s *transport.Stream, m []byte) error {
	r := readRequest(m, d.sotw)
	if r.answer {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.set.Kind(r.typeURL)
	if !ok {
		return nil
	}
	streams := d.streams[k.TypeURL]
	streams[s.Conn()] = append(streams[s.Conn()], s)
	for _, response := range d.all(k, r.returning) {
		s.Queue(response)
	}
	return nil
}

// all returns the responses with all resources of a type. For a client with initial versions it returns the latest
// change only.
func (d *dedicated) all(k content.Kind, returning bool) [][]byte {
	if last := d.last[k.TypeURL]; returning && last != nil {
		return [][]byte{last}
	}
	if d.first[k.TypeURL] == nil {
		d.first[k.TypeURL] = everything(d.set, k, d.sotw, d.serial)
	}
	return d.first[k.TypeURL]
}

// Closed implements transport.Handler.
func (d *dedicated) Closed(s *transport.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, streams := range d.streams {
		kept := streams[s.Conn()][:0]
		for _, other := range streams[s.Conn()] {
			if other != s {
				kept = append(kept, other)
			}
		}
		if streams[s.Conn()] = kept; len(kept) == 0 {
			delete(streams, s.Conn())
		}
	}
}
