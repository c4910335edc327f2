package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A listedFleet has clients by relay. It returns pages of two clients, and only clients with the node ID or the state of
// a query.
type listedFleet struct {
	admin.Fleet
	clients   []admin.Client
	resources []admin.ClientResource
}

// Clients implements admin.Fleet.
func (f *listedFleet) Clients(q admin.ClientQuery) (admin.Clients, error) {
	out := admin.Clients{Relay: "relay-0", Totals: admin.ClientTotals{Streams: len(f.clients)}, Clients: []admin.Client{}}
	first, _ := strconv.Atoi(q.After)
	for i := first; i < len(f.clients); i++ {
		if len(out.Clients) == 2 {
			out.Next = strconv.Itoa(i)
			break
		}
		if c := f.clients[i]; (q.ID == "" || c.NodeID == q.ID) && (q.Sync == "" || c.Sync == q.Sync) {
			out.Clients = append(out.Clients, c)
		}
	}
	return out, nil
}

// Client implements admin.Fleet.
func (f *listedFleet) Client(number uint64, q admin.ClientResourceQuery) (admin.ClientDetail, error) {
	at := slices.IndexFunc(f.clients, func(c admin.Client) bool { return c.Number == number })
	if at < 0 {
		return admin.ClientDetail{}, admin.Refuse(http.StatusNotFound, fmt.Errorf("there is no client %d", number))
	}
	d := admin.ClientDetail{Client: f.clients[at], States: make(map[string]int), Resources: []admin.ClientResource{}}
	first, _ := strconv.Atoi(q.After)
	for i, r := range f.resources {
		d.States[r.State]++
		switch {
		case i < first || q.State == admin.NotAccepted && r.State == "accepted":
		case len(d.Resources) < 2:
			d.Resources = append(d.Resources, r)
		case d.Next == "":
			d.Next = strconv.Itoa(i)
		}
	}
	return d, nil
}

// exampleFleet has the clients in the help of tender clients.
func exampleFleet(now time.Time) *listedFleet {
	typ := func(typeURL, name, sync string, lag float64) admin.ClientType {
		return admin.ClientType{TypeURL: typeURL, Name: name, Sync: sync, LagSeconds: lag, Wildcard: true, AcceptedAt: now.Add(-41 * time.Second)}
	}
	types := func(cds, eds, lds string, lag float64) []admin.ClientType {
		all := []admin.ClientType{typ(wire.ClusterType, "cds", cds, 0), typ(wire.EndpointType, "eds", eds, lag), typ(wire.ListenerType, "lds", lds, 0)}
		return slices.DeleteFunc(all, func(t admin.ClientType) bool { return t.Sync == "" })
	}
	began := now.Add(-2 * time.Hour)
	rejecting := types(admin.Rejecting, admin.InSync, admin.InSync, 0)
	rejecting[0].Rejecting = true
	rejecting[0].Rejection = &admin.Rejection{At: now.Add(-41 * time.Second), Code: "INVALID_ARGUMENT", Detail: "unknown http filter"}
	known := func(version string) admin.ClientVersion { return admin.ClientVersion{Known: true, Version: version} }
	return &listedFleet{
		clients: []admin.Client{
			{Number: 9, NodeID: "edge-9", Group: "pay", Sync: admin.Unknown, Began: now.Add(-1200 * time.Millisecond), Types: types(admin.Unknown, "", "", 0)},
			{Number: 17, NodeID: "edge-4", Group: "shop", Sync: admin.Rejecting, Began: now.Add(-10 * time.Minute), Types: rejecting, Variant: "delta", Address: "10.0.0.4:51442"},
			{Number: 2, NodeID: "edge-2", Group: "shop", Sync: admin.Behind, Began: began, Types: types(admin.InSync, admin.Behind, admin.InSync, 41)},
			{Number: 1, NodeID: "edge-1", Group: "shop", Sync: admin.InSync, Began: began, Types: types(admin.InSync, admin.InSync, admin.InSync, 0)},
		},
		resources: []admin.ClientResource{
			{TypeURL: wire.ClusterType, Name: "cart", Version: "4", State: "rejected", Sent: known("4")},
			{TypeURL: wire.ClusterType, Name: "pay", Version: "2", State: "accepted", Sent: known("2"), Accepted: known("2")},
			{TypeURL: wire.ClusterType, Name: "old", State: "not_sent", Sent: known("1"), Accepted: known("1")},
			{TypeURL: wire.ClusterType, Name: "web", Version: "8", State: "sent", Sent: known("8"), Accepted: known("7")},
		},
	}
}

