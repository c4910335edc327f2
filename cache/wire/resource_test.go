package wire_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
)

func TestR004_BytesAreIdentical(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	tests := []struct {
		name  string
		value []byte
	}{
		{"empty", nil},
		{"a message", marshal(t, edsCluster("a", "b"))},
		{"not a message", []byte("\xff\xfe not protobuf \x00")},
		{"fields out of order", join(bytesField(9, "z"), bytesField(1, "a"), bytesField(9, "y"))},
		{"number longer than it must be", []byte{0x08, 0x81, 0x80, 0x00}},
		{"64 KiB", big},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Both the Any and the Resource have an unusual field order.
			body := join(bytesField(2, tt.value), bytesField(1, acme))
			origin := join(bytesField(3, "a"), bytesField(2, body), bytesField(1, "v"), bytesField(4, "alias"))
			r := decodeOne(t, acme, origin)
			if want := bytesField(2, origin); !bytes.Equal(r.Field(), want) {
				t.Errorf("Field: got %q, want %q", r.Field(), want)
			}
			if want := bytesField(2, body); !bytes.Equal(r.Body(), want) {
				t.Errorf("Body: got %q, want %q", r.Body(), want)
			}
			want := sha256.Sum256(tt.value)
			delta := relayDelta(t, acme, r).GetResources()[0].GetResource()
			sotw := relaySotW(t, acme, r).GetResources()[0]
			for variant, got := range map[string]*anypb.Any{"Delta": delta, "SotW": sotw} {
				if sha256.Sum256(got.GetValue()) != want || got.GetTypeUrl() != acme {
					t.Errorf("%s: value differs from the origin's", variant)
				}
			}
		})
	}
}

func TestR127_UnknownFieldsSurvive(t *testing.T) {
	const number = 4242
	unknown := join(bytesField(number, "from the future"), protowire.AppendTag(nil, number, protowire.VarintType),
		[]byte{42})
	value := marshal(t, edsCluster("a", ""))
	body := anyOf(wire.ClusterType, value)
	meta := marshal(t, &corepb.Metadata{FilterMetadata: map[string]*structpb.Struct{"acme": {}}})
	tests := map[string][]byte{
		"resource":         join(resourceOf("1", "a", body), unknown),
		"before the rest":  join(unknown, resourceOf("1", "a", body)),
		"metadata":         join(resourceOf("1", "a", body), bytesField(9, join(meta, unknown))),
		"any":              resourceOf("1", "a", join(body, unknown)),
		"message":          resourceOf("1", "a", anyOf(wire.ClusterType, join(value, unknown))),
		"no version given": join(resourceOf("", "a", join(body, unknown)), unknown),
		"with a TTL":       join(resourceOf("1", "a", body), unknown, ttlOf(t, durationpb.New(time.Minute))),
	}
	for name, origin := range tests {
		t.Run(name, func(t *testing.T) {
			want := new(discoverypb.Resource)
			receive(t, origin, want)
			r := decodeOne(t, wire.ClusterType, origin)
			want.Version = r.Version
			got := relayDelta(t, wire.ClusterType, r).GetResources()[0]
			wantMessage(t, "Delta", got, want)
			wantMessage(t, "SotW", relaySotW(t, wire.ClusterType, r).GetResources()[0], want.GetResource())
			wantMessage(t, "wrapped SotW", relayWrapped(t, wire.ClusterType, r)[0], want)
			if !bytes.Contains(r.Field(), unknown) {
				t.Errorf("Field %q does not contain %q", r.Field(), unknown)
			}
			if !bytes.Contains(marshal(t, got), unknown) {
				t.Errorf("re-encoding %v in a client lost %q", got, unknown)
			}
		})
	}
}

