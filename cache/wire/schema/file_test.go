package schema_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/cache/wire/schema"
)

// TestR117_FourFormatsGiveTheSameBytes writes a response in every format.
func TestR117_FourFormatsGiveTheSameBytes(t *testing.T) {
	body := pack(t, listener(t))
	wrapped := &discoverypb.Resource{Name: "front", Version: "7", Aliases: []string{"door"}, Ttl: durationpb.New(9e9), Resource: body}
	for name, resource := range map[string]*anypb.Any{"bare": body, "wrapped": pack(t, wrapped)} {
		t.Run(name, func(t *testing.T) {
			response := &discoverypb.DiscoveryResponse{VersionInfo: "v1", TypeUrl: body.GetTypeUrl(), Resources: []*anypb.Any{resource}}
			want := &schema.Document{Version: "v1", TypeURL: body.GetTypeUrl(), Resources: []schema.Resource{{TypeURL: body.GetTypeUrl(), Name: "front", Value: body.GetValue()}}}
			if name == "wrapped" {
				want.Resources[0].Version, want.Resources[0].Aliases, want.Resources[0].Wrapper = "7", []string{"door"}, resource.GetValue()
			}
			for file, content := range everyFormat(t, response) {
				got, err := schema.ParseFile(file, content)
				if err != nil {
					t.Errorf("ParseFile: %v in\n%s", err, content)
					continue
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", file, diff)
				}
			}
		})
	}
}

func everyFormat(t *testing.T, m proto.Message) map[string][]byte {
	t.Helper()
	asJSON, err1 := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	asYAML, err2 := yaml.JSONToYAML(asJSON)
	asText, err3 := prototext.MarshalOptions{Multiline: true}.Marshal(m)
	asBinary, err4 := proto.Marshal(m) // the order of a map is random here
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"a.json": asJSON, "a.yaml": asYAML, "a.YML": asYAML, "a.txtpb": asText, "a.textproto": asText, "a.pb_text": asText, "a.prototext": asText, "a.pb": asBinary, "a.bin": asBinary}
}

const cluster = `"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster`

func TestParseFileShapes(t *testing.T) {
	tests := []struct {
		name, file, content string
		version             string
		names               string
	}{
		{"yaml list", "a.yaml", "- " + cluster + "\n  name: a\n- " + cluster + "\n  name: b\n", "", "a b"},
		{"yaml list under resources", "a.yaml", "resources:\n- " + cluster + "\n  name: a\n", "", "a"},
		{"yaml with anchors and merges", "a.yaml", "resources:\n- &one\n  " + cluster + "\n  name: a\n- <<: *one\n  name: b\n", "", "a b"},
		{"yaml with comments and an end", "a.yaml", "---\n# mesh\nversion_info: '4'\nresources: []\n---\n", "4", ""},
		{"yaml single resource", "a.yaml", cluster + "\nname: a\n", "", "a"},
		{"yaml response with @type", "a.yaml", "'@type': type.googleapis.com/envoy.service.discovery.v3.DiscoveryResponse\nversion_info: '5'\nresources:\n- {" + cluster + ", name: a}\n", "5", "a"},
		{"json list", "a.json", `[{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","name":"a"}]`, "", "a"},
		{"json mixed types", "a.json", `[{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","name":"a"},{"@type":"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment","clusterName":"a"}]`, "", "a a"},
		{"json empty list", "a.json", `[]`, "", ""},
		{"json response", "a.json", `{"versionInfo":"3","resources":[]}`, "3", ""},
		{"text", "a.txtpb", `version_info: "3" resources { [type.googleapis.com/envoy.config.cluster.v3.Cluster] { name: "a" } }`, "3", "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc, err := schema.ParseFile(tt.file, []byte(tt.content))
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, r := range doc.Resources {
				names = append(names, r.Name)
			}
			if got := strings.Join(names, " "); got != tt.names || doc.Version != tt.version {
				t.Errorf("names %q version %q, want %q %q", got, doc.Version, tt.names, tt.version)
			}
		})
	}
}