// TestClientsHelp verifies that the help has the output as it is printed.
func TestClientsHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, now := exampleFleet(time.Now()), time.Now()
		f.resources = append(f.resources[:2], f.resources[3])
		f.resources[2].State = "rejected" // in the same response
		f.clients[1].Types = f.clients[1].Types[:1]
		var list, one strings.Builder
		all := &listedClients{[]relayClients{{Clients: &admin.Clients{Relay: "relay-0", Clients: exampleFleet(now).clients}}}}
		detail, err := f.Client(17, admin.ClientResourceQuery{})
		if err != nil {
			t.Fatal(err)
		}
		detail.Resources = f.resources
		if err := printClients(&list, all, false, now); err != nil {
			t.Fatal(err)
		}
		if err := printFound(&one, []shownClient{{Relay: "relay-0", ClientDetail: detail}}, false, false, now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(clientsExample, list.String()); diff != "" {
			t.Errorf("tender clients (-help +printed):\n%s", diff)
		}
		if diff := cmp.Diff(clientExample, one.String()); diff != "" {
			t.Errorf("tender clients ID (-help +printed):\n%s", diff)
		}
		_, help, _ := execute("clients", "--help")
		if !strings.Contains(help, clientsExample) || !strings.Contains(help, clientExample) {
			t.Errorf("tender clients --help lacks an example:\n%s", help)
		}
	})
}

// TestClients verifies that all pages are read, that filters are sent, and what is printed of one client.
func TestClients(t *testing.T) {
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, func(cfg *admin.Config) { cfg.Fleet = exampleFleet(time.Now()) }))
	for _, tt := range []struct {
		args string
		code int
		want []string
	}{
		{"clients", exitOK, []string{"4 clients: 1 rejecting, 0 stalled, 1 behind, 1 unknown, 1 in sync", "edge-9 pay relay-0 unknown unknown - -"}},
		{"clients --state behind", exitOK, []string{"1 of 4 clients: 0 rejecting", "edge-2 shop relay-0 behind in sync behind 41s in sync"}},
		{"clients --state stalled", exitOK, []string{"0 of 4 clients: 0 rejecting"}},
		{"clients -o wide", exitOK, []string{"NODE GROUP RELAY # CLUSTER LOCALITY ADDRESS STATE", "edge-4 shop relay-0 17 - - 10.0.0.4:51442 rejecting"}},
		{"clients -o yaml", exitOK, []string{"relays: - address: self relay: relay-0", "sync: in-sync"}},
		{"clients edge-4", exitOK, []string{
			"#17 edge-4 of group shop at relay-0: rejecting", "differ from what is served to the group: 3 of 4", "cds cart 4 unknown 4 REJECTED", "cds old 1 1 - not sent cds web 8 7 8 no answer yet cds pay 2 2 2 accepted",
		}},
		{"clients edge-4 --diff", exitOK, []string{"differ from what is served to the group: 3 of 4", "cds web 8 7 8 no answer yet"}},
		{"clients #2", exitOK, []string{"#2 edge-2 of group shop: behind"}},
		{"clients #99", exitFailure, []string{"there is no client 99"}},
		{"clients #x", exitFailure, []string{`the client number is "x"`}},
		{"clients nobody", exitFailure, []string{`no client has the node ID "nobody"`}},
		{"clients --state synced", exitUsage, []string{"--state=synced: want rejecting, stalled, behind, unknown, in-sync"}},
		{"clients --diff", exitUsage, []string{"--diff: want the ID of a client"}},
		{"clients edge-4 --group shop", exitUsage, []string{"--group: want no ID of a client"}},
		{"clients #4 --tier", exitUsage, []string{"#4: want a node ID with --tier"}},
		{"clients --tier", exitFailure, []string{"TENDER_PEERS is off"}},
	} {
		must(t, tt.code, tt.want, strings.Fields(tt.args)...)
	}
	_, stdout, _ := execute("clients", "edge-4", "--diff")
	if strings.Contains(stdout, "pay") {
		t.Errorf("tender clients edge-4 --diff prints a resource that does not differ:\n%s", stdout)
	}
}

// TestClientsJSON verifies that the JSON has the fields of the API, and no others besides those of the command.
func TestClientsJSON(t *testing.T) {
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, func(cfg *admin.Config) { cfg.Fleet = exampleFleet(time.Now()) }))
	_, stdout, _ := execute("clients", "-o", "json")
	checkOutput(t, "clients", stdout)
	var all listedClients
	decode := json.NewDecoder(strings.NewReader(stdout))
	if decode.DisallowUnknownFields(); decode.Decode(&all) != nil || len(all.Relays) != 1 || len(all.Relays[0].Clients.Clients) != 4 || all.Relays[0].Next != "" {
		t.Errorf("tender clients -o json: %s, want four clients of one relay", stdout)
	}
	var one foundClients
	_, stdout, _ = execute("clients", "edge-4", "-o", "json")
	checkOutput(t, "clients ID", stdout)
	decode = json.NewDecoder(strings.NewReader(stdout))
	if decode.DisallowUnknownFields(); decode.Decode(&one) != nil || len(one.Clients) != 1 || len(one.Clients[0].Resources) != 4 || one.Clients[0].Relay != "relay-0" {
		t.Errorf("tender clients edge-4 -o json: %s, want one client with four resources", stdout)
	}
}

