package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cmd/tender/get"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// groupTimeout is how long tender get waits for the groups of a relay.
const groupTimeout = time.Second

// warnOfGroup returns a function that warns before a Node opens a node group of its own: the relay then keeps a view of
// the group, and subscribes at its origins for it. It asks the relay at the admin address if the server is on this host.
// Without an answer, or if that is no relay, there is no warning: tender get is for any server.
func warnOfGroup(h host) get.Warning {
	return func(ctx context.Context, address string, n *corepb.Node) string {
		if !onThisHost(address) {
			return ""
		}
		adminAt, err := adminAddress(h.environ())
		if err != nil || !onThisHost(adminAt) {
			return ""
		}
		client, err := newAdminClient(adminAt, nil, h.dial)
		if err != nil {
			return ""
		}
		client.http.Timeout = groupTimeout
		var s admin.Status
		if err := client.get(ctx, "/api/v1/status", &s); err != nil || s.Relay.NodeGroupBy == nil {
			return ""
		}
		group, _ := nodegroup.Sort(n, new(corepb.Node), s.Relay.NodeGroupBy)
		if slices.ContainsFunc(s.Views, func(v admin.View) bool { return !v.Shared && v.Group == group }) {
			return ""
		}
		return fmt.Sprintf("the relay at %s has no node group %s: it opens the group for this command; --node-file and --metadata choose another one", adminAt, nodegroup.Name(group))
	}
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