func TestR090_EmptyVersionGetsContentVersion(t *testing.T) {
	body := anyOf(acme, []byte("content"))
	sum := sha256.Sum256([]byte(acme + "\x00content"))
	content := "h1." + base64.RawURLEncoding.EncodeToString(sum[:16])
	tests := []struct {
		name     string
		resource []byte
		content  bool // Decoder.ContentVersions
		origin   string
		want     string
	}{
		{"none", join(bytesField(3, "a"), bytesField(2, body)), false, "", content},
		{"empty", resourceOf("", "a", body), false, "", content},
		{"origin's version", resourceOf("v7", "a", body), false, "v7", "v7"},
		{"origin's version, content versions", resourceOf("v7", "a", body), true, "v7", content},
		{"no version, content versions", resourceOf("", "a", body), true, "", content},
		{"origin's version equals the content version", resourceOf(content, "a", body), true, content, content},
		{"no body", bytesField(3, "a"), false, "", ""},
		{"heartbeat", join(bytesField(3, "a"), bytesField(1, "v7")), true, "v7", "v7"},
		{"last of several", join(bytesField(1, "v1"), resourceOf("v2", "a", body)), false, "v2", "v2"},
		{"several, the last empty", join(bytesField(1, "v1"), resourceOf("", "a", body)), false, "", content},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := wire.Decoder{ContentVersions: tt.content}.Decode(updateOf(acme, tt.resource))
			if err != nil {
				t.Fatal(err)
			}
			r := u.Resources[0]
			if r.Version != tt.want || r.OriginVersion != tt.origin {
				t.Errorf("got version %q origin's %q, want %q %q", r.Version, r.OriginVersion, tt.want, tt.origin)
			}
			if got := relayDelta(t, acme, r).GetResources()[0].GetVersion(); got != tt.want {
				t.Errorf("a client gets version %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	r := decodeOne(t, acme, resourceOf("1", "a", anyOf(acme, []byte("content"))))
	if want := wire.Digest(sha256.Sum256([]byte(acme + "\x00content"))); r.Digest != want {
		t.Errorf("got %x, want %x", r.Digest, want)
	}
	if got := r.ContentVersion(); len(got) != len("h1.")+22 {
		t.Errorf("ContentVersion: got %q, want h1. and 22 characters", got)
	}
	// The field order of the Any is not part of its content.
	other := decodeOne(t, acme,
		resourceOf("2", "b", join(bytesField(2, "old"), bytesField(2, "content"), bytesField(1, acme))))
	if other.Digest != r.Digest {
		t.Errorf("same content, other field order: got %x, want %x", other.Digest, r.Digest)
	}
	if none := decodeOne(t, acme, bytesField(3, "a")); none.Digest != (wire.Digest{}) {
		t.Errorf("no body: got digest %x, want zero", none.Digest)
	}
}

func TestSameContent(t *testing.T) {
	base := &discoverypb.Resource{Name: "a", Version: "1", Resource: &anypb.Any{TypeUrl: acme, Value: []byte("v")}}
	change := func(f func(r *discoverypb.Resource)) *discoverypb.Resource {
		r := proto.CloneOf(base)
		f(r)
		return r
	}
	tests := map[string]struct {
		other *discoverypb.Resource
		want  bool
	}{
		"equal":    {base, true},
		"version":  {change(func(r *discoverypb.Resource) { r.Version = "2" }), true},
		"value":    {change(func(r *discoverypb.Resource) { r.Resource.Value = []byte("w") }), false},
		"no body":  {change(func(r *discoverypb.Resource) { r.Resource = nil }), false},
		"alias":    {change(func(r *discoverypb.Resource) { r.Aliases = []string{"b"} }), false},
		"ttl":      {change(func(r *discoverypb.Resource) { r.Ttl = durationpb.New(time.Second) }), true},
		"metadata": {change(func(r *discoverypb.Resource) { r.Metadata = &corepb.Metadata{} }), false},
		"unknown":  {change(func(r *discoverypb.Resource) { r.ProtoReflect().SetUnknown(bytesField(4242, "x")) }), false},
	}
	r := decodeOne(t, acme, marshal(t, base))
	for name, tt := range tests {
		o := decodeOne(t, acme, marshal(t, tt.other))
		if r.SameContent(o) != tt.want || o.SameContent(r) != tt.want {
			t.Errorf("%s: got %t and %t, want %t", name, r.SameContent(o), o.SameContent(r), tt.want)
		}
	}
}

func TestNewResource(t *testing.T) {
	tests := []struct {
		name          string
		typeURL       string
		resource      string
		version       string
		value         []byte
		aliases       []string
		want          error
		wantedVersion string
	}{
		{"plain", acme, "a", "1", []byte("v"), nil, nil, "1"},
		{"aliases", acme, "a", "1", []byte("v"), []string{"b", "c"}, nil, "1"},
		{"no version", acme, "a", "", []byte("v"), nil, nil, "h1."},
		{"no value", acme, "a", "1", nil, nil, nil, "1"},
		{"no name", acme, "", "1", []byte("v"), nil, nil, "1"},
		{"no name, known type", wire.ListenerType, "", "1", nil, nil, wire.ErrUnnamed, ""},
		{"name not UTF-8", acme, notUTF8, "1", nil, nil, wire.ErrMalformed, ""},
		{"version not UTF-8", acme, "a", notUTF8, nil, nil, wire.ErrMalformed, ""},
		{"alias not UTF-8", acme, "a", "1", nil, []string{notUTF8}, wire.ErrMalformed, ""},
		{"type not UTF-8", notUTF8, "a", "1", nil, nil, wire.ErrMalformed, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := wire.NewResource(tt.typeURL, tt.resource, tt.version, tt.value, tt.aliases...)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got error %v, want %v", err, tt.want)
			}
			if err != nil {
				return
			}
			if tt.wantedVersion == "h1." {
				tt.wantedVersion = r.ContentVersion()
			}
			want := &discoverypb.Resource{
				Name: tt.resource, Version: tt.wantedVersion, Aliases: tt.aliases,
				Resource: &anypb.Any{TypeUrl: tt.typeURL, Value: tt.value},
			}
			wantMessage(t, "Delta", relayDelta(t, tt.typeURL, r).GetResources()[0], want)
			wantMessage(t, "SotW", relaySotW(t, tt.typeURL, r).GetResources()[0], want.GetResource())

			again := decodeOne(t, tt.typeURL, marshal(t, want))
			if !again.SameContent(r) || again.Version != r.Version || !slices.Equal(again.Aliases, r.Aliases) {
				t.Errorf("round trip: got %+v, want %+v", again, r)
			}
		})
	}
}

func TestResourceWithoutBody(t *testing.T) {
	r := decodeOne(t, acme, join(bytesField(3, "a"), bytesField(4, "a"))) // R095
	if r.HasBody() || r.Body() != nil || r.Value() != nil || r.Version != "" || r.TypeURL != "" {
		t.Errorf("got %+v, want no body, version nor type", r)
	}
	want := &discoverypb.Resource{Name: "a", Aliases: []string{"a"}}
	wantMessage(t, "Delta", relayDelta(t, acme, r).GetResources()[0], want)
	if got := relaySotW(t, acme, r).GetResources(); len(got) != 0 {
		t.Errorf("SotW: got %v, want nothing (R111)", got)
	}
	if got := relayWrapped(t, acme, r); len(got) != 0 {
		t.Errorf("wrapped SotW: got %v, want nothing (R111)", got)
	}
}

func TestAppendToBodyDoesNotModifyField(t *testing.T) {
	r := decodeOne(t, acme, resourceOf("1", "a", anyOf(acme, []byte("v"))))
	want := bytes.Clone(r.Field())
	_ = append(r.Body(), 'X')
	if !bytes.Equal(r.Field(), want) {
		t.Errorf("append to Body changed Field: got %q, want %q", r.Field(), want)
	}
}
