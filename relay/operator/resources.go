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
)

// A heldResource is what the view of a group has of a name.
type heldResource struct {
	typeURL, group string
	askedAs        string
	origin         int
	name           *cache.Name
	entry          *cache.Entry        // nil if there is only an error
	fault          *wire.ResourceError // the error that the origin sent for it; nil if none
}

// resources yields what the views of groups have of a type; of one group if that is given.
func (f *Fleet) resources(typeURL, group string) iter.Seq[heldResource] {
	return func(yield func(heldResource) bool) {
		for _, s := range f.Views() {
			if s.Shared || group != "" && s.Key != group {
				continue
			}
			for t := range s.View.Generation().ChangedSince(0) {
				if of, glob, _ := cache.SplitCollection(t.URL); of == typeURL && !f.held(s.Key, of, glob, t, yield) {
					return
				}
			}
		}
	}
}

// held yields what a view has of a type, or of a collection of it, and reports whether it
// got to the end.
func (f *Fleet) held(group, typeURL, glob string, t *cache.Type, yield func(heldResource) bool) bool {
	for of := range known(t) {
		of.typeURL, of.group = typeURL, group
		if of.askedAs == "" {
			of.origin = f.Route(typeURL, of.name.String())
		} else {
			of.askedAs, of.origin = cmp.Or(glob, of.askedAs), f.Route(typeURL, glob)
		}
		if !yield(of) {
			return false
		}
	}
	return true
}

// known yields what is known of the names of a type: of members, unless they went, and of what
// was asked for by name.
func known(t *cache.Type) iter.Seq[heldResource] {
	return func(yield func(heldResource) bool) {
		for e := range t.Wildcard.Since(0) {
			if e.Present() && !yield(heldResource{askedAs: wire.Wildcard, name: e.Name, entry: e, fault: faultOf(t, cache.Wildcard, e.Name)}) {
				return
			}
		}
		for e := range t.ByName.Since(0) {
			if !yield(heldResource{name: e.Name, entry: e, fault: faultOf(t, cache.ByName, e.Name)}) {
				return
			}
		}
		for fault := range t.Errors(cache.Wildcard).Since(0) {
			if !t.Wildcard.Get(fault.Name).Present() && !yield(heldResource{askedAs: wire.Wildcard, name: fault.Name, fault: fault.Err}) {
				return
			}
		}
		for fault := range t.Errors(cache.ByName).Since(0) {
			if t.ByName.Get(fault.Name) == nil && !yield(heldResource{name: fault.Name, fault: fault.Err}) {
				return
			}
		}
	}
}

func faultOf(t *cache.Type, kind cache.Kind, n *cache.Name) *wire.ResourceError {
	if fault := t.Errors(kind).Get(n); fault != nil {
		return fault.Err
	}
	return nil
}

// show returns a resource for the admin API.
func (f *Fleet) show(h heldResource) admin.Resource {
	r := admin.Resource{Name: h.name.String(), Group: h.group, Origin: f.Origins[h.origin], AskedAs: h.askedAs, Exists: h.entry.Present()}
	if h.fault != nil {
		r.Error = &admin.ResourceError{Code: codepb.Code(h.fault.Code).String(), Message: h.fault.Message}
		if wire.IsSecret(h.typeURL) {
			r.Error.Message = fmt.Sprintf("of %d bytes, not shown", len(h.fault.Message))
		}
	}
	if r.Exists {
		of := h.entry.Resource
		r.Version, r.OriginVersion, r.Bytes, r.SHA256 = of.Version, of.OriginVersion, of.Size(), hex.EncodeToString(of.Digest[:])
		r.ExpiresAt, r.GivenUpAt = h.entry.Deadline(), h.entry.ContentDroppedAt()
	}
	return r
}

// Resources implements admin.Fleet.
func (f *Fleet) Resources(q admin.ResourceQuery) (admin.Resources, error) {
	var all []heldResource
	for r := range f.resources(q.Type, q.Group) {
		if strings.Contains(r.name.String(), q.Contains) {
			all = append(all, r)
		}
	}
	page, next, err := pageOf(all, q.Page, func(r heldResource) string { return r.name.String() + "\x00" + r.group + "\x00" + r.askedAs })
	out := admin.Resources{TypeURL: q.Type, Total: len(all), Resources: []admin.Resource{}, Next: next}
	for _, r := range page {
		out.Resources = append(out.Resources, f.show(r))
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
		shown := f.show(r)
		d.Resources = append(d.Resources, shown)
		if _, have := d.Bodies[shown.SHA256]; r.entry.Present() && !have && len(d.Bodies) < admin.MaxBodies {
			if body := bodyOf(c.Type, r.entry.Resource, c.YAML); body != nil {
				d.Bodies[shown.SHA256] = body
			}
		}
	}
	f.addHolders(&d, c)
	if len(d.Resources)+len(d.States) == 0 {
		return d, admin.Refuse(http.StatusNotFound, fmt.Errorf("there is no %s %.256q: no client asked for it, and no origin said anything of it", c.Type, name))
	}
	return d, nil
}

// bodyOf returns the redacted content of a resource, or nil if it has none to show. For content that cannot be decoded,
// it returns the error as a string.
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
		body, _ = json.Marshal(map[string]string{"error": err.Error()}) // texts can be encoded
	}
	return body
}

// addHolders adds the clients that asked for a resource.
func (f *Fleet) addHolders(d *admin.ResourceDetail, c admin.ResourceChoice) {
	var holders []downstream.Holder
	for _, h := range f.Server.Holders(d.TypeURL, d.Name) {
		if c.Group == "" || h.Group == c.Group {
			d.States[h.State.String()]++
			holders = append(holders, h)
		}
	}
	urgency := map[downstream.ResourceState]int{downstream.Refused: 0, downstream.NotSent: 1, downstream.Sent: 2, downstream.Accepted: 3}
	slices.SortStableFunc(holders, func(a, b downstream.Holder) int { return urgency[a.State] - urgency[b.State] })
	for _, h := range holders[:min(len(holders), c.Limit)] {
		if s, open := f.Server.Client(h.Stream); open {
			d.Holders = append(d.Holders, admin.Holder{
				Number: h.Stream, NodeID: s.NodeID(), Group: s.Group, State: h.State.String(), Refusal: refusalOf(h.Refusal),
			})
		}
	}
}
