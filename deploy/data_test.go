package deploy_test

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

// TestDataParses checks that blocks of YAML and JSON on the pages parse, and that those that are marked as messages have
// only fields of the message.
func TestDataParses(t *testing.T) {
	found, messages := 0, 0
	for _, b := range read(t).blocks {
		if !b.Data() || b.Marks["part"] != "" {
			continue
		}
		found++
		for document := range strings.SplitSeq(strings.Join(b.Lines, "\n"), "\n---\n") {
			json, err := yaml.YAMLToJSONStrict([]byte(document))
			if name := b.Marks["message"]; err == nil && name != "" {
				messages++
				err = asMessage(json, name)
			}
			if err != nil {
				t.Errorf("%s: %v", b, err)
			}
		}
	}
	if found < 5 || messages < 2 {
		t.Errorf("found %d blocks of YAML and JSON, %d of them messages, want 5 and 2 at least", found, messages)
	}
}

// asMessage parses a message of a type, with the messages in it.
func asMessage(json []byte, name string) error {
	of, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		return err
	}
	return protojson.Unmarshal(json, of.New().Interface())
}
