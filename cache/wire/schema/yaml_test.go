package schema_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// Scalars of a file have the types that Envoy gives them. TestB28_EnvoyReadsTheSameFile of system/envoy compares the same file
// with real Envoys, whose errors say what they read. A Struct that has 1.10 and 1.1 keeps them apart: subsets match by them.
func TestB28_ScalarsHaveTheTypesOfEnvoy(t *testing.T) {
	doc, err := schema.ParseFile("scalars.yaml", check.Must(os.ReadFile("testdata/scalars.yaml")))
	check.OK(t, err)
	text, err := schema.MarshalJSON(doc.Resources[0].TypeURL, doc.Resources[0].Value)
	check.OK(t, err)
	var cluster struct {
		Limit    any `json:"perConnectionBufferLimitBytes"`
		Metadata struct {
			Filter map[string]map[string]any `json:"filterMetadata"`
		} `json:"metadata"`
		Load struct {
			Policy map[string]any `json:"policy"`
		} `json:"loadAssignment"`
	}
	check.OK(t, json.Unmarshal(text, &cluster))
	var want map[string]map[string]any
	check.OK(t, json.Unmarshal(check.Must(os.ReadFile("testdata/scalars.json")), &want))
	if diff := cmp.Diff(want, cluster.Metadata.Filter); diff != "" {
		t.Errorf("scalars (-want +got):\n%s", diff)
	}
	if cluster.Limit != 4294967295.0 || cluster.Load.Policy["overprovisioningFactor"] != 140.0 {
		t.Errorf("numbers of typed fields: %v, %v", cluster.Limit, cluster.Load.Policy)
	}
}

// TestB28_NumbersOfDoubleFields: a field of the type double reads numbers of JSON, also from text. It rejects other numbers that
// Envoy reads, and names their line.
func TestB28_NumbersOfDoubleFields(t *testing.T) {
	for text, want := range map[string]string{
		"0.5": "0.5", "12.50": "12.5", "1e1": "10", "1E+1": "10", "5": "5", "0x10": "16", `"7.5"`: "7.5", "Infinity": `"Infinity"`, "NaN": `"NaN"`,
		".5": "", "5.": "", "+5.5": "", "010.5": "", "0x1p3": "", "inf": "", "nan": "", "1e400": "", `" 5 "`: "", // Envoy reads these
		".inf": "", ".nan": "", "1_000": "", `""`: "", // nor does Envoy
	} {
		file := "'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: a\ncommon_lb_config:\n  healthy_panic_threshold: {value: " + text + "}\n"
		doc, err := schema.ParseFile("a.yaml", []byte(file))
		if want == "" {
			if err == nil || !strings.HasPrefix(err.Error(), "a.yaml:4:") {
				t.Errorf("%s: error %v, want one about line 4", text, err)
			}
			continue
		}
		check.OK(t, err)
		var cluster struct {
			CommonLbConfig struct {
				HealthyPanicThreshold struct{ Value json.RawMessage }
			}
		}
		check.OK(t, json.Unmarshal(check.Must(schema.MarshalJSON(doc.Resources[0].TypeURL, doc.Resources[0].Value)), &cluster))
		check.Equal(t, text, string(cluster.CommonLbConfig.HealthyPanicThreshold.Value), want)
	}
}

// multiplied returns a document with 40 anchors. Each contains the one before several times.
func multiplied(first, next string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "x0: &x0 %s\n", first)
	for i := range 40 {
		fmt.Fprintf(&b, "x%d: &x%d %s\n", i+1, i+1, fmt.Sprintf(next, fmt.Sprintf("x%d", i)))
	}
	return b.String()
}

// Aliases cannot make a small file cost much time or memory.
func TestInput_YAMLAliases(t *testing.T) {
	for what, tt := range map[string]struct{ text, want string }{
		"multiplied text":  {multiplied("text", "[*%[1]s, *%[1]s, *%[1]s]"), "aliases make the document more than 64 times longer"},
		"multiplied merge": {multiplied("{a: 1}", "{<<: [*%[1]s, *%[1]s, *%[1]s]}"), "aliases make the document more than 64 times longer"},
		"a long text":      {"a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 100) + "]\n", "aliases make the document more than 64 times longer"},
		"itself":           {"a: &a [*a]\n", `anchor "a" contains itself`},
		"itself, merged":   {"a: &a {<<: *a}\n", `anchor "a" contains itself`},
		"a merged text":    {"a: {<<: text}\n", "a merge key needs a mapping, or a list of mappings"},
		"a list as a key":  {"? [a]\n: b\n", "a key must be text"},
	} {
		if _, err := schema.ParseFile("a.yaml", []byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "a.yaml:") {
			t.Errorf("%s: %v, want %q", what, err, tt.want)
		}
	}
}