// TestR118_BadFileIsNamedWithItsLine holds what an operator reads.
func TestR118_BadFileIsNamedWithItsLine(t *testing.T) {
	jsonCluster := `"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster"`
	tests := []struct{ name, file, content, want string }{
		{"yaml syntax", "d/a.yaml", "resources:\n- a: [\n", "d/a.yaml:2: did not find expected node content"},
		{"yaml duplicate key", "a.yaml", "resources: []\nresources: []\n", `a.yaml:2: key "resources" already set in map`},
		{"yaml unknown field", "a.yaml", "resources:\n- " + cluster + "\n  name: a\n\n  # here\n  nome: b\n", `a.yaml:6: unknown field "nome"`},
		{"yaml unknown field with a map below", "a.yaml", "- " + cluster + "\n  name: é\n  eds: \n\n    name: b\n", `a.yaml:3: unknown field "eds"`},
		{"yaml wrong enum, deep", "a.yaml", "- " + cluster + "\n  name: a\n- " + cluster + "\n  name: b\n  load_assignment:\n    endpoints:\n    - lb_endpoints:\n      - health_status: SICK\n", `a.yaml:8: invalid value for enum field healthStatus: "SICK"`},
		{"yaml number for a string", "a.yaml", "version_info: 7\n", `a.yaml:1: invalid value for string field versionInfo`},
		{"yaml null in a list", "a.yaml", "resources:\n-\n", `a.yaml:2: unexpected token null`},
		{"yaml single resource", "a.yaml", cluster + "\nnome: a\n", `a.yaml:2: unknown field "nome"`},
		{"yaml behind an anchor", "a.yaml", "- &x\n  " + cluster + "\n  name: a\n- <<: *x\n  name: b\n  nome: c\n", `a.yaml:6: unknown field "nome"`},
		{"yaml unknown type", "a.yaml", "- " + cluster + "\n  name: a\n- '@type': type.googleapis.com/acme.Foo\n", `a.yaml:3: unknown type "type.googleapis.com/acme.Foo"`},
		{"yaml no name", "a.yaml", "resources:\n- " + cluster + "\n  name: a\n- " + cluster + "\n", `a.yaml:4: resources[1]: no name in a resource of type "type.googleapis.com/envoy.config.cluster.v3.Cluster"`},
		{"yaml name twice", "a.yaml", "- " + cluster + "\n  name: a\n- " + cluster + "\n  name: a\n", `a.yaml:3: resources[1]: name "a" is a duplicate of resources[0]`},
		{"yaml wrong type", "a.yaml", "type_url: t\nresources:\n- " + cluster + "\n  name: a\n", `a.yaml:3: resources[0]: type "type.googleapis.com/envoy.config.cluster.v3.Cluster" in a response of type "t"`},
		{"yaml empty wrapper", "a.yaml", "resources:\n- '@type': type.googleapis.com/envoy.service.discovery.v3.Resource\n  name: a\n", `a.yaml:2: resources[0]: the wrapper has no resource`},
		{"yaml two documents", "a.yaml", "resources: []\n---\nresources: []\n", `a.yaml: document 2 in one file`},
		{"json syntax", "a.json", "{\n \"resources\": [}\n", `a.json:2:16: unexpected token }`},
		{"json cut short", "a.json", "{\n \"resources\": [", `a.json:2: unexpected EOF`},
		{"json unknown field in a list", "a.json", "[{" + jsonCluster + ",\n\t\"nome\":\"a\"}]", `a.json:2:2: unknown field "nome"`},
		{"json first line of a list", "a.json", `[{"nome":"a"}]`, `a.json:1:2: missing "@type" field`},
		{"json no name, tabs", "a.json", "{\n\t\"resources\": [\n\t\t{" + jsonCluster + "}\n\t]\n}", `a.json:3: resources[0]: no name`},
		{"text unknown field", "a.txtpb", "version_info: \"1\"\nresources {\n  nome: 1\n}\n", `a.txtpb:3:3: invalid field name "nome" in google.protobuf.Any message`},
		{"text unknown type", "a.txtpb", "resources {\n  [type.googleapis.com/acme.Foo] {}\n}\n", `a.txtpb:2:3: unknown type "type.googleapis.com/acme.Foo"`},
		{"text no name", "a.txtpb", "resources {\n  [type.googleapis.com/envoy.config.cluster.v3.Cluster] {}\n}\n", `a.txtpb: resources[0]: no name`},
		{"binary rubbish", "a.pb", "\xff\xff", `a.pb: not a DiscoveryResponse: `},
		{"empty", "a.pb", "", `a.pb: file is empty`},
		{"only blanks", "a.yaml", "\n \n", `a.yaml: file is empty`},
		{"only a comment", "a.yaml", "# nothing\n", `a.yaml: unexpected token null`},
		{"extension", "a.txt", "x", `a.txt: unknown extension ".txt", known are .json .yaml`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc, err := schema.ParseFile(tt.file, []byte(tt.content))
			if err == nil {
				t.Fatalf("ParseFile = %+v, want an error", doc)
			}
			if got := err.Error(); !strings.HasPrefix(got, tt.want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			var missing *schema.UnknownTypeError
			if errors.As(err, &missing) != strings.Contains(tt.want, "unknown type") {
				t.Errorf("errors.As(%v, UnknownTypeError) = %v", err, missing != nil)
			}
		})
	}
}

