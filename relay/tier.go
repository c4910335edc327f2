package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/page"
	"github.com/xdstender/tender/relay/peers"
)

// tier returns the client for the peers of the relay, or nil if TENDER_PEERS is off.
func (r overview) tier() admin.Tier {
	if len(r.cfg.Peers) == 0 {
		return nil
	}
	return peers.New(peers.Config{Targets: r.cfg.Peers, TLS: r.credentials.Peers})
}

// pageConfig returns the data sources of the status page.
func (r overview) pageConfig() page.Config {
	cfg := page.Config{
		Status: r.status, Fleet: r.fleet(), History: &r.history, Rollouts: r.groups.rollouts.statuses, Logger: r.log,
	}
	if tier := r.tier(); tier != nil {
		cfg.Tier = func(ctx context.Context) admin.FleetStatus { return tier.Status(ctx, r.summary()) }
	}
	return cfg
}

// summary returns the state of the relay that its peers show (--fleet).
func (r overview) summary() *admin.FleetSummary {
	status := r.status()
	s := &admin.FleetSummary{
		Instance: r.instance, NodeID: r.cfg.NodeID, Version: r.version, Ready: status.Relay.Ready,
		Streams: status.Relay.Streams,
		Frozen:  []string{}, Views: []admin.FleetView{},
	}
	if clients, err := r.fleet().Clients(admin.ClientQuery{Sort: admin.ByLag}); err == nil {
		s.Refusing, s.Lagging = clients.Totals.Refusing, clients.Totals.Lagging
	}
	for _, o := range status.Origins {
		s.Held += o.Held
		if o.Frozen {
			s.Frozen = append(s.Frozen, o.Name)
		}
	}
	s.Held += status.Validation.Held()
	digests := r.groups.groupGenerations().digests()
	s.Omitted = max(len(status.Views)-admin.MaxFleetViews, 0)
	for _, v := range status.Views[:len(status.Views)-s.Omitted] {
		shown := admin.FleetView{Group: v.Group, Origin: v.Origin, Shared: v.Shared, Versions: map[string]string{}}
		for _, t := range v.Types {
			if t.Version != "" {
				shown.Versions[t.TypeURL] = contentVersion(t.Version)
			}
		}
		if shown.Generation = digests[generations.Key{Origin: v.Origin, Group: v.Group,
			Shared: v.Shared}]; r.groups.generations == nil {
			shown.Generation = versionsDigest(shown.Versions)
		}
		s.Views = append(s.Views, shown)
	}
	return s
}

// contentVersion returns the part of a version that identifies the content: the text after the last "~" (B.2). The text
// before may differ between replicas.
func contentVersion(version string) string { return version[strings.LastIndexByte(version, '~')+1:] }

// versionsDigest returns a digest of versions, or an empty string if there are none.
func versionsDigest(versions map[string]string) string {
	if len(versions) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, typeURL := range slices.Sorted(maps.Keys(versions)) {
		_, _ = sum.Write([]byte(typeURL + "\x00" + versions[typeURL] + "\x00")) // a hash never fails
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
