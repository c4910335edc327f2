package wire_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// storable returns decoded resources of every kind.
func storable(t testing.TB) map[string]*wire.Resource {
	t.Helper()
	cluster, err := proto.Marshal(&clusterpb.Cluster{
		Name: "c", ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
		EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{ServiceName: "endpoints"},
	})
	if err != nil {
		t.Fatal(err)
	}
	body := &anypb.Any{TypeUrl: wire.ClusterType, Value: cluster}
	constraints := envConstraints("prod")
	out := make(map[string]*wire.Resource)
	for name, r := range map[string]*discoverypb.Resource{
		"plain":      {Name: "c", Version: "1", Resource: body},
		"no version": {Name: "c", Resource: body},
		"aliases, TTL": {Name: "c", Version: "1", Aliases: []string{"a", "b"}, Ttl: durationpb.New(time.Minute),
			Resource: body},
		"not to keep": {Name: "c", Version: "1", CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
			Resource: body},
		"xdstp": {Name: "xdstp://a/envoy.config.cluster.v3.Cluster/c?b=2&a=1", Version: "1", Resource: body},
		"a variant": {ResourceName: &discoverypb.ResourceName{Name: "c", DynamicParameterConstraints: constraints},
			Version: "1", Resource: body},
		"a full name": {ResourceName: &discoverypb.ResourceName{Name: "c"}, Resource: body},
	} {
		msg, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{TypeUrl: wire.ClusterType,
			Resources: []*discoverypb.Resource{r}})
		if err != nil {
			t.Fatal(err)
		}
		u, err := wire.Decoder{}.Decode(msg)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = u.Resources[0]
		out[name+", given up"] = u.Resources[0].DropContent()
	}
	return out
}

// wantEqual fails the test unless two resources are equal.
func wantEqual(t testing.TB, got, want *wire.Resource) {
	t.Helper()
	same := got.Name == want.Name && got.Version == want.Version && got.OriginVersion == want.OriginVersion &&
		slices.Equal(got.Aliases, want.Aliases) && got.TypeURL == want.TypeURL && got.Digest == want.Digest &&
		slices.Equal(got.References(), want.References()) && got.TTL == want.TTL && got.DoNotCache == want.DoNotCache &&
		bytes.Equal(got.Constraints, want.Constraints) && (got.Constraints == nil) == (want.Constraints == nil) &&
		got.SameContent(want) && got.ContentDropped() == want.ContentDropped() && got.HasBody() == want.HasBody() &&
		bytes.Equal(got.Field(), want.Field()) && bytes.Equal(got.Body(), want.Body()) &&
		bytes.Equal(got.Value(), want.Value())
	if !same {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// TestB42_AResourceIsReadAsItWasStored: ReadStored returns an equal resource, which shares no memory with the input.
func TestB42_AResourceIsReadAsItWasStored(t *testing.T) {
	for name, r := range storable(t) {
		t.Run(name, func(t *testing.T) {
			b := r.AppendStored(nil)
			got, err := wire.ReadStored(b)
			if err != nil {
				t.Fatal(err)
			}
			clear(b)
			wantEqual(t, got, r)
		})
	}
}

func TestB42_InvalidStoredResourcesAreRejected(t *testing.T) {
	all := storable(t)
	plain, given := all["plain"].AppendStored(nil), all["plain, given up"].AppendStored(nil)
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, wire.ErrMalformed},
		{"truncated", plain[:len(plain)/2], wire.ErrMalformed},
		{"content and dropped content", slices.Concat(plain, given), wire.ErrMalformed},
		{"content is not a field", []byte{10, 2, 8, 1}, wire.ErrMalformed},
		{"content without a body", []byte{10, 2, 18, 0}, wire.ErrMalformed},
		{"dropped content without a type", []byte{42, 1, 'c'}, wire.ErrMalformed},
		{"a name that is not UTF-8", []byte{42, 1, 0xff}, wire.ErrMalformed},
		{"a short digest", []byte{74, 1, 1}, wire.ErrMalformed},
		{"a short digest of the wrapper", []byte{34, 1, 1}, wire.ErrMalformed},
		{"a cluster without a name", append([]byte{42, 0, 66, byte(len(wire.ClusterType))}, wire.ClusterType...),
			wire.ErrUnnamed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if r, err := wire.ReadStored(tt.b); !errors.Is(err, tt.want) {
				t.Errorf("ReadStored = %v, %v, want the error %v", r, err, tt.want)
			}
		})
	}
}

// FuzzReadStored: each resource that can be decoded is encoded and decoded as an equal one.
func FuzzReadStored(f *testing.F) {
	for _, r := range storable(f) {
		f.Add(r.AppendStored(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.ReadStored(b)
		if err != nil {
			t.Skip("not a stored resource")
		}
		again, err := wire.ReadStored(r.AppendStored(nil))
		if err != nil {
			t.Fatalf("resource decoded from %x cannot be decoded again: %v", b, err)
		}
		wantEqual(t, again, r)
	})
}
