package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checkNode runs tender check with a flag --node for each file, and returns its output and error.
func checkNode(t *testing.T, environ []string, stdin string, files ...string) (string, error) {
	t.Helper()
	cmd := newCheckCommand(host{environ: func() []string { return append([]string{"TENDER_NODE_ID=relay"}, environ...) }})
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	var args []string
	for _, file := range files {
		args = append(args, "--node", file)
	}
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	return out.String(), err
}

// writeFile writes a file to a new temporary directory, and returns its path.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Client features: those of the relay, and two that put clients into groups of their own.
const (
	ownFeatures = `"xds.config.supports-resource-ttl","xds.config.resource-in-sotw"`
	noOver      = "envoy.lb.does_not_support_overprovisioning"
	anyStruct   = "envoy.config.require-any-fields-contain-struct"
)

// TestB4_CheckShowsGroups verifies the output of tender check --node: the key of a group, the Node that the origin
// receives, and the fields of the client that it does not receive.
func TestB4_CheckShowsGroups(t *testing.T) {
	const envoy = `
id: edge-1
cluster: edge
locality: {region: r1, zone: z1}
metadata: {env: prod, deep: {tier: 1, none: null, list: [a, {b: 2}]}}
user_agent_name: envoy
user_agent_build_version: {version: {major_number: 1, minor_number: 36}, metadata: {ssl: BoringSSL}}
client_features: [a.b]
extensions: [{name: x}]
`
	tests := []struct{ name, by, node, want string }{
		{"default", "", envoy, `group user_agent_name=envoy: 1 node
  the origin sees {"id":"relay","cluster":"tender","user_agent_name":"envoy","user_agent_version":"dev","client_features":[` + ownFeatures + `]}
  stdin:2  edge-1  not shown: client_features[a.b], cluster, extensions, id, locality, metadata, user_agent_build_version
`},
		{"no field", "none", "user_agent_name: tender\ncluster: tender\n", `group all: 1 node
  the origin sees {"id":"relay","cluster":"tender","user_agent_name":"tender","user_agent_version":"dev","client_features":[` + ownFeatures + `]}
  stdin:1  -  shown in full
`},
		{"parts of fields", "locality.zone,metadata.deep.tier,metadata.deep.none,user_agent_version", envoy,
			`group locality.zone=z1,metadata.deep.tier=1,metadata.deep.none=null,user_agent_version=1: 1 node
  the origin sees {"id":"relay","cluster":"tender","metadata":{"deep":{"none":null,"tier":1}},"locality":{"zone":"z1"},"user_agent_name":"tender","user_agent_build_version":{"version":{"major_number":1}},"client_features":[` + ownFeatures + `]}
  stdin:2  edge-1  not shown: client_features[a.b], cluster, extensions, id, locality.region, metadata.deep.list, metadata.env, ` +
				`user_agent_build_version.metadata, user_agent_build_version.version.minor_number, user_agent_name
`},
		{"list, and a null that the origin does not receive", "metadata.deep.list", "metadata: {deep: {list: [a, {b: 2}]}, none: null}\n", `group metadata.deep.list=["a",{"b":2}]: 1 node
  the origin sees {"id":"relay","cluster":"tender","metadata":{"deep":{"list":["a",{"b":2}]}},"user_agent_name":"tender","user_agent_version":"dev","client_features":[` + ownFeatures + `]}
  stdin:1  -  not shown: metadata.none
`},
		{"node of a bootstrap", "", `{"node": {"id": "g"}, "xds_servers": []}`, `group user_agent_name=: 1 node
  the origin sees {"id":"relay","cluster":"tender","user_agent_version":"dev","client_features":[` + ownFeatures + `]}
  stdin:1  g  not shown: id
    it has no user_agent_name, which Envoys and gRPC clients fill in themselves
`},
		{"text that controls a terminal", "cluster", `cluster: "\e[31m"`, `group cluster=\u001b[31m: 1 node
  the origin sees {"id":"relay","cluster":"\u001b[31m","user_agent_name":"tender","user_agent_version":"dev","client_features":[` + ownFeatures + `]}
  stdin:1  -  shown in full
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := checkNode(t, []string{"TENDER_NODE_GROUP_BY=" + tt.by}, tt.node, "-")
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("tender check --node prints\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// TestI7_CheckSaysWhichStageANodeIsIn verifies that tender check --node prints the stage of TENDER_ROLLOUT of each
// Node, and no stage if TENDER_ROLLOUT is off.
func TestI7_CheckSaysWhichStageANodeIsIn(t *testing.T) {
	environ := []string{"TENDER_SNAPSHOT_DIR=/d", "TENDER_DELTA_VERSIONS=content", "TENDER_ROLLOUT=metadata.canary=true 10m, cluster=\x1b* 1h, 50% approve"}
	const nodes = "{id: c, metadata: {canary: true}}\n---\n{id: c, cluster: \"\\e[1m\"}\n---\nid: c\n---\nid: b\n---\ncluster: none\n---\n{id: c, user_agent_name: tender}"
	got, err := checkNode(t, environ, nodes, "-")
	if err != nil {
		t.Fatal(err)
	}
	var stages []string
	for line := range strings.SplitSeq(got, "\n") {
		if strings.Contains(line, "rollout") {
			stages = append(stages, strings.TrimSpace(line))
		}
	}
	want := []string{
		"rollout stage 1 of 3: metadata.canary=true 10m",
		`rollout stage 2 of 3: cluster=\u001b* 1h`,
		"rollout stage 3 of 3: 50% approve",
		"in no rollout stage: it is served changes after the last one",
		"in no rollout stage: it is served changes after the last one",
		"in no rollout stage: it is served changes after the last one",
	}
	if !slices.Equal(stages, want) {
		t.Errorf("tender check --node prints\n%s\nwant the stages\n%s", got, strings.Join(want, "\n"))
	}
	if got, err := checkNode(t, nil, nodes, "-"); err != nil || strings.Contains(got, "rollout") {
		t.Errorf("tender check --node without TENDER_ROLLOUT: error %v, output\n%s\nwant no stage", err, got)
	}
}

// TestB4_CheckSaysWhichFallTogether verifies that Nodes of several documents and files are listed by group.
func TestB4_CheckSaysWhichFallTogether(t *testing.T) {
	one := writeFile(t, "one.yaml", "# clients\nid: a\ncluster: red\n--- # the second\nid: b\ncluster: blue\n---\n\n---\nadmin: {}\nnode:\n  id: c\n  cluster: red\n")
	two := writeFile(t, "two.json", "{\n\t\"cluster\": \"blue\",\n\t\"id\": \"d\"\n}\n")
	got, err := checkNode(t, []string{"TENDER_NODE_GROUP_BY=cluster"}, "id: e", one, two, "-")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.SplitSeq(got, "\n") {
		if !strings.HasPrefix(line, "  the origin sees ") {
			lines = append(lines, line)
		}
	}
	want := "group cluster=red: 2 nodes\n  " + one + ":2  a  not shown: id\n  " + one + ":11  c  not shown: id\n\n" +
		"group cluster=blue: 2 nodes\n  " + one + ":5  b  not shown: id\n  " + two + ":1  d  not shown: id\n\n" +
		"group cluster=: 1 node\n  stdin:1  e  not shown: id\n"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("tender check --node prints\n%s\nwant\n%s", got, want)
	}
}

// TestR143_CheckTellsFeaturesApart verifies that client features that change the content of responses put clients into
// separate groups, and that the order of features does not matter.
func TestR143_CheckTellsFeaturesApart(t *testing.T) {
	for _, by := range []string{"none", "user_agent_name"} {
		nodes := []string{
			"{id: both, client_features: [" + noOver + ", x, " + anyStruct + "]}",
			"{id: reversed, client_features: [" + anyStruct + ", " + noOver + "]}",
			"{id: one, client_features: [" + noOver + "]}",
			"{id: other, client_features: [x]}",
		}
		got, err := checkNode(t, []string{"TENDER_NODE_GROUP_BY=" + by}, strings.Join(nodes, "\n---\n"), "-")
		if err != nil {
			t.Fatal(err)
		}
		groups := strings.Split(got, "\n\n")
		if len(groups) != 3 {
			t.Fatalf("by %s: %d groups, want 3:\n%s", by, len(groups), got)
		}
		for i, want := range []struct{ ids, features string }{
			{"both reversed", `,"` + anyStruct + `","` + noOver + `"`},
			{"one", `,"` + noOver + `"`},
			{"other", ""},
		} {
			if !strings.Contains(groups[i], `"client_features":[`+ownFeatures+want.features+"]}") {
				t.Errorf("by %s: features that the origin receives, want those of the relay and %q:\n%s", by, want.features, groups[i])
			}
			for _, id := range strings.Fields(want.ids) {
				if !strings.Contains(groups[i], "  "+id+"  ") {
					t.Errorf("by %s: the group does not contain %s:\n%s", by, id, groups[i])
				}
			}
		}
	}
}

// TestCheckNodeRefuses verifies that the error for invalid input contains its file and line, and the allowed input.
func TestCheckNodeRefuses(t *testing.T) {
	const allowed = "; allowed: a Node (envoy.config.core.v3.Node) in JSON or YAML, or an object with one in its field node"
	tests := []struct{ name, input, want string }{
		{"unknown field", "id: a\n\nclustr: b\n", `stdin:3: unknown field "clustr"` + allowed},
		{"in the second document", "id: a\n---\nid: b\n---x\n", `stdin:4: `},
		{"of the second document", "id: a\n---\n\nnode:\n  id: b\n  metadata:\n    x: 1\n  locality:\n    zonne: z\n", `stdin:9: unknown field "zonne"` + allowed},
		{"wrong type", "{\n\t\"id\": \"a\",\n\t\"locality\": [1]\n}", `stdin:3: unexpected token [` + allowed},
		{"a number for a text", "id: 7\n", `stdin:1: invalid value for string field id` + allowed},
		{"not a Node", "static_resources: {}\nadmin: {}\n", `stdin:`},
		{"a list", "- id: a\n", `stdin:1: unexpected token [` + allowed},
		{"no node in the bootstrap", "admin: {}\nnode:\n", `stdin:2: unexpected token null` + allowed},
		{"key twice", "id: a\nid: b\n", `stdin:2: key "id" already set in map` + allowed},
		{"not YAML", "id: [\n", `stdin:1: did not find expected node content` + allowed},
		{"empty", "", `stdin: the file contains no message` + allowed},
		{"only comments", "# a\n---\n# b\n", `stdin: the file contains no message` + allowed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := checkNode(t, nil, tt.input, "-")
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || !strings.HasSuffix(err.Error(), allowed) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got error  %v\nwant %s", err, tt.want)
			}
			if out != "" {
				t.Errorf("output %q besides the error, want none", out)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	if _, err := checkNode(t, nil, "", missing); err == nil || !strings.Contains(err.Error(), "read nodes: open "+missing+": ") {
		t.Errorf("missing file: got error %v, want one with its path", err)
	}
}

// TestCheckNodeNeedsAGoodConfiguration verifies that tender check --node prints no groups for an invalid configuration,
// and that TENDER_ORIGIN may be unset.
func TestCheckNodeNeedsAGoodConfiguration(t *testing.T) {
	out, err := checkNode(t, []string{"TENDER_NODE_GROUP_BY=zone"}, "id: a", "-")
	if err == nil || !strings.HasPrefix(err.Error(), `TENDER_NODE_GROUP_BY="zone": `) || out != "" {
		t.Errorf("got output %q, error %v, want only the error of the variable", out, err)
	}
	out, err = checkNode(t, []string{"TENDER_ORIGIN=file:///etc/tender"}, "id: a", "-")
	if err != nil || !strings.HasSuffix(out, "\n\nTENDER_ORIGIN is a directory: it ignores the Node, and all groups get the same resources.\n") {
		t.Errorf("file origin: got %q, error %v, want a note that a directory receives no Node", out, err)
	}
}

// TestB4_CheckReadsBootstraps verifies that tender check --node accepts the bootstraps in deploy.
func TestB4_CheckReadsBootstraps(t *testing.T) {
	for _, pattern := range []string{"../../deploy/envoy/delta-*.yaml", "../../deploy/grpc/*.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 2 {
			t.Fatalf("%s: files %v, error %v, want at least 2 bootstraps", pattern, files, err)
		}
		got, err := checkNode(t, []string{"TENDER_NODE_GROUP_BY=cluster,metadata.env"}, "", files...)
		if first, _, _ := strings.Cut(got, "\n"); err != nil || !strings.HasSuffix(first, `metadata.env="prod": `+strconv.Itoa(len(files))+" nodes") {
			t.Errorf("tender check --node of %s: error %v, output\n%s\nwant one group with all Nodes", pattern, err, got)
		}
	}
}
