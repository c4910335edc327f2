package relaytest

import (
	"encoding/hex"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A Content has the resources that an origin serves to some nodes. Each change is sent to the subscribed streams, even
// if it does not change the resource.
type Content struct {
	origin *Origin
	match  func(*corepb.Node) bool

	// Guarded by origin.mon. The resources and errors are immutable.
	types   map[string]map[string]*discoverypb.Resource
	errors  map[string]map[string]*discoverypb.ResourceError
	lagging bool  // whether changes are held back
	missed  []*Tx // changes held back, in order
}

func newContent(o *Origin, match func(*corepb.Node) bool) *Content {
	return &Content{
		origin: o,
		match:  match,
		types:  make(map[string]map[string]*discoverypb.Resource),
		errors: make(map[string]map[string]*discoverypb.ResourceError),
	}
}

// Set sets the resource with a type and a name to a message, or to an *anypb.Any as it is. If version is empty, it is
// made from the content.
func (c *Content) Set(typeURL, name string, msg proto.Message, version string) {
	c.Apply(func(tx *Tx) { tx.Set(typeURL, name, msg, version) })
}

// SetRaw sets a resource with any fields: aliases, TTL, no body. Name and version are sent as they are.
func (c *Content) SetRaw(typeURL string, resource *discoverypb.Resource) {
	c.Apply(func(tx *Tx) { tx.SetRaw(typeURL, resource) })
}

// SetWithTTL is Set for a resource with a TTL. The TTL starts when a client receives the resource.
func (c *Content) SetWithTTL(typeURL, name string, msg proto.Message, ttl time.Duration) {
	body := Pack(msg)
	d := digest(body)
	c.SetRaw(typeURL, &discoverypb.Resource{
		Name: name, Version: hex.EncodeToString(d[:8]), Resource: body, Ttl: durationpb.New(ttl),
	})
}

// Heartbeat renews the TTLs of resources, without content, on the streams that subscribe to them.
func (c *Content) Heartbeat(typeURL string, names ...string) {
	o := c.origin
	o.mon.Lock()
	defer o.mon.Unlock()
	beats := make(map[string]change, len(names))
	for _, name := range names {
		if r := c.types[typeURL][name]; r != nil {
			beats[name] = change{resource: &discoverypb.Resource{Name: name, Version: r.GetVersion(), Ttl: r.GetTtl()}}
		}
	}
	for _, s := range o.streams {
		if s.receivesChanges(c) {
			s.push(typeURL, beats)
		}
	}
	o.mon.Changed()
}

// Put sets messages under the type and name that they contain, with versions made from their content.
func (c *Content) Put(msgs ...proto.Message) {
	c.Apply(func(tx *Tx) { tx.Put(msgs...) })
}

// Remove removes a resource. The removal is sent even if the resource does not exist.
func (c *Content) Remove(typeURL, name string) {
	c.Apply(func(tx *Tx) { tx.Remove(typeURL, name) })
}

// Fail sends an error in place of a resource, until the resource is set or removed.
func (c *Content) Fail(typeURL, name string, code codes.Code, message string) {
	c.Apply(func(tx *Tx) { tx.Fail(typeURL, name, code, message) })
}

// Apply makes several changes at once: one response per type, in the order in which f first changes each type. If f
// changes a name twice, the second change counts.
func (c *Content) Apply(f func(*Tx)) {
	tx := &Tx{changes: make(map[string]map[string]change)}
	f(tx)
	o := c.origin
	o.mon.Lock()
	defer o.mon.Unlock()
	if c.lagging {
		c.missed = append(c.missed, tx)
		return
	}
	c.apply(tx)
	o.mon.Changed()
}

// apply makes the changes of a transaction. The caller must hold the lock.
func (c *Content) apply(tx *Tx) {
	o := c.origin
	for _, typeURL := range tx.order {
		if c.types[typeURL] == nil {
			c.types[typeURL] = make(map[string]*discoverypb.Resource)
			c.errors[typeURL] = make(map[string]*discoverypb.ResourceError)
		}
		// Delta streams come first: they need the aliases of removed resources.
		for _, s := range o.streams {
			if s.receivesChanges(c) && !s.record.SotW {
				s.push(typeURL, tx.changes[typeURL])
			}
		}
		for name, change := range tx.changes[typeURL] {
			c.record(typeURL, name, change)
		}
		for _, s := range o.streams {
			if s.receivesChanges(c) && s.record.SotW {
				s.pushSotW(typeURL, tx.changes[typeURL])
			}
		}
	}
}

// Lag holds back all changes, as a server that has lost the connection to its source. catchUp makes them one after the
// other.
func (c *Content) Lag() (catchUp func()) {
	c.origin.mon.Lock()
	defer c.origin.mon.Unlock()
	c.lagging = true
	return func() {
		c.origin.mon.Lock()
		defer c.origin.mon.Unlock()
		for _, tx := range c.missed {
			c.apply(tx)
		}
		c.lagging, c.missed = false, nil
		c.origin.mon.Changed()
	}
}

// Unload drops the resources for which keep returns false, like a restarted server that has not read them yet. It sends
// nothing. load restores and sends them; resources that were set meanwhile stay. No resource may be removed in between.
func (c *Content) Unload(keep func(typeURL, name string) bool) (load func()) {
	c.origin.mon.Lock()
	defer c.origin.mon.Unlock()
	var unloaded []func(*Tx)
	for typeURL, resources := range c.types {
		for name, r := range resources {
			if !keep(typeURL, name) {
				delete(resources, name)
				unloaded = append(unloaded, func(tx *Tx) {
					if c.types[typeURL][name] == nil {
						tx.change(typeURL, name, change{resource: r})
					}
				})
			}
		}
	}
	return func() {
		c.Apply(func(tx *Tx) {
			c.origin.mon.Lock()
			defer c.origin.mon.Unlock()
			for _, back := range unloaded {
				back(tx)
			}
		})
	}
}

// receivesChanges reports whether changes of a Content are sent on the stream. The caller must hold the lock.
func (s *OriginStream) receivesChanges(c *Content) bool {
	return s.content == c && !s.manual && !s.record.Ended
}

// record stores a change. The caller must hold the lock.
func (c *Content) record(typeURL, name string, change change) {
	delete(c.errors[typeURL], name)
	delete(c.types[typeURL], name)
	switch {
	case change.err != nil:
		c.errors[typeURL][name] = change.err
	case change.resource != nil:
		c.types[typeURL][name] = change.resource
	}
}

// Clear drops all resources and sends nothing.
func (c *Content) Clear() {
	c.origin.mon.Lock()
	defer c.origin.mon.Unlock()
	clear(c.types)
	clear(c.errors)
}

// Resources returns the resources as a client would have them.
func (c *Content) Resources() State {
	c.origin.mon.Lock()
	defer c.origin.mon.Unlock()
	state := make(State, len(c.types))
	for typeURL, resources := range c.types {
		for name, r := range resources {
			state.entries(typeURL)[name] = Entry{Version: r.GetVersion(), Digest: digest(r.GetResource())}
		}
	}
	return state
}

// find returns the resource with a name or alias, or nil. The caller must hold the lock.
func (c *Content) find(typeURL, name string) *discoverypb.Resource {
	if r := c.types[typeURL][name]; r != nil {
		return r
	}
	var found *discoverypb.Resource
	for key, r := range c.types[typeURL] {
		if slices.Contains(r.GetAliases(), name) && (found == nil || key < found.GetName()) {
			found = r
		}
	}
	return found
}

// collection returns the resources that a name refers to: the resource with that name or alias, or the members of a
// collection. The caller must hold the lock.
func (c *Content) collection(typeURL, name string) []*discoverypb.Resource {
	if r := c.find(typeURL, name); r != nil {
		return []*discoverypb.Resource{r}
	}
	var members []*discoverypb.Resource
	for key, r := range c.types[typeURL] {
		if CollectionOf(key) == name {
			members = append(members, r)
		}
	}
	return members
}

// aliases returns the other names of a changed resource. Removals and heartbeats are sent under all names. The caller
// must hold the lock.
func (c *Content) aliases(typeURL, name string, change change) []string {
	if held := c.types[typeURL][name]; held != nil && change.resource.GetResource() == nil {
		return held.GetAliases()
	}
	return change.resource.GetAliases()
}

// A Tx collects changes for [Content.Apply].
type Tx struct {
	order   []string // type URLs
	changes map[string]map[string]change
}

// A change is the new state of a name: a resource, an error, or neither if it is removed.
type change struct {
	resource *discoverypb.Resource
	err      *discoverypb.ResourceError
}

// Set is [Content.Set].
func (tx *Tx) Set(typeURL, name string, msg proto.Message, version string) {
	body := Pack(msg)
	if version == "" {
		d := digest(body)
		version = hex.EncodeToString(d[:8])
	}
	tx.change(typeURL, name, change{resource: &discoverypb.Resource{Name: name, Version: version, Resource: body}})
}

// SetRaw is [Content.SetRaw].
func (tx *Tx) SetRaw(typeURL string, resource *discoverypb.Resource) {
	tx.change(typeURL, resource.GetName(), change{resource: proto.CloneOf(resource)})
}

// Put is [Content.Put].
func (tx *Tx) Put(msgs ...proto.Message) {
	for _, msg := range msgs {
		body := Pack(msg)
		tx.Set(body.GetTypeUrl(), nameOf(body.GetValue()), body, "")
	}
}

// Uncached marks a resource of the transaction as do_not_cache.
func (tx *Tx) Uncached(typeURL, name string) {
	tx.changes[typeURL][name].resource.CacheControl = &discoverypb.Resource_CacheControl{DoNotCache: true}
}

// Remove is [Content.Remove].
func (tx *Tx) Remove(typeURL, name string) { tx.change(typeURL, name, change{}) }

// Fail is [Content.Fail].
func (tx *Tx) Fail(typeURL, name string, code codes.Code, message string) {
	tx.change(typeURL, name, change{err: &discoverypb.ResourceError{
		ResourceName: &discoverypb.ResourceName{Name: name},
		ErrorDetail:  status.New(code, message).Proto(),
	}})
}

// change sets the new state of a name.
func (tx *Tx) change(typeURL, name string, to change) {
	if tx.changes[typeURL] == nil {
		tx.order = append(tx.order, typeURL)
		tx.changes[typeURL] = make(map[string]change)
	}
	tx.changes[typeURL][name] = to
}
