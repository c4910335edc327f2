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
	"github.com/xdstender/tender/relay/rollout"
)

// Edited is a resource that an edition of an origin changes.
type Edited struct {
	Origin string
	rollout.Difference
}

// RolloutDiff returns what editions change, as operators are shown it.
func RolloutDiff(all []Edited, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	out := admin.RolloutDiff{Changes: []admin.RolloutChange{}}
	chosen, err := choose(all, c)
	if err != nil {
		return out, err
	}
	page, next, err := pageOf(chosen, c.Page, editedResource.key)
	if err != nil {
		return out, err
	}
	out.Total, out.Next = len(chosen), next
	if c.Name != "" {
		out.Bodies = make(map[string]json.RawMessage)
	}
	for _, of := range page {
		out.Changes = append(out.Changes, of.change())
		addBodies(out.Bodies, of.typeURL, of.Was, of.Is)
	}
	return out, nil
}

// An editedResource is an Edited, by what operators call it.
type editedResource struct {
	Edited
	typeURL, glob, name string
	parameters          map[string]string
}

// choose returns those that a choice is about.
func choose(all []Edited, c admin.RolloutChoice) (chosen []editedResource, err error) {
	name, err := wire.CanonicalName(c.Name)
	if err != nil {
		return nil, admin.Refuse(http.StatusBadRequest, fmt.Errorf("name=%.256s: %w", c.Name, err))
	}
	is := func(want, got string) bool { return want == "" || want == got }
	for _, e := range all {
		of := editedResource{Edited: e}
		of.typeURL, of.glob, _ = cache.SplitCollection(e.Key)
		of.name, of.parameters = wire.SplitParameters(e.Name)
		if is(c.Type, of.typeURL) && is(name, of.name) && is(c.Group, e.Part.Group) {
			chosen = append(chosen, of)
		}
	}
	if name != "" && len(chosen) == 0 {
		return nil, admin.Refuse(http.StatusNotFound, fmt.Errorf("no edition changes a %s %.256q", c.Type, name))
	}
	return chosen, nil
}

// key is what no other one has, in the order in which they are shown.
func (of editedResource) key() string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00%s\x00%v", of.Origin, of.typeURL, of.Name, of.Part.Group, of.glob, of.Part.Shared)
}

func (of editedResource) change() admin.RolloutChange {
	change := admin.RolloutChange{
		Origin: of.Origin, Group: of.Part.Group, TypeURL: of.typeURL, Name: of.name, Parameters: of.parameters, AskedAs: of.glob, Shared: of.Part.Shared,
		Change: "changed", Before: contentOf(of.Was), After: contentOf(of.Is),
	}
	switch {
	case of.Is == nil:
		change.Change = "removed"
	case of.Was == nil:
		change.Change = "added"
	}
	return change
}

func contentOf(r *wire.Resource) *admin.RolloutContent {
	if r == nil {
		return nil
	}
	return &admin.RolloutContent{Version: r.Version, OriginVersion: r.OriginVersion, Bytes: r.Size(), SHA256: hex.EncodeToString(r.Digest[:])}
}

// addBodies adds the contents of resources that there are, if there is a map for them, and it has not MaxBodies yet.
func addBodies(to map[string]json.RawMessage, typeURL string, all ...*wire.Resource) {
	for _, r := range all {
		if r == nil || to == nil || len(to) >= admin.MaxBodies {
			continue
		}
		digest := hex.EncodeToString(r.Digest[:])
		if _, have := to[digest]; have {
			continue
		}
		if body := bodyOf(cmp.Or(typeURL, r.TypeURL), r, false); body != nil {
			to[digest] = body
		}
	}
}
