package wire_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

const xdstpFoo = "xdstp://a/acme.v1.Foo/shop"

// TestR128_ResponsesAreCanonical: names of the origin are sent to clients in canonical form, and other fields are
// unchanged.
func TestR128_ResponsesAreCanonical(t *testing.T) {
	origin := richUpdate()
	shop := origin.Resources[0]
	shop.Name = xdstpFoo + "?b=2&a=1"
	shop.Aliases = []string{"shop", xdstpFoo + "?c", xdstpFoo + "?c=1"}
	origin.RemovedResources = []string{"gone", xdstpFoo + "/%67one"}
	msg := marshal(t, origin)

	shop.Name, shop.Aliases[1] = xdstpFoo+"?a=1&b=2", xdstpFoo+"?c="
	u := decode(t, msg)
	r := u.Resources[0]
	if r.Name != shop.Name || !slices.Equal(r.Aliases, shop.Aliases) {
		t.Errorf("got name %q aliases %q, want %q %q", r.Name, r.Aliases, shop.Name, shop.Aliases)
	}
	if want := []string{"gone", xdstpFoo + "/gone"}; !slices.Equal(u.Removed, want) {
		t.Errorf("got removed %q, want %q", u.Removed, want)
	}
	wantMessage(t, "Delta", relayDelta(t, acme, r).GetResources()[0], shop)
	wantMessage(t, "SotW", relaySotW(t, acme, r).GetResources()[0], shop.GetResource())
	wantMessage(t, "wrapped SotW", relayWrapped(t, acme, r)[0], shop)
}

// TestR128_CanonicalBytesAreKept: a resource with canonical names is sent byte for byte as the origin sent it.
func TestR128_CanonicalBytesAreKept(t *testing.T) {
	body := join(bytesField(2, "v"), bytesField(1, acme))
	for _, name := range []string{xdstpFoo + "?a=1&b=2", "xdstp:" + "no?b=2&a=1", "shop?b=2&a=1"} {
		origin := join(bytesField(4, name), bytesField(3, name), bytesField(2, body), bytesField(1, "v"))
		if r := decodeOne(t, acme, origin); !bytes.Equal(r.Field(), bytesField(2, origin)) {
			t.Errorf("name %q: got %q, want %q", name, r.Field(), bytesField(2, origin))
		}
	}
}

// TestR128_SpellingIsNoContent: another spelling of a name is no change of the resource.
func TestR128_SpellingIsNoContent(t *testing.T) {
	resource := func(query string) *wire.Resource {
		return decodeOne(t, acme, marshal(t, &discoverypb.Resource{
			Name: xdstpFoo + query, Aliases: []string{xdstpFoo + query + "&c=3"}, Version: "1", Ttl: durationpb.New(1),
			Resource: &anypb.Any{TypeUrl: acme, Value: []byte("x")},
		}))
	}
	a, b := resource("?a=1&b=2"), resource("?b=2&a=1")
	if !a.SameContent(b) || a.Name != b.Name {
		t.Errorf("resources differ:\n%q\n%q", a.Field(), b.Field())
	}
	if c := resource("?a=1&b=3"); a.SameContent(c) {
		t.Errorf("resources with other aliases have the same content:\n%q\n%q", a.Field(), c.Field())
	}
}