// TestParseFileKeepsUnknownTypesInBinary: what only bytes can say stays bytes.
func TestParseFileKeepsUnknownTypesInBinary(t *testing.T) {
	foo := &anypb.Any{TypeUrl: prefix + "acme.Foo", Value: []byte{0xff}}
	resources := []*anypb.Any{pack(t, &discoverypb.Resource{Name: "x", Resource: foo})}
	file, err := proto.Marshal(&discoverypb.DiscoveryResponse{Resources: resources})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := schema.ParseFile("a.pb", file)
	if err != nil {
		t.Fatal(err)
	}
	if r := doc.Resources[0]; r.Name != "x" || r.TypeURL != foo.GetTypeUrl() || !bytes.Equal(r.Value, foo.GetValue()) {
		t.Errorf("got %+v, want acme.Foo as it was", r)
	}
}

// TestParseFileKeepsUnknownFields: a newer Envoy's fields survive.
func TestParseFileKeepsUnknownFields(t *testing.T) {
	value, err := proto.Marshal(&clusterpb.Cluster{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	value = append(value, 0xf8, 0xff, 0xff, 0xff, 0x0f, 1)
	url, _ := schema.TypeURLFor("cds")
	file, err := proto.Marshal(&discoverypb.DiscoveryResponse{Resources: []*anypb.Any{{TypeUrl: url, Value: value}}})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := schema.ParseFile("a.pb", file)
	if err != nil || !bytes.Equal(doc.Resources[0].Value, value) {
		t.Errorf("got %+v, %v, want %x", doc, err, value)
	}
}

func TestIsFile(t *testing.T) {
	for name, want := range map[string]bool{"a.yaml": true, "x/a.JSON": true, "a.pb": true, "a.txt": false, "..data": false, ".yaml.swp": false, "a": false} {
		if got := schema.IsFile(name); got != want {
			t.Errorf("IsFile(%q) = %v, want %v", name, got, want)
		}
	}
}

// FuzzParseFile: no content may panic, and every error names the file.
func FuzzParseFile(f *testing.F) {
	for _, seed := range []string{"- " + cluster + "\n  name: a\n", `{"resources":[{"@type":"x"}]}`, "a: &a [*a]\n", "[1,{\"a\":\"é\"}]", "? [a]\n: b\n", "\n---\n---\n"} {
		for i := range 4 {
			f.Add([]byte(seed), i)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte, format int) {
		name := "f" + []string{".json", ".yaml", ".txtpb", ".pb"}[uint(format)%4]
		if _, err := schema.ParseFile(name, content); err != nil && !strings.HasPrefix(err.Error(), name+":") {
			t.Errorf("ParseFile(%s, %q): %v, want the name in front", name, content, err)
		}
	})
}
