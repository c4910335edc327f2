package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// echoFleet returns each query as text, in the field Next or Name.
type echoFleet struct{}

func (echoFleet) Clients(q admin.ClientQuery) (admin.Clients, error) {
	return admin.Clients{Next: fmt.Sprintf("%+v", q)}, nil
}

func (echoFleet) Client(number uint64, q admin.ClientResourceQuery) (admin.ClientDetail, error) {
	if number == 404 {
		return admin.ClientDetail{}, admin.Refuse(http.StatusNotFound, errors.New("there is no client 404"))
	}
	return admin.ClientDetail{Next: fmt.Sprintf("%d %+v", number, q)}, nil
}

func (echoFleet) Resources(q admin.ResourceQuery) (admin.Resources, error) {
	return admin.Resources{Next: fmt.Sprintf("%+v", q)}, nil
}

func (echoFleet) Resource(c admin.ResourceChoice) (admin.ResourceDetail, error) {
	return admin.ResourceDetail{Name: fmt.Sprintf("%+v", c)}, nil
}

func (echoFleet) History(c admin.HistoryChoice) (admin.History, error) {
	return admin.History{Name: fmt.Sprintf("%+v", c)}, nil
}

// withRollouts returns each query about rollouts as text, in the field Next or Origin.
func withRollouts(cfg *admin.Config) {
	cfg.Rollouts = func(origin string) (admin.Rollouts, error) {
		if origin == "x" {
			return admin.Rollouts{}, admin.Refuse(http.StatusNotFound, errors.New("there is no origin x"))
		}
		return admin.Rollouts{Rollouts: []*rollout.Status{{Origin: origin}}}, nil
	}
	cfg.RolloutDiff = func(_ context.Context, c admin.RolloutChoice) (admin.RolloutDiff, error) {
		return admin.RolloutDiff{Next: fmt.Sprintf("%+v", c)}, nil
	}
	cfg.ThawDiff, cfg.PendingDiff = cfg.RolloutDiff, cfg.RolloutDiff
}

// TestFleetParameters verifies that invalid parameters are refused. Otherwise, a misspelt filter would select
// everything.
func TestFleetParameters(t *testing.T) {
	const cds = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	r := newRig(t, "tcp", withRollouts)
	for _, tt := range []struct {
		path string
		code int
		want string // query or error
	}{
		{"clients", 200, "{Type: ID: Node: Cluster: Zone: Group: Sync: Rejected:false Stalled:false Relays:false Sort:lag NoTotals:false Page:{Limit:100 After:}}"},
		{
			"clients?type=cds&node=n&group=g&rejected=true&stalled=false&sort=number&limit=0&after=a", 200,
			"{Type:" + cds + " ID: Node:n Cluster: Zone: Group:g Sync: Rejected:true Stalled:false Relays:false Sort:number NoTotals:false Page:{Limit:0 After:a}}",
		},
		{"clients?type=a/b.C", 200, "{Type:a/b.C ID: Node: Cluster: Zone: Group: Sync: Rejected:false Stalled:false Relays:false Sort:lag NoTotals:false Page:{Limit:100 After:}}"},
		{"clients?id=i&cluster=c&zone=z&sync=in-sync", 200, "{Type: ID:i Node: Cluster:c Zone:z Group: Sync:in-sync Rejected:false Stalled:false Relays:false Sort:lag NoTotals:false Page:{Limit:100 After:}}"},
		{"clients?totals=false&sort=number&limit=1", 200, "{Type: ID: Node: Cluster: Zone: Group: Sync: Rejected:false Stalled:false Relays:false Sort:number NoTotals:true Page:{Limit:1 After:}}"},
		{"clients?totals=false", 400, "totals=false: want sort=number, because other orders need all clients"},
		{"clients?sync=synced", 400, "sync=synced: want rejecting, stalled, behind, unknown, in-sync"},
		{"clients?type=clusters", 400, "type=clusters: want a type URL, or a short name such as cds"},
		{"clients?rejected=yes", 400, "rejected=yes: want true or false"},
		{"clients?sort=id", 400, "sort=id: want lag, number"},
		{"clients?limit=1001", 400, "limit=1001: want 0 to 1000"},
		{"clients?limit=-1", 400, "limit=-1: want 0 to 1000"},
		{"clients?nodes=a", 400, `unknown parameter "nodes": want type, id, node, cluster, zone, group, sync, rejected, stalled, relays, sort, totals, limit, after`},
		{"clients?node=a&node=b", 400, "node occurs 2 times, want once"},
		{"clients?%zz", 400, `the query is malformed: invalid URL escape "%zz"`},
		{"clients/7?state=rejected", 200, "7 {Type: State:rejected Page:{Limit:100 After:}}"},
		{"clients/7?state=bad", 400, "state=bad: want not_sent, sent, accepted, rejected, not_accepted"},
		{"clients/x", 400, `the client number is "x", want digits`},
		{"clients/404", 404, "there is no client 404"},
		{"resources?type=cds&contains=a&limit=5", 200, "{Type:" + cds + " Group: Contains:a Page:{Limit:5 After:}}"},
		{"resources?type=cds&name=&format=yaml", 200, "{Type:" + cds + " Name: Group: YAML:true Limit:100}"},
		{"resources?type=cds&name=a&contains=b", 400, `unknown parameter "contains": want type, name, group, format, limit`},
		{"resources?name=a", 400, "type is empty: want a type URL, or a short name such as cds"},
		{"rollouts?origin=x", 404, "there is no origin x"},
		{"rollouts?type=cds", 400, `unknown parameter "type": want origin`},
		{"rollout/diff", 200, "{Origin: Type: Name: Group: Page:{Limit:100 After:}}"},
		{"rollout/diff?origin=o&type=cds&name=n&group=g&limit=7&after=a", 200,
			"{Origin:o Type:" + cds + " Name:n Group:g Page:{Limit:7 After:a}}"},
		{"thaw/diff?origin=o&type=cds&name=n&group=g&limit=7&after=a", 200,
			"{Origin:o Type:" + cds + " Name:n Group:g Page:{Limit:7 After:a}}"},
		{"thaw/diff?to=1m", 400, `unknown parameter "to": want origin, type, name, group, limit, after`},
		{"rollout/diff?name=n", 400, "type is missing: a name needs a type URL, or a short name such as cds"},
		{"rollout/diff?type=clusters", 400, "type=clusters: want a type URL, or a short name such as cds"},
	} {
		resp, text := r.ask(r.admin, http.MethodGet, "/api/v1/"+tt.path, "")
		var got struct{ Next, Name, Error string }
		err := json.Unmarshal([]byte(text), &got)
		if err != nil || resp.StatusCode != tt.code || got.Next+got.Name+got.Error != tt.want {
			t.Errorf("GET /api/v1/%s: %s %s, want %d, %s", tt.path, resp.Status, text, tt.code, tt.want)
		}
	}
}

