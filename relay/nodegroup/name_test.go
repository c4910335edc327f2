package nodegroup

import (
	"math/rand/v2"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest/check"
)

func TestName(t *testing.T) {
	for key, want := range map[string]string{
		"all":                   "all",
		"user_agent_name=envoy": "user_agent_name=envoy",
		`user_agent_name=envoy,metadata.NAMESPACE="shop",cluster=a`: `user_agent_name=envoy,NAMESPACE=shop,cluster=a`,
		`metadata.NAMESPACE=`:                           `NAMESPACE=`,
		`metadata.NAMESPACE=,id=a`:                      `NAMESPACE=,id=a`,
		`metadata.NAMESPACE=""`:                         `NAMESPACE=""`,
		`metadata.a="1",metadata.b=1,metadata.c="true"`: `a="1",b=1,c="true"`,
		`metadata.a.b="a,b",id="x,metadata.y=z"`:        `a.b="a,b",id="x,metadata.y=z"`,
		`metadata.a={"b":[1,"c,d"]},id=x`:               `a={"b":[1,"c,d"]},id=x`,
		`metadata.cluster="a",cluster=a`:                `metadata.cluster=a,cluster=a`,
		`metadata.a="x",` + ContentFeatures[0]:          `a=x,` + ContentFeatures[0],
		`metadata.a="shop`:                              `metadata.a="shop`,
		"xdstp://authority":                             "xdstp://authority",
	} {
		if got := Name(key); got != want || !Is(want, key) || !Is(key, key) || Is(want+"x", key) {
			t.Errorf("Name(%s) = %s, want %s", key, got, want)
		}
	}
}

// TestRandomNamesDiffer verifies that groups with different keys have different names.
func TestRandomNamesDiffer(t *testing.T) {
	groupBy := []string{"cluster", "metadata.a", "metadata.cluster", "metadata.b.c"}
	texts := []string{"", "x", "1", "true", "x,a=y", `"x"`, "a=x", "x y", "{}", `x",metadata.a="y`, "é", "\x01"}
	pick := func() any {
		switch text := texts[rand.IntN(len(texts))]; rand.IntN(4) {
		case 0:
			return float64(rand.IntN(2))
		case 1:
			return []any{text}
		case 2:
			return nil
		default:
			return text
		}
	}
	keys := make(map[string]string) // by name
	for range check.Rounds(3000) {
		fields := map[string]any{"a": pick(), "cluster": pick(), "b": map[string]any{"c": pick()}}
		for name, value := range fields {
			if value == nil && rand.IntN(2) == 0 {
				delete(fields, name)
			}
		}
		n := &corepb.Node{Cluster: strings.ToValidUTF8(texts[rand.IntN(len(texts))], ""), Metadata: check.Must(structpb.NewStruct(fields))}
		key, _ := Sort(n, new(corepb.Node), groupBy)
		name := Name(key)
		if other, has := keys[name]; has && other != key {
			t.Fatalf("the groups %s and %s have the name %s", key, other, name)
		}
		keys[name] = key
	}
	if len(keys) < 100 {
		t.Errorf("compared %d groups, want 100 at least", len(keys))
	}
}