// A queriedTier answers requests to one peer, and not to another.
type queriedTier struct {
	admin.Tier
	fleet *listedFleet
}

// Status implements [admin.Tier].
func (q queriedTier) Status(_ context.Context, own *admin.TierSummary) admin.TierStatus {
	peer := &admin.TierSummary{NodeID: "relay-1"}
	return admin.TierStatus{Relays: []admin.TierRelay{
		{Address: admin.Self, TierSummary: own}, {Address: "peer:1", TierSummary: peer}, {Address: "broken:1", TierSummary: peer}, {Address: "closed:1", Error: "unreachable"},
	}}
}

// Query implements [admin.Tier].
func (q queriedTier) Query(_ context.Context, address, path, operator string, _ time.Duration) (json.RawMessage, error) {
	if address != "peer:1" {
		return nil, admin.Refuse(http.StatusBadGateway, fmt.Errorf("the relay at %s: it rains", address))
	}
	if strings.HasPrefix(path, "/api/v1/clients/1?") {
		detail, err := q.fleet.Client(1, admin.ClientResourceQuery{})
		detail.Next = "" // one page
		return json.RawMessage(mustJSON(detail)), err
	}
	page := admin.Clients{Relay: operator, Clients: q.fleet.clients[3:], Totals: admin.ClientTotals{Streams: 7}}
	return json.RawMessage(mustJSON(page)), nil
}

func mustJSON(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // the types of the API can be encoded
	}
	return text
}

// TestClientsOfTier verifies that the clients of a tier are those of all relays, and that the clients of a relay that
// cannot be asked are unknown.
func TestClientsOfTier(t *testing.T) {
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, func(cfg *admin.Config) {
		f := exampleFleet(time.Now())
		cfg.Fleet, cfg.Tier, cfg.Summary = f, queriedTier{fleet: f}, func() *admin.TierSummary { return &admin.TierSummary{NodeID: "relay-0"} }
	}))
	must(t, exitFailure, []string{
		"5 of 11 clients: ", "edge-1 shop local in-sync", "edge-1 shop relay-0 in-sync", "broken:1 UNREACHABLE: its clients are unknown", "the relay at broken:1: it rains",
		"closed:1 UNREACHABLE: its clients are unknown", "the clients of at least one relay are unknown",
	}, "clients", "--tier")
	must(t, exitFailure, []string{"#1 edge-1 of group shop at relay-0: in-sync", "#1 edge-1 of group shop at local: in-sync"}, "clients", "edge-1", "--tier")
	code, stdout, _ := execute("clients", "--tier", "-o", "json")
	var all listedClients
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != exitFailure || len(all.Relays) != 4 || all.Relays[2].Clients != nil || all.Relays[3].Error != "unreachable" {
		t.Errorf("tender clients --tier -o json: code %d, %s, want two relays with clients and two with errors", code, stdout)
	}
}

// TestClientsOfRelay verifies the output for a running relay with a client that is in sync and one that rejects a
// cluster.
func TestClientsOfRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("web"))
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{"TENDER_NODE_ID=relay-7"}})
		bad := func(*relaytest.Response) error { return fmt.Errorf("no such filter") }
		for _, options := range []relaytest.ClientOptions{
			{AutoAck: true, Node: relaytest.EnvoyNode("good")}, {AutoAck: true, Node: relaytest.EnvoyNode("bad"), Reject: bad, Variant: relaytest.SotW},
		} {
			r.Client(options).Subscribe(relaytest.ClusterType, "*")
		}
		time.Sleep(time.Second) // virtual time
		must(t, exitOK, []string{"2 clients: 1 rejecting, 0 stalled, 0 behind, 0 unknown, 1 in sync", "NODE GROUP RELAY STATE CDS SINCE", "good user_agent_name=envoy relay-7 in-sync in sync"}, "clients")
		must(t, exitOK, []string{"bad of group user_agent_name=envoy at relay-7: rejecting", "INVALID_ARGUMENT", "no such filter", "differ from what is served to the group: 1 of 1", "- ", "REJECTED"}, "clients", "bad")
		must(t, exitOK, []string{"the client has accepted all 1 resources"}, "clients", "good", "--diff")
	})
}
