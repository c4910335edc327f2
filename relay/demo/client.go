package demo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// userAgent keeps the clients in a node group of their own: an Envoy that joins
// the demo with another cluster or locality is no cause for a warning.
const userAgent = "tender-demo"

// A client subscribes as an Envoy does: to all clusters and listeners, and to the
// endpoints and routes that those name.
type client struct {
	// Set at creation, read-only afterwards.
	name  string
	delta bool
	meter *meter

	// wanted belongs to run: the names subscribed to, sorted, by type.
	wanted map[string][]string

	// Guarded by mu.
	mu    sync.Mutex
	held  map[string]map[string]resource // by type URL and name
	ended error                          // why the stream ended; nil if the demo ended it

	deliveries *deliveries // nil without rollouts
}

// A resource is what a client keeps of one.
type resource struct {
	content content
	names   string // the resource of another type that this one needs; may be empty
}

func newClient(n int, delta bool, m *meter) *client {
	variant := "SotW"
	if delta {
		variant = "Delta"
	}
	c := &client{
		name:   fmt.Sprintf("client %d (%s)", n, variant),
		delta:  delta,
		meter:  m,
		wanted: make(map[string][]string),
		held:   make(map[string]map[string]resource),
	}
	for _, typeURL := range []string{wire.ClusterType, wire.EndpointType, wire.ListenerType, wire.RouteType} {
		c.held[typeURL] = make(map[string]resource)
	}
	return c
}

// needs has the type that the resources of a type refer to. Clients subscribe to the referring types by wildcard.
var needs = map[string]string{wire.ClusterType: wire.EndpointType, wire.ListenerType: wire.RouteType}

// run holds a stream until ctx ends or the stream does.
func (c *client) run(ctx context.Context, conn *grpc.ClientConn) {
	err := c.converse(ctx, conn)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
}

func (c *client) converse(ctx context.Context, conn *grpc.ClientConn) error {
	open := openSotW
	if c.delta {
		open = openDelta
	}
	s, err := open(ctx, conn, &corepb.Node{Id: c.name, Cluster: "demo", UserAgentName: userAgent})
	if err != nil {
		return err
	}
	for _, typeURL := range []string{wire.ClusterType, wire.ListenerType} {
		if err := s.subscribe(typeURL, nil, nil); err != nil {
			return err
		}
	}
	for {
		u, err := s.receive()
		if err != nil {
			return err
		}
		now := time.Now()
		if refusal := envoyError(u); refusal != "" {
			c.refuse(u, now)
			if err := s.refuse(u, refusal); err != nil {
				return err
			}
			continue
		}
		c.take(u, now)
		if err := s.acknowledge(u); err != nil {
			return err
		}
		if err := c.follow(s, u.typeURL); err != nil {
			return err
		}
	}
}

// take makes an update the client's own.
func (c *client) take(u update, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held[u.typeURL]
	if held == nil {
		return
	}
	c.deliveries.add(u, now)
	if u.complete {
		for name := range held {
			if _, kept := u.resources[name]; !kept {
				u.removed = append(u.removed, name)
			}
		}
	}
	for name, value := range u.resources {
		if !c.wants(u.typeURL, name) {
			continue // sent before the server received the unsubscription
		}
		r := resource{contentOf(u.typeURL, name, value), needed(u.typeURL, name, value)}
		if had, ok := held[name]; !ok || had.content != r.content {
			c.meter.delivered(r.content, now)
		}
		held[name] = r
	}
	for _, name := range u.removed {
		if _, had := held[name]; had {
			c.meter.delivered(contentOf(u.typeURL, name, nil), now)
			delete(held, name)
		}
	}
}

// refuse records that the client takes nothing of an update.
func (c *client) refuse(u update, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliveries.add(u, now)
	c.deliveries.addRefusal(now)
}

// wants reports whether the client is subscribed to a resource.
func (c *client) wants(typeURL, name string) bool {
	if _, all := needs[typeURL]; all {
		return true
	}
	_, named := slices.BinarySearch(c.wanted[typeURL], name)
	return named
}

// follow subscribes to what the resources of a type need, if that has changed.
func (c *client) follow(s stream, typeURL string) error {
	other, ok := needs[typeURL]
	if !ok {
		return nil
	}
	was := c.wanted[other]
	now := c.neededBy(typeURL, other)
	if slices.Equal(was, now) {
		return nil
	}
	c.wanted[other] = now
	return s.subscribe(other, now, was)
}

// neededBy returns the names of the other type that those of a type need, and
// drops what is needed no longer.
func (c *client) neededBy(typeURL, other string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make(map[string]struct{})
	for _, r := range c.held[typeURL] {
		if r.names != "" {
			names[r.names] = struct{}{}
		}
	}
	maps.DeleteFunc(c.held[other], func(name string, _ resource) bool {
		_, kept := names[name]
		return !kept
	})
	return slices.Sorted(maps.Keys(names))
}

// difference returns the first thing in which the client and the origin differ,
// nil if there is none.
func (c *client) difference(want map[string]map[string]content) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return fmt.Errorf("%s: the stream ended: %w", c.name, c.ended)
	}
	for typeURL, held := range c.held {
		short, _ := schema.ShortName(typeURL)
		for name, content := range want[typeURL] {
			switch r, ok := held[name]; {
			case !ok:
				return fmt.Errorf("%s lacks %s %q", c.name, short, name)
			case r.content != content:
				return fmt.Errorf("%s has another %s %q than the origin", c.name, short, name)
			}
		}
		for name := range held {
			if _, ok := want[typeURL][name]; !ok {
				return fmt.Errorf("%s still has %s %q", c.name, short, name)
			}
		}
	}
	return nil
}

// needed returns the name of the resource that a resource needs: a Cluster its
// ClusterLoadAssignment, a Listener its RouteConfiguration. It reads only what the
// demo's mesh uses.
func needed(typeURL, name string, value []byte) string {
	switch typeURL {
	case wire.ClusterType: // type=2 (EDS=3), eds_cluster_config=3 {service_name=2}
		const eds = 3
		if kind, _ := protowire.ConsumeVarint(field(value, 2)); kind == eds {
			return cmp.Or(string(field(value, 3, 2)), name)
		}
	case wire.ListenerType: // filter_chains=3 {filters=3 {typed_config=4 {value=2 {rds=3 {route_config_name=2}}}}}
		return string(field(value, 3, 3, 4, 2, 3, 2))
	}
	return ""
}

// field returns the value of the first field on a path of field numbers; nil if
// there is none, or the message is malformed.
func field(msg []byte, path ...protowire.Number) []byte {
	for len(msg) > 0 {
		num, typ, tag := protowire.ConsumeTag(msg)
		if tag < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(num, typ, msg[tag:])
		if size < 0 {
			return nil
		}
		value := msg[tag : tag+size]
		msg = msg[tag+size:]
		if num != path[0] {
			continue
		}
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if len(path) == 1 {
			return value
		}
		return field(value, path[1:]...)
	}
	return nil
}
