package operator

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/rollout"
)

// An Edited is a resource that an edition of an origin changes.
type Edited struct {
	Origin string
	rollout.Difference
}

// RolloutDiff returns a page of the changes of editions for the admin API.
func RolloutDiff(all []Edited, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	out := admin.RolloutDiff{Changes: []admin.RolloutChange{}}
	selected, err := selectChanges(all, c)
	if err != nil {
		return out, err
	}
	page, next, err := pageOf(selected, c.Page, editedResource.key)
	if err != nil {
		return out, err
	}
	out.Total, out.Next = len(selected), next
	if c.Name != "" {
		out.Bodies = make(map[string]json.RawMessage)
	}
	for _, r := range page {
		out.Changes = append(out.Changes, r.change())
		addBodies(out.Bodies, r.typeURL, r.Was, r.Is)
	}
	return out, nil
}

// An editedResource is an Edited with the parts of its key and name.
type editedResource struct {
	Edited
	typeURL, glob, name string
	parameters          map[string]string // dynamic parameters
}

// selectChanges returns the changes that a choice selects.
func selectChanges(all []Edited, c admin.RolloutChoice) (selected []editedResource, err error) {
	name, err := wire.CanonicalName(c.Name)
	if err != nil {
		return nil, admin.Refuse(http.StatusBadRequest, fmt.Errorf("name=%.256s: %w", c.Name, err))
	}
	matches := func(want, got string) bool { return want == "" || want == got }
	for _, e := range all {
		r := editedResource{Edited: e}
		r.typeURL, r.glob, _ = cache.SplitCollection(e.Key)
		r.name, r.parameters = wire.SplitParameters(e.Name)
		if matches(c.Type, r.typeURL) && matches(name, r.name) && (c.Group == "" || nodegroup.Is(c.Group, e.Section.Group)) {
			selected = append(selected, r)
		}
	}
	if name != "" && len(selected) == 0 {
		return nil, admin.Refuse(http.StatusNotFound, fmt.Errorf("no edition changes %s %.256q", c.Type, name))
	}
	return selected, nil
}

// key returns a unique key in the order of the list.
func (r editedResource) key() string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00%s\x00%v",
		r.Origin, r.typeURL, r.Name, r.Section.Group, r.glob, r.Section.Shared)
}

// change returns the change for the admin API.
func (r editedResource) change() admin.RolloutChange {
	change := admin.RolloutChange{
		Origin: r.Origin, Group: r.Section.Group, Part: r.Part, TypeURL: r.typeURL, Name: r.name, Parameters: r.parameters,
		AskedAs: r.glob, Shared: r.Section.Shared,
		Change: "changed", Before: contentOf(r.Was), After: contentOf(r.Is),
	}
	switch {
	case r.Is == nil:
		change.Change = "removed"
	case r.Was == nil:
		change.Change = "added"
	}
	return change
}

// contentOf returns the metadata of a resource for the admin API; nil for nil.
func contentOf(r *wire.Resource) *admin.RolloutContent {
	if r == nil {
		return nil
	}
	return &admin.RolloutContent{
		Version: r.Version, OriginVersion: r.OriginVersion, Bytes: r.Size(), SHA256: hex.EncodeToString(r.Digest[:]),
	}
}

// addBodies adds the contents of resources to a map, up to MaxBodies. It ignores nil resources, and does nothing if the
// map is nil.
func addBodies(to map[string]json.RawMessage, typeURL string, all ...*wire.Resource) {
	for _, r := range all {
		if r == nil || to == nil || len(to) >= admin.MaxBodies {
			continue
		}
		digest := hex.EncodeToString(r.Digest[:])
		if _, ok := to[digest]; ok {
			continue
		}
		if body := bodyOf(cmp.Or(typeURL, r.TypeURL), r, false); body != nil {
			to[digest] = body
		}
	}
}
