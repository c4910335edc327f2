package operator

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// A viewResource is the state of a name in the view of a group.
type viewResource struct {
	typeURL, group string
	askedAs        string // upstream subscription, as in admin.Resource
	origin         int    // index of the origin
	name           *cache.Name
	entry          *cache.Entry        // nil if there is only an error
	fault          *wire.ResourceError // error that the origin sent instead; nil without one
}

// resources yields the entries of a type in the views of node groups. An empty group selects all.
func (f *Fleet) resources(typeURL, group string) iter.Seq[viewResource] {
	return func(yield func(viewResource) bool) {
		for _, v := range f.Views() {
			if v.Shared || group != "" && !nodegroup.Is(group, v.Key) {
				continue
			}
			for t := range v.View.Generation().ChangedSince(0) {
				collectedType, glob, _ := cache.SplitCollection(t.URL)
				if collectedType == typeURL && !f.yieldType(v.Key, typeURL, glob, t, yield) {
					return
				}
			}
		}
	}
}

// yieldType yields the entries of a type, or of a collection of it, in a view. It returns false if yield does.
func (f *Fleet) yieldType(group, typeURL, glob string, t *cache.Type, yield func(viewResource) bool) bool {
	for r := range entries(t) {
		r.typeURL, r.group = typeURL, group
		if r.askedAs == "" {
			r.origin = f.Route(typeURL, r.name.String())
		} else {
			r.askedAs, r.origin = cmp.Or(glob, r.askedAs), f.Route(typeURL, glob)
		}
		if !yield(r) {
			return false
		}
	}
	return true
}

// entries yields the entries of a type: the members of the wildcard set, the names that were subscribed to by name, and
// names with only an error. It omits removed members.
func entries(t *cache.Type) iter.Seq[viewResource] {
	return func(yield func(viewResource) bool) {
		for e := range t.Wildcard.Since(0) {
			if !e.Present() {
				continue
			}
			fault := faultOf(t, cache.Wildcard, e.Name)
			if !yield(viewResource{askedAs: wire.Wildcard, name: e.Name, entry: e, fault: fault}) {
				return
			}
		}
		for e := range t.ByName.Since(0) {
			if !yield(viewResource{name: e.Name, entry: e, fault: faultOf(t, cache.ByName, e.Name)}) {
				return
			}
		}
		for fault := range t.Errors(cache.Wildcard).Since(0) {
			if t.Wildcard.Get(fault.Name).Present() {
				continue
			}
			if !yield(viewResource{askedAs: wire.Wildcard, name: fault.Name, fault: fault.Err}) {
				return
			}
		}
		for fault := range t.Errors(cache.ByName).Since(0) {
			if t.ByName.Get(fault.Name) == nil && !yield(viewResource{name: fault.Name, fault: fault.Err}) {
				return
			}
		}
	}
}

// faultOf returns the error that the origin sent for a name; nil without one.
func faultOf(t *cache.Type, kind cache.Kind, n *cache.Name) *wire.ResourceError {
	if fault := t.Errors(kind).Get(n); fault != nil {
		return fault.Err
	}
	return nil
}

// adminResource returns a resource for the admin API.
func (f *Fleet) adminResource(r viewResource) admin.Resource {
	out := admin.Resource{
		Name: r.name.String(), Group: r.group, Origin: f.Origins[r.origin], AskedAs: r.askedAs, Exists: r.entry.Present(),
	}
	if r.fault != nil {
		out.Error = &admin.ResourceError{Code: codepb.Code(r.fault.Code).String(), Message: r.fault.Message}
		if wire.IsSecret(r.typeURL) {
			out.Error.Message = fmt.Sprintf("%d bytes, not shown", len(r.fault.Message))
		}
	}
	if out.Exists {
		resource := r.entry.Resource
		out.Version, out.OriginVersion = resource.Version, resource.OriginVersion
		out.Bytes, out.SHA256 = resource.Size(), hex.EncodeToString(resource.Digest[:])
		out.ExpiresAt, out.GivenUpAt = r.entry.Deadline(), r.entry.ContentDroppedAt()
	}
	return out
}

