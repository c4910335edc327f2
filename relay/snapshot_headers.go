package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/nodegroup"
)

// snapshotHeaders are the headers of snapshots, by which a relay knows those of its views. Its methods may be called from
// any goroutine.
type snapshotHeaders struct {
	settings   *settings
	rolledBack func(origin string) bool // reports whether an origin is rolled back
	ofPeers    bool                     // the snapshots are those of peers
}

// directoryGroup replaces the node group in a snapshot of a directory. No group has this key.
const directoryGroup = "directory"

// sharedNamesPrefix precedes the key of a node group in the snapshot of the group's shared names. No key begins with
// it.
const sharedNamesPrefix = "xdstp of "

// ofDirectory returns the header of the snapshot of a directory.
func (s *snapshotHeaders) ofDirectory(origin int) cache.Header {
	return s.of(origin, directoryGroup, nil)
}

// match returns the Node that this relay presents to the origin for the group of a snapshot. It returns an error if the
// snapshot does not match the configuration.
func (s *snapshotHeaders) match(h *cache.Header) (*corepb.Node, error) {
	origin := slices.Index(s.settings.originNames(), h.Origin)
	if origin < 0 {
		return nil, fmt.Errorf("there is no origin %q", h.Origin)
	}
	was := new(corepb.Node)
	if err := proto.Unmarshal(h.Node, was); err != nil {
		return nil, fmt.Errorf("decode Node: %w", err)
	}
	if !s.includes(h) {
		return nil, errors.New("TENDER_ROLLOUT was turned on or off, which changes what snapshots contain")
	}
	key, node := sharedGroupOf(was.GetClientFeatures()), sharedNode(s.settings.node, was.GetClientFeatures())
	if !isSharedGroup(h.Group) {
		key, node = nodegroup.Sort(was, proto.CloneOf(s.settings.node), s.settings.groupBy)
	}
	if strings.HasPrefix(h.Group, sharedNamesPrefix) {
		key = sharedNamesPrefix + key
	}
	now := s.of(origin, key, node)
	switch {
	case !slices.Equal(now.Targets, h.Targets):
		return nil, fmt.Errorf("the snapshot has the state of the targets %s; the targets of the origin %s are %s",
			strings.Join(h.Targets, ","), h.Origin, strings.Join(now.Targets, ","))
	case key != h.Group:
		return nil, fmt.Errorf("the snapshot has the state of the group %q, whose key is %q now", h.Group, key)
	case now.Options != h.Options:
		return nil, fmt.Errorf("the snapshot was written with %s; the relay runs with %s", h.Options, now.Options)
	case !s.sameNode(was, node):
		return nil, errors.New("the relay presented another Node to the origin")
	}
	return node, nil
}

// sameNode reports whether an origin should serve the same resources to two Nodes. The version of the relay does not
// count; otherwise each upgrade would cause a cold start. Nor do the IDs of peers, which are those of their hosts. If
// clients are grouped by their IDs, the group of the snapshot has them.
func (s *snapshotHeaders) sameNode(a, b *corepb.Node) bool {
	if !slices.Contains(s.settings.groupBy, "user_agent_version") {
		a, b = proto.CloneOf(a), proto.CloneOf(b)
		a.UserAgentVersionType, b.UserAgentVersionType = nil, nil
	}
	if s.ofPeers {
		a, b = proto.CloneOf(a), proto.CloneOf(b)
		a.Id, b.Id = "", ""
	}
	return proto.Equal(a, b)
}

// of returns the header of the snapshot of a group.
func (s *snapshotHeaders) of(origin int, group string, node *corepb.Node) cache.Header {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(node) // cannot fail: the relay sends it to origins
	of := s.settings.origins[origin]
	return cache.Header{
		Origin: of.Name, Targets: of.Targets, Group: group, Node: encoded, Options: "DELTA_VERSIONS=" + s.settings.deltaVersions,
	}
}

// includes reports whether the relay stores the state that a header describes. With rollouts, a snapshot has the served
// state of a node group, which may differ from the files of a directory and from the shared view. Without rollouts, the
// served state is that of the files and of the shared views, except during a rollback of a directory.
func (s *snapshotHeaders) includes(h *cache.Header) bool {
	switch {
	case s.settings.rollout.On():
		return !isSharedGroup(h.Group)
	case strings.HasPrefix(h.Group, sharedNamesPrefix):
		return false
	default:
		return !strings.HasPrefix(h.Targets[0], "file:") || s.rolledBack(h.Origin)
	}
}
