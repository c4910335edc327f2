package wire_test

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"testing"
	"unicode/utf8"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// FuzzDecodeUpdate holds the decoder to the generated one, and what is relayed
// to what a client's generated decoder makes of it.
func FuzzDecodeUpdate(f *testing.F) {
	for _, seed := range updateSeeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		checkUpdate(t, wire.Decoder{}, msg)
		checkUpdate(t, wire.Decoder{ContentVersions: true}, msg)
	})
}

func updateSeeds(tb testing.TB) [][]byte {
	rich := richUpdate()
	body := anyOf(acme, []byte("value"))
	unknown := bytesField(4242, "new")
	group := join(protowire.AppendTag(nil, 77, protowire.StartGroupType), unknown,
		protowire.AppendTag(nil, 77, protowire.EndGroupType))
	tooLarge := protowire.AppendVarint(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1)
	return [][]byte{
		nil,
		marshal(tb, rich),
		marshal(tb, clusterUpdate(tb)),
		marshal(tb, &discoverypb.DeltaDiscoveryResponse{TypeUrl: wire.EndpointType, Nonce: "n", RemovedResources: []string{"a"}}),
		updateOf(acme, resourceOf("1", "a", body), resourceOf("1", "a", body)),
		updateOf(acme, resourceOf("1", "a", anyOf(wire.ClusterType, nil))),
		updateOf(wire.ClusterType, resourceOf("1", "", anyOf(wire.ClusterType, nil))),
		updateOf(acme, join(bytesField(2, bytesField(1, acme)), bytesField(3, "split"), bytesField(2, bytesField(2, "v")))),
		updateOf(acme, join(bytesField(3, "first"), bytesField(3, "last"), bytesField(1, "v"), bytesField(1, ""))),
		updateOf(acme, join(unknown, group, resourceOf("", "a", join(body, unknown, group)), group)),
		updateOf(acme, join(bytesField(3, "varint body"), protowire.AppendTag(nil, 2, protowire.VarintType), []byte{7})),
		updateOf(acme, resourceOf("1", "a", join(body, tooLarge))),
		updateOf(acme, join(resourceOf("1", "a", body), bytesField(6, "\x08"))), // malformed ttl
		updateOf(acme, join(bytesField(3, "varint ttl"), protowire.AppendTag(nil, 6, protowire.VarintType), []byte{7})),
		updateOf(acme, resourceOf("1", notUTF8, body)),
		join(bytesField(1, notUTF8), updateOf(acme)),
		join(updateOf(acme), bytesField(7, bytesField(1, notUTF8))),
		join(updateOf(acme), bytesField(7, bytesField(1, "one")), bytesField(7, unknown), bytesField(7, "")),
		join(updateOf(acme), unknown, group),
		join(updateOf(acme, join(resourceOf("1", xdstpFoo+"?b=2&a=1", body), bytesField(4, xdstpFoo+"?b"))), bytesField(6, xdstpFoo+"?")),
		updateOf(acme, join(bytesField(3, xdstpFoo+"#"), resourceOf("1", xdstpFoo+"?b=2&a=1", body))),
		updateOf(acme, resourceOf("1", xdstpFoo+"?b=2&a=1", body), resourceOf("1", xdstpFoo+"?a=1&b=2", body)),
		join(updateOf(acme), bytesField(6, xdstpFoo+"#")),
		join(updateOf(acme), bytesField(9, join(bytesField(1, bytesField(1, xdstpFoo+"?")), bytesField(2, bytesField(2, "why"))))),
		join(updateOf(acme), bytesField(9, bytesField(1, "")), bytesField(9, bytesField(2, bytesField(2, "nameless")))),
		join(updateOf(acme, resourceOf("1", "a", body)), bytesField(9, bytesField(1, bytesField(1, "a")))),
	}
}

// checkUpdate decodes msg with d and with the generated decoder, and compares.
func checkUpdate(t *testing.T, d wire.Decoder, msg []byte) {
	t.Helper()
	want := new(discoverypb.DeltaDiscoveryResponse)
	refused := proto.Unmarshal(msg, want)
	input := bytes.Clone(msg)
	got, err := d.Decode(input)
	for i := range input {
		input[i] ^= 0xff // what was decoded must not change with it
	}
	if err != nil && !knownError(err) {
		t.Fatalf("Decode(%q): got an undocumented error: %v", msg, err)
	}
	if refused != nil {
		if err == nil {
			checkRelay(t, got)
		}
		return
	}
	if malformed := canonicalise(want); malformed != nil {
		if err == nil || !errors.Is(err, wire.ErrXDSTP) && !errors.Is(err, strictness(want)) {
			t.Fatalf("Decode(%q): got error %v, want %v", msg, err, malformed)
		}
		return
	}
	if strict := strictness(want); !errors.Is(err, strict) {
		t.Fatalf("Decode(%q): got error %v, want %v", msg, err, strict)
	}
	checkEnvelope(t, msg, got, want, err == nil)
	if err != nil {
		return
	}
	if len(got.Resources) != len(want.GetResources()) {
		t.Fatalf("Decode(%q): got %d resources, want %d", msg, len(got.Resources), len(want.GetResources()))
	}
	for i, r := range got.Resources {
		checkResource(t, d, r, want.GetResources()[i])
	}
	checkRelayed(t, got, want)
}

