package rollout

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// parseStages returns the stages of a text.
func parseStages(t *testing.T, text string) (s Stages) {
	t.Helper()
	if err := s.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStagesRoundTrip(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"metadata.canary=true 10m, 5% 10m,25%   approve":     "metadata.canary=true 10m, 5% 10m, 25% approve",
		"locality.zone=eu-* 1h, 0.5% 1s, 12.25% 2m, 100% 5m": "locality.zone=eu-* 1h, 0.5% 1s, 12.25% 2m, 100% 5m",
		"id=a=b approve": "id=a=b approve",
	} {
		s := parseStages(t, text)
		if got := s.String(); got != want {
			t.Errorf("stages %q: String returns %q, want %q", text, got, want)
		}
	}
}

func TestInvalidStages(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"5%", `stage 1 ("5%"): the duration is missing; use a duration such as 10m, or "approve"`},
		{"5% 10m, 5% 1h", `stage 2 ("5% 1h"): an earlier stage selects the same clients`},
		{"10% 10m, id=a 1m, 5% 1h", `stage 3 ("5% 1h"): a share includes the shares of earlier stages; use more than 10%`},
		{"0% 1m", `stage 1 ("0% 1m"): "0%" is not a share from 0.01% to 100% with at most two decimals`},
		{"1.234% 1m", `"1.234%" is not a share`},
		{"101% 1m", `"101%" is not a share`},
		{"-1% 1m", `"-1%" is not a share`},
		{"100% 1m, id=a 1m", "no clients remain"},
		{"1% 1m, 2% 1m, 3% 1m, 4% 1m, 5% 1m", "stage 5 (\"5% 1m\"): too many stages: at most 4 are allowed"},
		{"5% soon", `"soon" is not a duration from 1s to 168h or "approve"`},
		{"5% 1ms", `"1ms" is not a duration from 1s`},
		{"5% -1m", `"-1m" is not a duration`},
		{"5% 169h", `"169h" is not a duration`},
		{"version=1 1m", `the fields are id, cluster, locality.region, locality.zone, locality.sub_zone, metadata.<path>`},
		{"metadata.=1 1m", `"metadata.=1" is neither`},
		{"metadata.a..b=1 1m", `"metadata.a..b=1" is neither`},
		{"id 1m", `"id" is neither`},
		{"id= 1m", `"id=" has no glob after =`},
		{"5% 10m,", `stage 2 (""): "" is neither`},
		{"0% 1m, 5% 10m, 6%", `stage 1 ("0% 1m"): "0%" is not a share from 0.01% to 100% with at most two decimals; ` +
			`stage 3 ("6%"): the duration is missing`},
		{strings.Repeat("x", 1000) + "=y approve", "is neither"},
		{strings.Repeat("9", 1000) + "% approve", "is not a share"},
		{"5% " + strings.Repeat("x", 1000), "is not a duration"},
		{"id=" + strings.Repeat("x", 1000), "the duration is missing"},
	} {
		var s Stages
		err := s.UnmarshalText([]byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("stages %q: error %v, want %s", tt.text, err, tt.want)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("stages %.40q: the error has %d bytes, want at most 600", tt.text, len(err.Error()))
		}
		if s != nil {
			t.Errorf("stages %q: %v is set in spite of the error", tt.text, s)
		}
	}
}

func TestI7_CohortDependsOnlyOnNode(t *testing.T) {
	s := parseStages(t, "metadata.canary=true 1m, locality.zone=eu-*b 1m, 50% 1m")
	metadata, err := structpb.NewStruct(map[string]any{"canary": true, "deep": map[string]any{"er": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node    *corepb.Node
		isRelay bool
		want    int
	}{
		{&corepb.Node{Id: "a", Metadata: metadata}, false, 0},
		{&corepb.Node{Metadata: metadata}, true, 0}, // a field selects relays and nodes without an id
		{&corepb.Node{Id: "a", Locality: &corepb.Locality{Zone: "eu-1-b"}}, false, 1},
		{&corepb.Node{Id: "b"}, false, 3}, // SHA-256 of b: 0x3e23e8160039594a % 10000 = 7946
		{&corepb.Node{Id: "c"}, false, 2}, // 0x2e7d2c03a9507ae2 % 10000 = 4930
		{&corepb.Node{Id: "c"}, true, 3},
		{&corepb.Node{}, false, 3},
	} {
		if got := s.Cohort(c.node, c.isRelay); got != c.want {
			t.Errorf("%v, relay %v: cohort %d, want %d", c.node, c.isRelay, got, c.want)
		}
	}
	if got := parseStages(t, "metadata.deep.er=x 1m").Cohort(&corepb.Node{Metadata: metadata}, false); got != 0 {
		t.Errorf("metadata.deep.er=x: cohort %d, want 0", got)
	}
}

func TestI7_SharesMatchNodes(t *testing.T) {
	s, nodes := parseStages(t, "5% 1m, 25% 1m"), [3]int{}
	for i := range 100_000 {
		nodes[s.Cohort(&corepb.Node{Id: fmt.Sprint("sidecar~10.0.0.", i, "~pod-", i)}, false)]++
	}
	if off := nodes[0] - 5000; max(off, -off) > 300 {
		t.Errorf("%d of 100,000 nodes in the cohort of 5%%, want 5,000 ± 300", nodes[0])
	}
	if off := nodes[1] - 20_000; max(off, -off) > 500 {
		t.Errorf("%d of 100,000 nodes in the cohort of 25%%, want 20,000 ± 500", nodes[1])
	}
}

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, text string
		want       bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"a*", "ab/c~d", true}, {"*a", "ba", true},
		{"a*a", "a", false}, {"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-c-b", false}, {"a**b", "ab", true},
		{"*b*", "abc", true}, {"*b*", "ac", false},
	} {
		if got := matchGlob(c.glob, c.text); got != c.want {
			t.Errorf("matchGlob(%q, %q) = %v, want %v", c.glob, c.text, got, c.want)
		}
	}
}

func FuzzStages(f *testing.F) {
	for _, text := range []string{
		"", "5% 10m", "metadata.canary=true 10m, 5% 10m, 25% approve", "0.01% 168h,100% approve", "id=*,a",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s, parsed Stages
		if s.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := parsed.UnmarshalText([]byte(s.String())); err != nil || parsed.String() != s.String() {
			t.Errorf("stages %q: String returns %q, which parses as %q, error %v", text, s, parsed, err)
		}
		if len(s) > MaxStages || s.TotalDuration() < 0 || s.TotalDuration() > MaxStages*7*24*time.Hour {
			t.Errorf("stages %q: %d stages of %v in total", text, len(s), s.TotalDuration())
		}
		if at := s.Cohort(&corepb.Node{Id: text}, false); at < 0 || at > len(s) {
			t.Errorf("stages %q: cohort %d of %d stages", text, at, len(s))
		}
	})
}