// TestB23_OriginWithMalformedNames: a response that contains a name without a canonical form is rejected.
func TestB23_OriginWithMalformedNames(t *testing.T) {
	good := resourceOf("1", "a", anyOf(acme, nil))
	for _, name := range []string{xdstpFoo + "?a=1&a=2", xdstpFoo + "%", "xdstp://a", xdstpFoo + "#alt=b"} {
		tests := map[string][]byte{
			"name":                      updateOf(acme, good, resourceOf("1", name, anyOf(acme, nil))),
			"alias":                     updateOf(acme, join(good, bytesField(4, name))),
			"removal":                   join(updateOf(acme, good), bytesField(6, name)),
			"removal before all others": join(bytesField(6, name), updateOf(acme, good)),
		}
		for what, msg := range tests {
			t.Run(what+" "+name, func(t *testing.T) {
				u, err := wire.Decoder{}.Decode(msg)
				if !errors.Is(err, wire.ErrXDSTP) || !strings.Contains(err.Error(), name) {
					t.Fatalf("Decode: got error %v, want ErrXDSTP with the name %s", err, name)
				}
				wantRefusable(t, u, acme)
			})
		}
		if _, err := wire.NewResource(acme, name, "1", nil); !errors.Is(err, wire.ErrXDSTP) {
			t.Errorf("NewResource(%q): got error %v, want ErrXDSTP", name, err)
		}
	}
	u := decode(t, updateOf(acme, resourceOf("1", "shop#x?a=1&a=2", anyOf(acme, nil))))
	if u.Resources[0].Name != "shop#x?a=1&a=2" {
		t.Errorf("plain name: got %q", u.Resources[0].Name)
	}
}

// TestR133_SubstituteTypes: a resource with an xdstp name may be a redirect or a collection, and SotW clients are sent
// its name.
func TestR133_SubstituteTypes(t *testing.T) {
	const redirect = "type.googleapis.com/xds.core.v3.ResourceLocator"
	for _, tt := range []struct {
		name, typeURL string
		ok            bool
	}{
		{xdstpFoo, redirect, true},
		{xdstpFoo, acme + "Collection", true},
		{xdstpFoo, acme + "Other", false},
		{"plain", redirect, false},
		{"plain", acme + "Collection", false},
	} {
		msg := updateOf(acme, resourceOf("1", tt.name, anyOf(tt.typeURL, []byte("opaque"))))
		u, err := wire.Decoder{}.Decode(msg)
		if !tt.ok {
			if !errors.Is(err, wire.ErrTypeMismatch) {
				t.Errorf("%s of type %s: got error %v, want ErrTypeMismatch", tt.name, tt.typeURL, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of type %s: %v", tt.name, tt.typeURL, err)
			continue
		}
		b := wire.NewSotWBody(acme, "1", wire.WrapDetails)
		b.Add(u.Resources[0], 0)
		if sent := string(send(t, &wire.Response{Body: b})); !strings.Contains(sent, "envoy.service.discovery.v3.Resource") {
			t.Errorf("%s of type %s: sent without its name: %q", tt.name, tt.typeURL, sent)
		}
	}
}

// TestB23_CanonicalRequests: Canonicalise replaces names by their canonical form and removes malformed ones.
func TestB23_CanonicalRequests(t *testing.T) {
	const bad, spelled, canonical = xdstpFoo + "?a=1&a=2", xdstpFoo + "?b=2&a=1", xdstpFoo + "?a=1&b=2"
	parameters := wire.Separator + "k=v"
	r := &wire.Request{
		Subscribe:       []string{"plain", bad, spelled, bad + parameters, spelled + parameters},
		Unsubscribe:     []string{bad, spelled, spelled + parameters},
		InitialVersions: map[string]string{"plain": "1", spelled: "2", bad: "3"},
	}
	refused := r.Canonicalise()
	if len(refused) != 2 || refused[0].Name != bad || refused[1].Name != bad || !errors.Is(refused[0].Err, wire.ErrXDSTP) {
		t.Errorf("invalid names %v, want the malformed name twice", refused)
	}
	if want := []string{"plain", canonical, canonical + parameters}; !slices.Equal(r.Subscribe, want) {
		t.Errorf("subscribe: got %q, want %q", r.Subscribe, want)
	}
	if want := []string{bad, canonical, canonical + parameters}; !slices.Equal(r.Unsubscribe, want) {
		t.Errorf("unsubscribe: got %q, want %q", r.Unsubscribe, want)
	}
	if want := map[string]string{"plain": "1", canonical: "2"}; !maps.Equal(r.InitialVersions, want) {
		t.Errorf("versions: got %q, want %q", r.InitialVersions, want)
	}
}
