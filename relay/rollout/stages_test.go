package rollout

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func stages(t *testing.T, text string) (s Stages) {
	t.Helper()
	if err := s.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStagesAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"metadata.canary=true 10m, 5% 10m,25%   approve":     "metadata.canary=true 10m, 5% 10m, 25% approve",
		"locality.zone=eu-* 1h, 0.5% 1s, 12.25% 2m, 100% 5m": "locality.zone=eu-* 1h, 0.5% 1s, 12.25% 2m, 100% 5m",
		"id=a=b approve": "id=a=b approve",
	} {
		s := stages(t, text)
		if got := s.String(); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	}
}

func TestStagesThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"5%":                                     `stage 1 ("5%"): how long it lasts is missing: a duration such as 10m, or "approve"`,
		"5% 10m, 5% 1h":                          `stage 2 ("5% 1h"): a stage before it selects the same clients`,
		"10% 10m, id=a 1m, 5% 1h":                `stage 3 ("5% 1h"): shares include those before: it must be more than 10%`,
		"0% 1m":                                  `stage 1 ("0% 1m"): "0%" is not a share from 0.01% to 100%, of at most two decimals`,
		"1.234% 1m":                              `"1.234%" is not a share`,
		"101% 1m":                                `"101%" is not a share`,
		"-1% 1m":                                 `"-1%" is not a share`,
		"100% 1m, id=a 1m":                       "no clients remain",
		"1% 1m, 2% 1m, 3% 1m, 4% 1m, 5% 1m":      "stage 5 (\"5% 1m\"): one too many: at most 4 are allowed",
		"5% soon":                                `"soon" is not a duration from 1s to 168h, nor "approve"`,
		"5% 1ms":                                 `"1ms" is not a duration from 1s`,
		"5% -1m":                                 `"-1m" is not a duration`,
		"5% 169h":                                `"169h" is not a duration`,
		"version=1 1m":                           `the fields are id, cluster, locality.region, locality.zone, locality.sub_zone, metadata.<path>`,
		"metadata.=1 1m":                         `"metadata.=1" is neither`,
		"metadata.a..b=1 1m":                     `"metadata.a..b=1" is neither`,
		"id 1m":                                  `"id" is neither`,
		"id= 1m":                                 `"id=" has no glob after =`,
		"5% 10m,":                                `stage 2 (""): "" is neither`,
		strings.Repeat("x", 1000) + "=y approve": "is neither",
		strings.Repeat("9", 1000) + "% approve":  "is not a share",
		"5% " + strings.Repeat("x", 1000):        "is not a duration",
		"id=" + strings.Repeat("x", 1000):        "how long it lasts is missing",
	} {
		var s Stages
		err := s.UnmarshalText([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%q: the error has %d bytes: %v", text, len(err.Error()), err)
		}
		if s != nil {
			t.Errorf("%q: %v was read nevertheless", text, s)
		}
	}
}

func TestI7_CohortsAreAFunctionOfTheNode(t *testing.T) {
	s := stages(t, "metadata.canary=true 1m, locality.zone=eu-*b 1m, 50% 1m")
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
		{&corepb.Node{Metadata: metadata}, true, 0}, // by label, also a relay, and a node without an id
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
	if got := stages(t, "metadata.deep.er=x 1m").Cohort(&corepb.Node{Metadata: metadata}, false); got != 0 {
		t.Errorf("metadata.deep.er=x: cohort %d", got)
	}
}

func TestI7_SharesAreThoseOfTheNodes(t *testing.T) {
	s, of := stages(t, "5% 1m, 25% 1m"), [3]int{}
	for i := range 100_000 {
		of[s.Cohort(&corepb.Node{Id: fmt.Sprint("sidecar~10.0.0.", i, "~pod-", i)}, false)]++
	}
	if off := of[0] - 5000; max(off, -off) > 300 {
		t.Errorf("5%% of 100,000 are %d", of[0])
	}
	if off := of[1] - 20_000; max(off, -off) > 500 {
		t.Errorf("the next 20%% of 100,000 are %d", of[1])
	}
}

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, text string
		want       bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"a*", "ab/c~d", true}, {"*a", "ba", true}, {"a*a", "a", false},
		{"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-c-b", false}, {"a**b", "ab", true}, {"*b*", "abc", true}, {"*b*", "ac", false},
	} {
		if got := matchGlob(c.glob, c.text); got != c.want {
			t.Errorf("%q matches %q: %v", c.glob, c.text, got)
		}
	}
}

func FuzzStages(f *testing.F) {
	for _, text := range []string{"", "5% 10m", "metadata.canary=true 10m, 5% 10m, 25% approve", "0.01% 168h,100% approve", "id=*,a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Stages
		if s.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again.String() != s.String() {
			t.Errorf("%q is written as %q, and that is read as %q, %v", text, s, again, err)
		}
		if len(s) > MaxStages || s.Lasts() < 0 || s.Lasts() > MaxStages*7*24*time.Hour {
			t.Errorf("%q: %d stages of %v", text, len(s), s.Lasts())
		}
		if at := s.Cohort(&corepb.Node{Id: text}, false); at < 0 || at > len(s) {
			t.Errorf("%q: cohort %d", text, at)
		}
	})
}
