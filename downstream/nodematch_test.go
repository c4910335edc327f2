package downstream

import (
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// nodeMatchers decodes matchers in JSON.
func nodeMatchers(t *testing.T, texts ...string) (all []*matcherpb.NodeMatcher) {
	t.Helper()
	for _, text := range texts {
		m := new(matcherpb.NodeMatcher)
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, m)
	}
	return all
}

// R141: a node matches if any matcher matches. A matcher matches if the id and all metadata match.
func TestR141_NodeMatchers(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{
		"env": "Prod", "weight": 5, "canary": true, "none": nil, "zones": []any{"a", "b"},
		"labels": map[string]any{"app": "shop"},
	})
	check.OK(t, err)
	n := &corepb.Node{Id: "edge-17", Metadata: metadata}
	meta := func(path, value string) string {
		var segments []string
		for key := range strings.SplitSeq(path, ".") {
			segments = append(segments, `{"key":"`+key+`"}`)
		}
		return `{"node_metadatas":[{"path":[` + strings.Join(segments, ",") + `],"value":` + value + `}]}`
	}
	for _, tt := range []struct {
		matchers []string
		want     bool
	}{
		{nil, true},
		{[]string{`{}`}, true},
		{[]string{`{"node_id":{"exact":"edge-17"}}`}, true},
		{[]string{`{"node_id":{"exact":"edge-1"}}`}, false},
		{[]string{`{"node_id":{"exact":"EDGE-17","ignore_case":true}}`}, true},
		{[]string{`{"node_id":{"prefix":"edge-"}}`}, true},
		{[]string{`{"node_id":{"suffix":"17"}}`}, true},
		{[]string{`{"node_id":{"contains":"ge-1"}}`}, true},
		{[]string{`{"node_id":{"safe_regex":{"regex":"edge-[0-9]+"}}}`}, true},
		{[]string{`{"node_id":{"safe_regex":{"regex":"edge|x"}}}`}, false}, // must match the whole text
		{[]string{`{"node_id":{"exact":"a"}}`, `{"node_id":{"exact":"edge-17"}}`}, true},
		{[]string{
			`{"node_id":{"exact":"edge-17"},` +
				`"node_metadatas":[{"path":[{"key":"env"}],"value":{"string_match":{"exact":"x"}}}]}`,
		}, false},
		{[]string{meta("env", `{"string_match":{"exact":"Prod"}}`)}, true},
		{[]string{meta("labels.app", `{"string_match":{"prefix":"sh"}}`)}, true},
		{[]string{meta("labels.app.x", `{"present_match":true}`)}, false},
		{[]string{meta("nothing", `{"present_match":true}`)}, false},
		{[]string{meta("none", `{"null_match":{}}`)}, true},
		{[]string{meta("nothing", `{"null_match":{}}`)}, false},
		{[]string{meta("canary", `{"bool_match":true}`)}, true},
		{[]string{meta("weight", `{"bool_match":false}`)}, false},
		{[]string{meta("weight", `{"double_match":{"exact":5}}`)}, true},
		{[]string{meta("weight", `{"double_match":{"range":{"start":1,"end":5}}}`)}, false},
		{[]string{meta("weight", `{"double_match":{"range":{"start":5,"end":6}}}`)}, true},
		{[]string{meta("zones", `{"list_match":{"one_of":{"string_match":{"exact":"b"}}}}`)}, true},
		{[]string{meta("zones", `{"list_match":{"one_of":{"string_match":{"exact":"c"}}}}`)}, false},
		{[]string{
			meta("env", `{"or_match":{"value_matchers":[{"bool_match":true},{"string_match":{"contains":"ro"}}]}}`),
		}, true},
	} {
		match, err := MatchNodes(nodeMatchers(t, tt.matchers...))
		if err != nil {
			t.Errorf("%s: %v", tt.matchers, err)
		} else if got := match(n); got != tt.want {
			t.Errorf("%s matches %t, want %t", tt.matchers, got, tt.want)
		}
	}
	const ofMetadata = "node_matchers[0].node_metadatas[0].value: "
	for text, want := range map[string]string{
		`{"node_id":{}}`: "node_matchers[0].node_id: match_pattern is",
		`{"node_id":{"safe_regex":{"regex":"("}}}`:    "node_matchers[0].node_id: safe_regex.regex: ",
		`{"node_metadatas":[{"path":[{"key":"a"}]}]}`: ofMetadata + "match_pattern is",
		meta("a", `{"list_match":{"one_of":{}}}`):     ofMetadata + "match_pattern is",
		meta("a", `{"or_match":{"value_matchers":[{"string_match":{}}]}}`): ofMetadata +
			"or_match.value_matchers[0]: match_pattern is",
	} {
		if _, err := MatchNodes(nodeMatchers(t, text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %s…", text, err, want)
		}
	}
	if match, _ := MatchNodes(nodeMatchers(t, `{"node_id":{"exact":"a"}}`)); match(nil) {
		t.Error("a client without a Node matches an id")
	}
}
