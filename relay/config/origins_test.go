package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoadConfigOrigins(t *testing.T) {
	cfg, err := Load([]string{
		"TENDER_ORIGIN=a:1", "TENDER_ORIGINS=west=b:1, b:2; files=file:///etc/tender",
		"TENDER_ROUTES=type:lds=files; authority:west.example=west; authority:*=default",
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOrigins := Origins{
		{Name: "west", Targets: []string{"b:1", "b:2"}, Access: Access{TLS: TLSOff}},
		{Name: "files", Targets: []string{"file:///etc/tender"}, Access: Access{TLS: TLSOff}},
	}
	if diff := cmp.Diff(wantOrigins, cfg.Origins); diff != "" {
		t.Errorf("Origins (-want +got):\n%s", diff)
	}
	wantRoutes := Routes{
		{TypeURL: "type.googleapis.com/envoy.config.listener.v3.Listener", Origin: "files"},
		{Authority: "west.example", Origin: "west"},
		{Authority: AnyAuthority, Origin: PrimaryOrigin},
	}
	if diff := cmp.Diff(wantRoutes, cfg.Routes); diff != "" {
		t.Errorf("Routes (-want +got):\n%s", diff)
	}
}

// TestConflictingVariables checks that valid values that conflict with other variables are rejected, each with one
// error.
func TestConflictingVariables(t *testing.T) {
	tests := []struct {
		name    string
		environ []string
		want    string // prefixes of the lines of the error
	}{
		{"a route to a missing origin",
			[]string{"TENDER_ORIGINS=west=b:1", "TENDER_ROUTES=type:eds=west;authority:a=east"},
			`TENDER_ROUTES="type:eds=west;authority:a=east": "authority:a" has the origin "east", which is not in ` +
				`TENDER_ORIGINS; allowed: `},
		{"an origin without a route",
			[]string{"TENDER_ORIGINS=west=b:1;east=c:1", "TENDER_ROUTES=type:eds=west"},
			`TENDER_ROUTES="type:eds=west": the origin "east" of TENDER_ORIGINS has no route; allowed: `},
		{"an origin and no routes at all", []string{"TENDER_ORIGINS=west=b:1"},
			`TENDER_ROUTES="": the origin "west" of TENDER_ORIGINS has no route; allowed: `},
		{"routes to origins that were refused", []string{"TENDER_ORIGINS=west=b", "TENDER_ROUTES=type:eds=west"},
			`TENDER_ORIGINS="west=b": `},
		{"origins whose routes were refused", []string{"TENDER_ORIGINS=west=b:1", "TENDER_ROUTES=eds=west"},
			`TENDER_ROUTES="eds=west": `},
		{"REST on an xDS address", []string{"TENDER_LISTEN=:1,unix:/run/a", "TENDER_REST_LISTEN=unix:/run/a"},
			`TENDER_REST_LISTEN="unix:/run/a": "unix:/run/a" is also in TENDER_LISTEN; allowed: `},
		{"any free port twice", []string{"TENDER_LISTEN=localhost:0", "TENDER_REST_LISTEN=localhost:0"}, ""},
		{"load reports to a directory", []string{"TENDER_ORIGIN=file:///etc/tender", "TENDER_LRS=passthrough"},
			`TENDER_LRS="passthrough": TENDER_ORIGIN="file:///etc/tender" is a directory, which does not accept load ` +
				`reports; allowed: `},
		{"no load reports to a directory", []string{"TENDER_ORIGIN=file:///etc/tender", "TENDER_LRS=off"}, ""},
		{"a rollout without what it needs", []string{"TENDER_ROLLOUT=5% 10m"},
			`TENDER_ROLLOUT="5% 10m": requires TENDER_SNAPSHOT_DIR, because otherwise a restart would send unapproved changes to all clients; ` +
				`requires TENDER_DELTA_VERSIONS=content, because a rollout serves two versions of a resource at once; ` +
				`allowed: off, or one to four stages`},
		{"a rollout beside values that were refused",
			[]string{
				"TENDER_ROLLOUT=5% 10m", "TENDER_SNAPSHOT_DIR=a\tb", "TENDER_DELTA_VERSIONS=x",
			},
			"TENDER_SNAPSHOT_DIR=\nTENDER_DELTA_VERSIONS="},
		{"what is of no effect while rollouts are off",
			[]string{"TENDER_ROLLOUT=off", "TENDER_ROLLOUT_TYPES=cds", "TENDER_ROLLOUT_REJECTIONS=1",
				"TENDER_ROLLOUT_CHECK=http://a"}, ""},
		{"several, in the order of the table",
			[]string{
				"TENDER_ORIGIN=file:///a", "TENDER_LRS=aggregate", "TENDER_ROUTES=type:eds=west", "TENDER_LISTEN=:1",
				"TENDER_REST_LISTEN=:1",
			},
			"TENDER_ROUTES=\nTENDER_REST_LISTEN=\nTENDER_LRS="},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := Load(append(slices.Clip(tt.environ), "TENDER_ORIGIN=a:1")) // the first of several entries counts
			if tt.want == "" {
				if err != nil {
					t.Fatalf("Load(%q): %v", tt.environ, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("Load(%q) returns no error", tt.environ)
			}
			got, want := strings.Split(err.Error(), "\n"), strings.Split(tt.want, "\n")
			if len(got) != len(want) {
				t.Fatalf("Load(%q): %d errors, want %d:\n%v", tt.environ, len(got), len(want), err)
			}
			for i := range want {
				if !strings.HasPrefix(got[i], want[i]) {
					t.Errorf("Load(%q): error %s\nwant %s…", tt.environ, got[i], want[i])
				}
			}
			table := cfg.Table()
			for _, e := range Errors(err) {
				i := slices.IndexFunc(table, func(s Setting) bool { return s.Variable == e.Variables[0] })
				if source := table[i].Source; source != SourceRefused && source != SourceMissing {
					t.Errorf("Load(%q): the table shows %s as %s", tt.environ, e.Variables[0], source)
				}
			}
		})
	}
}