// TestRolloutsAreOff verifies the response to requests for rollouts without TENDER_ROLLOUT.
func TestRolloutsAreOff(t *testing.T) {
	off, on := newRig(t, "tcp"), newRig(t, "tcp", withRollouts)
	for _, path := range []string{"rollouts", "rollout/diff"} {
		resp, text := off.ask(off.admin, http.MethodGet, "/api/v1/"+path, "")
		if resp.StatusCode != http.StatusNotFound || !strings.Contains(text, "TENDER_ROLLOUT is off") {
			t.Errorf("GET /api/v1/%s: %s %s, want 404: TENDER_ROLLOUT is off", path, resp.Status, text)
		}
	}
	var got admin.Rollouts
	resp, text := on.ask(on.admin, http.MethodGet, "/api/v1/rollouts?origin=o", "")
	err := json.Unmarshal([]byte(text), &got)
	if err != nil || resp.StatusCode != http.StatusOK || len(got.Rollouts) != 1 || got.Rollouts[0].Origin != "o" {
		t.Errorf("GET /api/v1/rollouts?origin=o: %s %s, %v", resp.Status, text, err)
	}
}

// TestFleetOrigins verifies which origins a relay does not receive: those that are not connected, directories that cannot
// be read, and those with a view that has clients and no stream.
func TestFleetOrigins(t *testing.T) {
	s := admin.Status{
		Origins: []admin.Origin{
			{Name: "good", Connected: true, LastError: "of an earlier stream"},
			{Name: "gone", LastError: "connection refused"},
			{Name: "dir", Connected: true, LastError: "no such directory", Directory: &admin.Directory{BadCount: 2}},
			{Name: "idle", Connected: true},
			{Name: "partly", Connected: true},
			{Name: "shared", Connected: true},
		},
		Views: []admin.View{
			{Group: "g", Origin: "good", Streams: 1},
			{Group: "g", Origin: "idle", Stale: true},
			{Group: "g", Origin: "partly", Streams: 1},
			{Group: "h", Origin: "partly", Streams: 1, Stale: true},
			{Group: "all", Origin: "shared", Shared: true, Stale: true},
		},
	}
	want := []admin.TierOrigin{
		{Name: "good", Connected: true},
		{Name: "gone", Error: "connection refused"},
		{Name: "dir", Connected: true, Error: "no such directory", BadFiles: 2},
		{Name: "idle", Connected: true},
		{Name: "partly", Connected: true, StaleGroups: []string{"h"}},
		{Name: "shared", Connected: true, StaleShared: true},
	}
	got := s.TierOrigins()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("origins (-want +got):\n%s", diff)
	}
	for _, o := range got {
		if o.Receives() != (o.Name == "good" || o.Name == "idle") {
			t.Errorf("%+v: receives %t", o, o.Receives())
		}
	}
}