// Resources implements admin.Fleet.
func (f *Fleet) Resources(q admin.ResourceQuery) (admin.Resources, error) {
	var all []viewResource
	for r := range f.resources(q.Type, q.Group) {
		if strings.Contains(r.name.String(), q.Contains) {
			all = append(all, r)
		}
	}
	key := func(r viewResource) string { return r.name.String() + "\x00" + r.group + "\x00" + r.askedAs }
	page, next, err := pageOf(all, q.Page, key)
	out := admin.Resources{TypeURL: q.Type, Total: len(all), Resources: []admin.Resource{}, Next: next}
	for _, r := range page {
		out.Resources = append(out.Resources, f.adminResource(r))
	}
	return out, err
}

// Resource implements admin.Fleet.
func (f *Fleet) Resource(c admin.ResourceChoice) (admin.ResourceDetail, error) {
	name, err := wire.CanonicalName(c.Name)
	if err != nil {
		return admin.ResourceDetail{}, admin.Refuse(http.StatusBadRequest, fmt.Errorf("name=%.256s: %w", c.Name, err))
	}
	d := admin.ResourceDetail{
		TypeURL: c.Type, Name: name, Resources: []admin.Resource{}, Bodies: make(map[string]json.RawMessage),
		States: make(map[string]int), Holders: []admin.Holder{},
	}
	for r := range f.resources(c.Type, c.Group) {
		if r.name.String() != name {
			continue
		}
		shown := f.adminResource(r)
		d.Resources = append(d.Resources, shown)
		if _, ok := d.Bodies[shown.SHA256]; r.entry.Present() && !ok && len(d.Bodies) < admin.MaxBodies {
			if body := bodyOf(c.Type, r.entry.Resource, c.YAML); body != nil {
				d.Bodies[shown.SHA256] = body
			}
		}
	}
	f.addHolders(&d, c)
	if len(d.Resources)+len(d.States) == 0 {
		err := fmt.Errorf("there is no %s %.256q: no client subscribes to it and no origin has sent it", c.Type, name)
		return d, admin.Refuse(http.StatusNotFound, err)
	}
	return d, nil
}

// bodyOf returns the content of a resource without sensitive fields; nil for Secrets, and for resources without
// content. For content that cannot be decoded, it returns an object with the error.
func bodyOf(typeURL string, r *wire.Resource, asYAML bool) json.RawMessage {
	if wire.IsSecret(typeURL) || wire.IsSecret(r.TypeURL) || !r.HasBody() || r.ContentDropped() {
		return nil
	}
	body, err := r.RedactedJSON()
	if err == nil && asYAML {
		if body, err = yaml.JSONToYAML(body); err == nil {
			body, err = json.Marshal(string(body))
		}
	}
	if err != nil {
		body, _ = json.Marshal(map[string]string{"error": err.Error()}) // cannot fail
	}
	return body
}

// addHolders adds the clients that subscribe to a resource, as the States and Holders of d.
func (f *Fleet) addHolders(d *admin.ResourceDetail, c admin.ResourceChoice) {
	var holders []downstream.Holder
	for _, h := range f.Server.Holders(d.TypeURL, d.Name) {
		if c.Group == "" || nodegroup.Is(c.Group, h.Group) {
			d.States[h.State.String()]++
			holders = append(holders, h)
		}
	}
	order := []downstream.ResourceState{downstream.Rejected, downstream.NotSent, downstream.Sent, downstream.Accepted}
	slices.SortStableFunc(holders, func(a, b downstream.Holder) int {
		return slices.Index(order, a.State) - slices.Index(order, b.State)
	})
	for _, h := range holders[:min(len(holders), c.Limit)] {
		if s, open := f.Server.Client(h.Stream); open {
			d.Holders = append(d.Holders, admin.Holder{
				Number: h.Stream, NodeID: s.NodeID(), Group: s.Group,
				State: h.State.String(), Rejection: rejectionOf(h.Rejection),
			})
		}
	}
}
