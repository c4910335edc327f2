package docs_test

import (
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"                 // types that pages show
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // likewise
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"        // likewise
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"
)

// TestDataParses holds that YAML and JSON on the pages are, and have the fields of the messages
// that they are to be.
func TestDataParses(t *testing.T) {
	found, messages := 0, 0
	for page, text := range pages(t) {
		all, err := blocks(page, text)
		if err != nil {
			t.Error(err)
		}
		for _, b := range all {
			if !b.data() || b.marks["part"] != "" {
				continue
			}
			found++
			for _, document := range strings.Split(strings.Join(b.lines, "\n"), "\n---\n") {
				json, err := yaml.YAMLToJSONStrict([]byte(document))
				if name := b.marks["message"]; err == nil && name != "" {
					messages++
					err = asMessage(json, name)
				}
				if err != nil {
					t.Errorf("%s: %v", b, err)
				}
			}
		}
	}
	if found < 5 || messages < 2 {
		t.Errorf("found %d blocks of YAML and JSON, %d of them messages, want 5 and 2 at least", found, messages)
	}
}

// asMessage reads a message of a type, and those within it.
func asMessage(json []byte, name string) error {
	of, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		return err
	}
	return protojson.Unmarshal(json, of.New().Interface())
}
