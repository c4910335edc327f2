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

// userAgent puts the demo's clients in a node group of their own. The relay would otherwise warn about a real Envoy
// that joins with another cluster or locality.
const userAgent = "tender-demo"

// A client subscribes as an Envoy does: to clusters and listeners by wildcard, and by name to the endpoints and
// routes of these.
type client struct {
	// Immutable after newClient, except name, which cohorts.assign may change before run.
	name  string
	delta bool
	meter *meter

	// wanted holds the sorted names of each type that is subscribed to by name. Only the goroutine of run uses it.
	wanted map[string][]string

	// Guarded by mu.
	mu    sync.Mutex
	held  map[string]map[string]resource // accepted resources, by type URL and name
	ended error                          // why the stream ended; nil if the demo ended it

	deliveries *deliveries // guarded by mu; nil without rollouts
}

// A resource is the part of an accepted resource that a client keeps.
type resource struct {
	content content
	names   string // name of the resource of another type that this one refers to; may be empty
}

// newClient returns the client with number n. It uses the Delta variant if delta is set, else SotW.
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

// needs maps a type to the type that its resources refer to. Clients subscribe to the keys by wildcard.
var needs = map[string]string{wire.ClusterType: wire.EndpointType, wire.ListenerType: wire.RouteType}

// run keeps a stream open until ctx or the stream ends. An error of the stream is stored in c.ended.
func (c *client) run(ctx context.Context, conn *grpc.ClientConn) {
	err := c.converse(ctx, conn)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
}

// converse subscribes and answers responses until the stream fails. The error is never nil.
func (c *client) converse(ctx context.Context, conn *grpc.ClientConn) error {
	open := openSotW
	if c.delta {
		open = openDelta
	}
	s, err := open(ctx, conn, &corepb.Node{Id: c.name, Cluster: "demo", UserAgentName: userAgent})
	if err != nil {
		return err
	}
	for _, typeURL := range schema.Roots {
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
		if rejection := envoyError(u); rejection != "" {
			c.reject(u, now)
			if err := s.reject(u, rejection); err != nil {
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

// take applies an update to the held resources and measures the delay of each change.
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

// reject records the time of a NACK. The held resources do not change.
func (c *client) reject(u update, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliveries.add(u, now)
	c.deliveries.addRejection(now)
}

// wants reports whether the client subscribes to a resource, by wildcard or by name.
func (c *client) wants(typeURL, name string) bool {
	if _, all := needs[typeURL]; all {
		return true
	}
	_, named := slices.BinarySearch(c.wanted[typeURL], name)
	return named
}

// follow updates the subscription to the resources that those of a type refer to. It sends nothing if they are the same
// as before.
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

// neededBy returns the sorted names of the other type that the held resources of a type refer to. It drops held
// resources of the other type that none refers to.
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

// difference returns the first difference between the held resources and want, by type URL and name, or nil.
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

// needed returns the name of the resource that a resource refers to: the ClusterLoadAssignment of a Cluster, or the
// RouteConfiguration of a Listener. It reads only the fields that the demo's mesh sets.
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

// field returns the value of the first field at a path of field numbers. It returns nil if there is no such field, or
// if the message is malformed.
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
