package relaytest

import (
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/envoy/annotations"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3" // registers its service, as the imports below
	_ "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestMethods compares the table of methods with the registered services, each of which has its resource type as an
// option.
func TestMethods(t *testing.T) {
	defined := 0
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			resource, _ := proto.GetExtension(service.Options(), annotations.E_Resource).(*annotations.ResourceAnnotation)
			if !strings.HasPrefix(string(file.Package()), "envoy.service.") || resource.GetType() == "" {
				continue
			}
			typeURL := "type.googleapis.com/" + resource.GetType()
			want := make(map[Variant]string)
			for j := range service.Methods().Len() {
				switch method := service.Methods().Get(j); method.Input().Name() {
				case "DeltaDiscoveryRequest":
					want[Delta] = "/" + string(service.FullName()) + "/" + string(method.Name())
				case "DiscoveryRequest":
					if method.IsStreamingServer() {
						want[SotW] = "/" + string(service.FullName()) + "/" + string(method.Name())
					}
				}
			}
			for _, v := range []Variant{SotW, Delta} {
				if got := v.Method(typeURL); got != want[v] {
					t.Errorf("%v of %s: %q, want %q", v, typeURL, got, want[v])
				}
			}
			defined++
		}
		return true
	})
	if defined != len(methods) {
		t.Errorf("the protocol defines %d services of one type, but the table has %d", defined, len(methods))
	}
}