func knownError(err error) bool {
	return slices.ContainsFunc([]error{wire.ErrMalformed, wire.ErrUnnamed, wire.ErrDuplicate, wire.ErrTypeMismatch, wire.ErrXDSTP},
		func(known error) bool { return errors.Is(err, known) })
}

// canonicalise puts the names of an update in canonical form, and returns the
// error for one that has none.
func canonicalise(u *discoverypb.DeltaDiscoveryResponse) (malformed error) {
	respell := func(name *string) {
		canonical, err := wire.CanonicalName(*name)
		if err != nil {
			malformed = err
			return
		}
		*name = canonical
	}
	for i := range u.GetRemovedResources() {
		respell(&u.RemovedResources[i])
	}
	for _, e := range u.GetResourceErrors() {
		if full := e.GetResourceName(); full != nil {
			full.Name = cmp.Or(full.GetName(), wire.Wildcard)
			respell(&full.Name)
		}
	}
	for _, r := range u.GetResources() {
		respell(&r.Name)
		for i := range r.GetAliases() {
			respell(&r.Aliases[i])
		}
	}
	return malformed
}

// strictness returns the error for a valid message that the protocol forbids all
// the same.
func strictness(u *discoverypb.DeltaDiscoveryResponse) error {
	for _, e := range u.GetResourceErrors() {
		if e.GetResourceName() == nil {
			return wire.ErrUnnamed
		}
	}
	if u.GetTypeUrl() == "" {
		return wire.ErrMalformed
	}
	seen := map[string]bool{}
	for _, r := range u.GetResources() {
		switch {
		case r.GetName() == "" && wire.Known(u.GetTypeUrl()):
			return wire.ErrUnnamed
		case r.GetResource() != nil && r.GetResource().GetTypeUrl() != u.GetTypeUrl():
			return wire.ErrTypeMismatch
		case seen[r.GetName()]:
			return wire.ErrDuplicate
		}
		seen[r.GetName()] = true
	}
	for _, e := range u.GetResourceErrors() {
		full := e.GetResourceName()
		if seen[full.GetName()] && proto.Size(full.GetDynamicParameterConstraints()) == 0 {
			return wire.ErrDuplicate
		}
	}
	for _, name := range u.GetRemovedResources() {
		if seen[name] {
			return wire.ErrDuplicate
		}
		seen[name] = true
	}
	return nil
}

func checkEnvelope(t *testing.T, msg []byte, got wire.Update, want *discoverypb.DeltaDiscoveryResponse, accepted bool) {
	t.Helper()
	if got.TypeURL != want.GetTypeUrl() || got.Nonce != want.GetNonce() {
		t.Errorf("Decode(%q): got type %q nonce %q, want %q %q", msg, got.TypeURL, got.Nonce, want.GetTypeUrl(), want.GetNonce())
	}
	if !accepted {
		return
	}
	if got.SystemVersion != want.GetSystemVersionInfo() {
		t.Errorf("Decode(%q): got system version %q, want %q", msg, got.SystemVersion, want.GetSystemVersionInfo())
	}
	if id := want.GetControlPlane().GetIdentifier(); got.ControlPlane != id {
		t.Errorf("Decode(%q): got control plane %q, want %q", msg, got.ControlPlane, id)
	}
	if !slices.Equal(got.Removed, want.GetRemovedResources()) {
		t.Errorf("Decode(%q): got removed %q, want %q", msg, got.Removed, want.GetRemovedResources())
	}
	if len(got.Errors) != len(want.GetResourceErrors()) {
		t.Fatalf("Decode(%q): got %d errors, want %d", msg, len(got.Errors), len(want.GetResourceErrors()))
	}
	for i, e := range got.Errors {
		w := want.GetResourceErrors()[i]
		if e.Name != w.GetResourceName().GetName() || int32(e.Code) != w.GetErrorDetail().GetCode() || e.Message != w.GetErrorDetail().GetMessage() {
			t.Errorf("Decode(%q): got error of %q: %d %q, want %v", msg, e.Name, e.Code, e.Message, w)
		}
	}
}

