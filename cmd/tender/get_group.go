package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// groupTimeout is how long tender get waits for the groups of a relay.
const groupTimeout = time.Second

// getGroups are the node groups of the relay of this host, for tender get.
type getGroups struct{ host host }

// errNoGroups means that the groups of a server are unknown: it is on another host, does not answer, or is no relay.
var errNoGroups = errors.New("only for a relay of this host whose admin address answers; use --node-file or --metadata")

// read returns the status of the relay at an address, and its admin address.
func (g getGroups) read(ctx context.Context, address string) (s admin.Status, adminAt string, err error) {
	adminAt, err = adminAddress(g.host.environ())
	if err != nil || !onThisHost(address) || !onThisHost(adminAt) {
		return s, "", errNoGroups
	}
	client, err := newAdminClient(adminAt, nil, g.host.dial)
	if err != nil {
		return s, "", errNoGroups
	}
	client.http.Timeout = groupTimeout
	if err := client.get(ctx, "/api/v1/status", &s); err != nil || s.Relay.NodeGroupBy == nil {
		return s, "", errNoGroups
	}
	return s, adminAt, nil
}

// Warning returns a warning before a Node opens a node group of its own: the relay then keeps a view of the group, and
// subscribes at its origins for it. If the groups are unknown, there is none: tender get is for any server.
func (g getGroups) Warning(ctx context.Context, address string, n *corepb.Node) string {
	s, adminAt, err := g.read(ctx, address)
	if err != nil {
		return ""
	}
	group, _ := nodegroup.Sort(n, new(corepb.Node), s.Relay.NodeGroupBy)
	all := groupsOf(&s)
	if slices.Contains(all, group) {
		return ""
	}
	text := fmt.Sprintf("the relay at %s has no node group %s: it opens the group for this command", adminAt, nodegroup.Name(group))
	if len(all) == 0 {
		return text
	}
	return text + "; --group selects another one: " + groupNames(all)
}

// Member returns a Node of a node group.
func (g getGroups) Member(ctx context.Context, address, group string) (*corepb.Node, error) {
	s, adminAt, err := g.read(ctx, address)
	if err != nil {
		return nil, err
	}
	all := groupsOf(&s)
	at := slices.IndexFunc(all, func(key string) bool { return nodegroup.Is(group, key) })
	if at < 0 {
		return nil, fmt.Errorf("the relay at %s has no such node group, only: %s", adminAt, cmp.Or(groupNames(all), "none"))
	}
	n, ok := nodegroup.Member(all[at], s.Relay.NodeGroupBy)
	if !ok { // of another release
		return nil, fmt.Errorf("cannot make a Node of the group %s; use --node-file", all[at])
	}
	return n, nil
}

// groupsOf returns the keys of the node groups of a relay.
func groupsOf(s *admin.Status) (keys []string) {
	for i := range s.Views {
		if v := &s.Views[i]; !v.Shared {
			keys = append(keys, v.Group)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// groupNames returns the names of the first groups.
func groupNames(keys []string) string {
	var names []string
	for _, key := range keys[:min(len(keys), fewNames)] {
		names = append(names, nodegroup.Name(key))
	}
	if len(keys) > fewNames {
		names = append(names, "…")
	}
	return strings.Join(names, "; ")
}

// onThisHost reports whether an address, host:port or unix:path, is on this host.
func onThisHost(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address[strings.LastIndex(address, "/")+1:]) // without the scheme of a gRPC target
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}
