package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// TestSotWNames: the name is read from the resource for types that contain it, and from the Resource message otherwise.
func TestSotWNames(t *testing.T) {
	tests := []struct {
		name     string
		typeURL  string
		resource []byte
		want     string
		wantErr  error
		text     string
	}{
		{"cluster", wire.ClusterType, anyOf(wire.ClusterType, named("a")), "a", nil, ""},
		{"endpoints", wire.EndpointType, anyOf(wire.EndpointType, named("a")), "a", nil, ""},
		{"listener", wire.ListenerType, anyOf(wire.ListenerType, named("a")), "a", nil, ""},
		{"routes", wire.RouteType, anyOf(wire.RouteType, named("a")), "a", nil, ""},
		{"scoped routes", wire.ScopedRouteType, anyOf(wire.ScopedRouteType, named("a")), "a", nil, ""},
		{"virtual host", wire.VirtualHostType, anyOf(wire.VirtualHostType, named("a")), "a", nil, ""},
		{"secret", wire.SecretType, anyOf(wire.SecretType, named("a")), "a", nil, ""},
		{"runtime", wire.RuntimeType, anyOf(wire.RuntimeType, named("a")), "a", nil, ""},
		{"extension", wire.ExtensionConfigType, anyOf(wire.ExtensionConfigType, named("a")), "a", nil, ""},
		{"last name wins", wire.ClusterType, anyOf(wire.ClusterType, join(named("x"), named("a"))), "a", nil, ""},
		{"wrapped", wire.ClusterType, wrap(resourceOf("1", "other", anyOf(wire.ClusterType, named("a")))), "other", nil, ""},
		{"wrapped without a name", wire.ClusterType, wrap(resourceOf("1", "", anyOf(wire.ClusterType, named("a")))), "a",
			nil, ""},
		{"unknown type, wrapped", acme, wrap(resourceOf("1", "a", anyOf(acme, nil))), "a", nil, ""},
		{"unknown type, wrapped without a name", acme, wrap(resourceOf("1", "", anyOf(acme, named("a")))), "", nil, ""},
		{"an endpoint, wrapped", wire.LocalityEndpoint, wrap(resourceOf("1", "a", anyOf(wire.LocalityEndpoint, nil))), "a",
			nil, ""},
		{"an endpoint", wire.LocalityEndpoint, anyOf(wire.LocalityEndpoint, named("a")), "", wire.ErrUnnamed,
			"must wrap them"},
		{"unknown type", acme, anyOf(acme, named("a")), "", wire.ErrUnnamed, acme},
		{"no name", wire.ClusterType, anyOf(wire.ClusterType, nil), "", wire.ErrUnnamed, wire.ClusterType},
		{"no name in resource and wrapper", wire.ClusterType, wrap(resourceOf("1", "", anyOf(wire.ClusterType, nil))), "",
			wire.ErrUnnamed, wire.ClusterType},
		{"name is not UTF-8", wire.ClusterType, anyOf(wire.ClusterType, named(notUTF8)), "", wire.ErrMalformed, "UTF-8"},
		{"malformed", wire.ClusterType, anyOf(wire.ClusterType, join(named("a"), []byte("\xff"))), "", wire.ErrMalformed,
			wire.ClusterType},
		{"another type", wire.ClusterType, anyOf(wire.ListenerType, named("a")), "", wire.ErrTypeMismatch, wire.ListenerType},
		{"another type, wrapped", wire.ClusterType, wrap(resourceOf("1", "a", anyOf(wire.ListenerType, nil))), "",
			wire.ErrTypeMismatch, wire.ListenerType},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := wire.Decoder{}.DecodeSotW(updateOf(tt.typeURL, tt.resource))
			wantRefusable(t, u, tt.typeURL)
			if tt.wantErr != nil {
				if !errors.Is(err, tt.wantErr) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("DecodeSotW: got error %v, want %v with %q", err, tt.wantErr, tt.text)
				}
				return
			}
			if err != nil || len(u.Resources) != 1 || u.Resources[0].Name != tt.want {
				t.Fatalf("DecodeSotW: got %v, error %v, want one resource %q", u.Resources, err, tt.want)
			}
		})
	}
}

// TestSotWKeepsTheWrapper: a wrapped resource is decoded as in a Delta response. Of a resource without a wrapper, the
// bytes are kept, and the version is made from them.
func TestSotWKeepsTheWrapper(t *testing.T) {
	rich := marshal(t, &discoverypb.Resource{
		Name: "a", Version: "7", Aliases: []string{"b", "c"}, Ttl: durationpb.New(1), Metadata: &corepb.Metadata{},
	})
	rich = join(rich, bytesField(2, anyOf(acme, []byte("value"))), bytesField(4242, "unknown"))
	u, err := wire.Decoder{}.DecodeSotW(updateOf(acme, wrap(rich)))
	if err != nil {
		t.Fatal(err)
	}
	same := decodeOne(t, acme, rich)
	if got := u.Resources[0]; !bytes.Equal(got.Field(), same.Field()) || !got.SameContent(same) || got.TTL == 0 ||
		got.OriginVersion != "7" {
		t.Errorf("wrapped: got field %q, want %q as in Delta", got.Field(), same.Field())
	}

	plain := anyOf(wire.ClusterType, named("a"))
	u, err = wire.Decoder{}.DecodeSotW(updateOf(wire.ClusterType, join(plain, bytesField(4242, "unknown"))))
	if err != nil {
		t.Fatal(err)
	}
	got := u.Resources[0]
	if want := bytesField(2, join(plain, bytesField(4242, "unknown"))); !bytes.Equal(got.Body(), want) {
		t.Errorf("unwrapped: got body %q, want %q", got.Body(), want)
	}
	if got.OriginVersion != "" || got.Version != got.ContentVersion() {
		t.Errorf("unwrapped: got versions %q and %q, want none and %q", got.OriginVersion, got.Version, got.ContentVersion())
	}
}
