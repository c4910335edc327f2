package config

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzLoadConfig checks for any values of variables that an error names the variable and is bounded, that no output
// contains control characters, and that Load returns the same configuration for the values that Table shows.
func FuzzLoadConfig(f *testing.F) {
	const between = "\x00" // no variable can contain it
	for _, tt := range goodValues {
		entries := []string{tt.name + "=" + tt.value}
		f.Add(strings.Join(append(entries, goodValueContext[tt.name]...), between))
	}
	for _, tt := range badValues {
		f.Add(tt.name + "=" + tt.value)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var environ []string
		for entry := range strings.SplitSeq(text, between) {
			environ = append(environ, prefix+entry)
		}
		cfg, err := Load(environ)
		table := cfg.Table()
		for _, s := range table {
			if strings.ContainsFunc(s.Value, unprintable) {
				t.Errorf("Load(%q): %s is shown as %q", environ, s.Variable, s.Value)
			}
		}
		if err != nil {
			checkErrors(t, environ, err)
			return
		}
		if strings.ContainsFunc(strings.ReplaceAll(text, between, ""), unprintable) {
			return // Table escapes it, which is another value and may be too long
		}
		if shown, _ := cfg.RolloutCheck.MarshalText(); string(shown) != string(cfg.RolloutCheck) {
			return // Table masks a part of it
		}
		again, err := Load(shownAs(table))
		if err != nil {
			t.Fatalf("Load(%q) is shown as %q, which Load rejects: %v", environ, shownAs(table), err)
		}
		if strings.Contains(text, "HEADERS=") {
			return // Table masks the values
		}
		if diff := cmp.Diff(cfg, again, cmpopts.IgnoreUnexported(Config{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("Load(%q) is shown as %q, which means (-first +shown):\n%s", environ, shownAs(table), diff)
		}
	})
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// checkErrors checks that each line of an error starts with a variable, and is printable and bounded.
func checkErrors(t *testing.T, environ []string, err error) {
	const longest = 4 << 10 // a quoted name, a quoted value, and the allowed values
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !strings.HasPrefix(line, prefix) && !strings.HasPrefix(line, `"`+prefix) {
			t.Errorf("Load(%q): error %q, want the name of a variable first", environ, line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) || len(line) > longest {
			t.Errorf("Load(%q): error %q is unprintable or too long", environ, line)
		}
	}
}

// shownAs returns the values in a table that are not defaults, in the format of os.Environ.
func shownAs(table []Setting) (environ []string) {
	for _, s := range table {
		if s.Source == "environment" && !strings.HasSuffix(s.Variable, "HEADERS") {
			environ = append(environ, s.Variable+"="+s.Value)
		}
	}
	return environ
}

// FuzzGroup checks that the relay presents the same Node for all clients of a node group. Otherwise a client could
// receive resources of others by a crafted Node.
func FuzzGroup(f *testing.F) {
	const by = "id,cluster,user_agent_name,user_agent_version,locality.region,metadata.a,metadata.b.c"
	f.Add(by, "a", "b", "envoy", "1.2", "r", `{"a":1,"b":{"c":[null]}}`, "a", "b", "envoy", "1.3", "r",
		`{"a":1.0,"b":{"c":[null],"d":2}}`)
	f.Add(by, "a,cluster=b", "", "", "", "", `{}`, "a", "b,cluster=", "", "", "", `{"a":null}`)
	f.Add("id", `"a"`, "", "", "v", "", `{"a":""}`, `\"a\"`, "", "", "\"", "", `{"a":"null"}`)
	f.Add("cluster,user_agent_name", "", "a-b", "c", "1", "", "{}", "", "a", "b-c", "1", "", "{}")
	f.Add("cluster,user_agent_name", "", "a-b", "c", "1", "", "{}", "", "a%2Db", "c", "1", "", "{}")
	f.Add("metadata.a,cluster", "", "", "", "1", "", `{"a":"1"}`, "", "", "", "1", "", `{"a":1}`)
	f.Add("cluster,metadata.a", "", "", "", "1", "", `{"a":""}`, "", "", "", "1", "", `{}`)
	f.Add("user_agent_version", "", "", "", "1", "", "{}", "", "", "", "build 1", "", "{}")
	f.Fuzz(func(t *testing.T, by, id1, cluster1, agent1, version1, region1, metadata1, id2, cluster2, agent2, version2,
		region2, metadata2 string) {
		cfg, err := Load([]string{"TENDER_NODE_GROUP_BY=" + by})
		if err != nil {
			t.Skip("not a list of fields")
		}
		one := aNode(t, id1, cluster1, agent1, version1, region1, metadata1)
		other := aNode(t, id2, cluster2, agent2, version2, region2, metadata2)
		key, shown := cfg.Group("v0", one)
		otherKey, otherShown := cfg.Group("v0", other)
		if key == otherKey && !proto.Equal(shown, otherShown) {
			t.Errorf("grouped by %q, %v and %v have the same key %q, but the relay presents %v and %v", by, one, other, key,
				shown, otherShown)
		}
		if len(cfg.NodeGroupBy) == 0 || slices.Contains(cfg.NodeGroupBy, "id") {
			return
		}
		named, err := Load([]string{
			"TENDER_NODE_GROUP_BY=" + by, "TENDER_NODE_ID={" + strings.Join(cfg.NodeGroupBy, "}-{") + "}",
		})
		if err != nil {
			t.Skip("fields cannot be part of an ID")
		}
		key, shown = named.Group("v0", one)
		otherKey, otherShown = named.Group("v0", other)
		if (key == otherKey) != (shown.GetId() == otherShown.GetId()) {
			t.Errorf("grouped by %q, %v and %v have the keys %q and %q, but the IDs %q and %q", by, one, other, key, otherKey,
				shown.GetId(), otherShown.GetId())
		}
	})
}

// aNode returns a Node that was encoded and decoded, so that it is valid UTF-8.
func aNode(t *testing.T, id, cluster, agent, version, region, metadata string) *corepb.Node {
	n := &corepb.Node{
		Id: id, Cluster: cluster, UserAgentName: agent,
		Locality: &corepb.Locality{Region: region, Zone: id, SubZone: cluster},
	}
	if number, isBuild := strings.CutPrefix(version, "build "); isBuild {
		v := &typepb.SemanticVersion{MajorNumber: uint32(len(number)), MinorNumber: 1}
		n.UserAgentVersionType = &corepb.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corepb.BuildVersion{Version: v}}
	} else if version != "" {
		n.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: version}
	}
	n.Metadata = new(structpb.Struct)
	if protojson.Unmarshal([]byte(metadata), n.Metadata) != nil {
		t.Skip("no metadata")
	}
	b, err := proto.Marshal(n)
	if err != nil {
		t.Skip("not UTF-8")
	}
	read := new(corepb.Node)
	if err := proto.Unmarshal(b, read); err != nil {
		t.Fatal(err)
	}
	return read
}