func checkResource(t *testing.T, d wire.Decoder, got *wire.Resource, want *discoverypb.Resource) {
	t.Helper()
	if got.Name != want.GetName() || got.OriginVersion != want.GetVersion() || !slices.Equal(got.Aliases, want.GetAliases()) {
		t.Errorf("resource %v:\n got name %q version %q aliases %q", want, got.Name, got.OriginVersion, got.Aliases)
	}
	if got.HasBody() != (want.GetResource() != nil) || got.TypeURL != want.GetResource().GetTypeUrl() {
		t.Errorf("resource %v:\n got body %t of type %q", want, got.HasBody(), got.TypeURL)
	}
	if !bytes.Equal(got.Value(), want.GetResource().GetValue()) {
		t.Errorf("resource %q: got value %q, want %q", got.Name, got.Value(), want.GetResource().GetValue())
	}
	version := want.GetVersion()
	if want.GetResource() != nil && (version == "" || d.ContentVersions) {
		version = got.ContentVersion()
	}
	if got.Version != version {
		t.Errorf("resource %q: got version %q, want %q", got.Name, got.Version, version)
	}
	if ttl := max(want.GetTtl().AsDuration(), 0); got.TTL != ttl {
		t.Errorf("resource %v: got TTL %v, want %v", want, got.TTL, ttl)
	}
	if got.Size() != len(got.Field()) {
		t.Errorf("resource %q: got size %d, want %d", got.Name, got.Size(), len(got.Field()))
	}
}

// checkRelayed compares what clients get with what the origin sent.
func checkRelayed(t *testing.T, got wire.Update, want *discoverypb.DeltaDiscoveryResponse) {
	t.Helper()
	delta, sotw := checkRelay(t, got)
	wrapped := relayWrapped(t, got.TypeURL, got.Resources...)
	next := 0
	for i, r := range got.Resources {
		origin := proto.CloneOf(want.GetResources()[i])
		origin.Version = r.Version
		if origin.Ttl = nil; r.TTL > 0 {
			origin.Ttl = durationpb.New(r.TTL)
		}
		wantMessage(t, "Delta resource", delta.GetResources()[i], origin)
		if r.HasBody() {
			wantMessage(t, "SotW resource", sotw.GetResources()[next], origin.GetResource())
			wantMessage(t, "wrapped SotW resource", wrapped[next], origin)
			next++
		}
	}
}

// checkRelay sends the update on, in both variants; a client's decoder must
// accept it, and find all resources.
func checkRelay(t *testing.T, u wire.Update) (*discoverypb.DeltaDiscoveryResponse, *discoverypb.DiscoveryResponse) {
	t.Helper()
	body, full := wire.NewDeltaBody(u.TypeURL, u.SystemVersion), wire.NewSotWBody(u.TypeURL, "v", wire.Bare)
	bodies := 0
	for _, r := range u.Resources {
		body.Add(r, r.TTL)
		full.Add(r, r.TTL)
		if r.HasBody() {
			bodies++
		}
	}
	for _, name := range u.Removed {
		body.Remove(name)
	}
	delta, sotw := new(discoverypb.DeltaDiscoveryResponse), new(discoverypb.DiscoveryResponse)
	receive(t, send(t, &wire.Response{Body: body, Nonce: "n", ControlPlane: u.ControlPlane}), delta)
	receive(t, send(t, &wire.Response{Body: full, Nonce: "n", ControlPlane: u.ControlPlane}), sotw)
	if len(delta.GetResources()) != len(u.Resources) || !slices.Equal(delta.GetRemovedResources(), u.Removed) {
		t.Fatalf("relayed update: got %v", delta)
	}
	if len(sotw.GetResources()) != bodies || full.Len() != bodies {
		t.Fatalf("relayed set: got %d resources, Len %d, want %d", len(sotw.GetResources()), full.Len(), bodies)
	}
	for i, r := range u.Resources {
		in := delta.GetResources()[i]
		if in.GetName() != r.Name || in.GetVersion() != r.Version || !bytes.Equal(in.GetResource().GetValue(), r.Value()) {
			t.Errorf("relayed resource %q version %q: got %v", r.Name, r.Version, in)
		}
	}
	if !utf8.ValidString(u.Nonce) || delta.GetControlPlane().GetIdentifier() != u.ControlPlane {
		t.Errorf("relayed envelope: got control plane %v, want %q", delta.GetControlPlane(), u.ControlPlane)
	}
	return delta, sotw
}
