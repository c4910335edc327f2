package wire

import (
	"errors"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire/schema"
)

func TestResourceJSON(t *testing.T) {
	value, err := proto.Marshal(&clusterpb.Cluster{Name: "a", AltStatName: "b"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewResource(ClusterType, "a", "", value)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.JSON()
	if want := `{"@type":"` + ClusterType + `","name":"a","altStatName":"b"}`; err != nil || string(got) != want {
		t.Fatalf("JSON() = %s, %v, want %s", got, err, want)
	}
	again, err := r.JSON()
	if err != nil || &again[0] != &got[0] {
		t.Errorf("second JSON() = %s, %v: encoded again, want the result of the first", again, err)
	}
	if allocs := testing.AllocsPerRun(100, func() { _, _ = r.JSON() }); allocs != 0 {
		t.Errorf("JSON() allocates %v times after the first call, want 0", allocs)
	}
}

func TestResourceJSONErrors(t *testing.T) {
	strange, err := NewResource("type.googleapis.com/acme.Thing", "s", "", []byte("\x0a\x01s"))
	if err != nil {
		t.Fatal(err)
	}
	broken, err := NewResource(ClusterType, "b", "", []byte{0xff})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // errors are not stored as results
		_, err := strange.JSON()
		if unknown, ok := errors.AsType[*schema.UnknownTypeError](err); !ok ||
			unknown.TypeURL != "type.googleapis.com/acme.Thing" {
			t.Errorf("JSON() of an unknown type = %v, want an UnknownTypeError", err)
		}
		if _, err = broken.JSON(); err == nil || !strings.Contains(err.Error(), `resource "b" of type "`+ClusterType) {
			t.Errorf("JSON() of a malformed cluster = %v, want an error that names it", err)
		}
	}
}
