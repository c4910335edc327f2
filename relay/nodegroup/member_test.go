package nodegroup

import (
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestMemberIsInGroup verifies that Member returns a Node of the group for each key that Sort makes.
func TestMemberIsInGroup(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{"a": `x,"y"`, "b": map[string]any{"c": []any{1.5, "z", nil}}, "": ""})
	if err != nil {
		t.Fatal(err)
	}
	build := &corepb.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corepb.BuildVersion{
		Version: &typepb.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
	}}
	for _, n := range []*corepb.Node{
		{},
		{Id: "a", Cluster: `b,c="d"`, UserAgentName: "envoy", UserAgentVersionType: build, Metadata: metadata, ClientFeatures: ContentFeatures},
		{Locality: &corepb.Locality{Region: "eu", Zone: "eu-1", SubZone: "x,"}, UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: "v2.1"}},
	} {
		for _, groupBy := range [][]string{
			nil, {"user_agent_name"}, {"metadata.a", "metadata.b", "id"}, {"metadata.b.c", "metadata.none", "cluster"},
			{"locality.region", "locality.zone", "locality.sub_zone", "user_agent_version"}, {"metadata.", "user_agent_version"},
		} {
			key, _ := Sort(n, new(corepb.Node), groupBy)
			if got, ok := Member(key, groupBy); !ok {
				t.Errorf("no member of group %q by %q, but %v", key, groupBy, got)
			}
		}
	}
	for _, key := range []string{"", "cluster=a", "user_agent_name=a,b", "user_agent_name=a,"} {
		if n, ok := Member(key, []string{"user_agent_name"}); ok {
			t.Errorf("%v is a member of %q, which is no key", n, key)
		}
	}
}
