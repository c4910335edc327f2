package wire_test

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// FuzzDecodeUpdate compares the decoder with the generated decoder, and the relayed responses with the output of a
// client's generated decoder.
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
	// A name for clients with env=prod: SingleConstraint has key=1 and value=2.
	constrained := bytesField(1, join(bytesField(1, "env"), bytesField(2, "prod")))
	onlyProd := join(bytesField(1, "a"), bytesField(2, constrained))
	variant := join(resourceOf("1", "", body), bytesField(8, onlyProd))
	return [][]byte{
		nil,
		marshal(tb, rich),
		marshal(tb, clusterUpdate(tb)),
		marshal(tb,
			&discoverypb.DeltaDiscoveryResponse{TypeUrl: wire.EndpointType, Nonce: "n", RemovedResources: []string{"a"}}),
		updateOf(acme, resourceOf("1", "a", body), resourceOf("1", "a", body)),
		updateOf(acme, resourceOf("1", "a", anyOf(wire.ClusterType, nil))),
		updateOf(wire.ClusterType, resourceOf("1", "", anyOf(wire.ClusterType, nil))),
		updateOf(acme, join(bytesField(2, bytesField(1, acme)), bytesField(3, "split"), bytesField(2, bytesField(2, "v")))),
		updateOf(acme,
			join(bytesField(2, anyOf(acme, []byte("u"))), bytesField(3, "a"), bytesField(2, ""),
				bytesField(2, bytesField(2, "v")))),
		updateOf(acme,
			join(bytesField(2, bytesField(1, acme)), bytesField(4, "al"), unknown, bytesField(3, "a"),
				bytesField(2, join(bytesField(2, "v"), unknown)), bytesField(1, "1"))),
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
		join(updateOf(acme, join(resourceOf("1", xdstpFoo+"?b=2&a=1", body), bytesField(4, xdstpFoo+"?b"))),
			bytesField(6, xdstpFoo+"?")),
		updateOf(acme, join(bytesField(3, xdstpFoo+"#"), resourceOf("1", xdstpFoo+"?b=2&a=1", body))),
		updateOf(acme, resourceOf("1", xdstpFoo+"?b=2&a=1", body), resourceOf("1", xdstpFoo+"?a=1&b=2", body)),
		join(updateOf(acme), bytesField(6, xdstpFoo+"#")),
		join(updateOf(acme),
			bytesField(9, join(bytesField(1, bytesField(1, xdstpFoo+"?")), bytesField(2, bytesField(2, "why"))))),
		join(updateOf(acme), bytesField(9, bytesField(1, "")), bytesField(9, bytesField(2, bytesField(2, "nameless")))),
		join(updateOf(acme, resourceOf("1", "a", body)), bytesField(9, bytesField(1, bytesField(1, "a")))),
		updateOf(acme, join(bytesField(8, bytesField(1, "a")), bytesField(2, body))),
		updateOf(acme, variant, join(resourceOf("1", "", body), bytesField(8, bytesField(1, "a")))),
		updateOf(acme, variant, variant),
		updateOf(acme, join(resourceOf("1", "a", body), bytesField(8, bytesField(1, "a")))), // both names
		updateOf(acme, join(resourceOf("1", "a", body), bytesField(8, bytesField(2, constrained)))),
		join(updateOf(acme), bytesField(8, bytesField(1, "a")), bytesField(6, "b"), bytesField(8, onlyProd),
			bytesField(6, "a")),
		join(updateOf(acme), bytesField(6, "b"), bytesField(8, onlyProd), bytesField(8, bytesField(1, xdstpFoo+"?"))),
		join(updateOf(acme), bytesField(8, onlyProd), bytesField(8, onlyProd)),
		join(updateOf(acme, variant), bytesField(8, onlyProd)),
		join(updateOf(acme, variant), bytesField(9, bytesField(1, onlyProd))),
		join(updateOf(acme), bytesField(9, bytesField(1, onlyProd))),
		updateOf(acme, resourceOf("1", xdstpFoo, anyOf(redirectType, nil)), resourceOf("1", "a", anyOf(redirectType, nil))),
		updateOf(acme, resourceOf("1", xdstpFoo, anyOf(acme+"Collection", nil))),
		updateOf(acme, resourceOf("1", "a", body), resourceOf("1", "a", body),
			resourceOf("1", "b", anyOf(wire.ClusterType, nil))),
	}
}

// checkUpdate decodes msg with d and with the generated decoder, and compares the results.
func checkUpdate(t *testing.T, d wire.Decoder, msg []byte) {
	t.Helper()
	want := new(discoverypb.DeltaDiscoveryResponse)
	refused := proto.Unmarshal(msg, want)
	input := bytes.Clone(msg)
	got, err := d.Decode(input)
	for i := range input {
		input[i] ^= 0xff // the update must not share memory with the input
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
	if found := faults(want); !fits(err, found) {
		t.Fatalf("Decode(%q): got error %v, want one of %v", msg, err, found)
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
	return slices.ContainsFunc([]error{wire.ErrMalformed, wire.ErrUnnamed, wire.ErrDuplicate, wire.ErrTypeMismatch,
		wire.ErrXDSTP},
		func(known error) bool { return errors.Is(err, known) })
}

// fits reports whether err is one of the found errors, or nil if there is none.
func fits(err error, found []error) bool {
	if len(found) == 0 || err == nil {
		return len(found) == 0 && err == nil
	}
	return slices.ContainsFunc(found, func(fault error) bool { return errors.Is(err, fault) })
}

// faults converts a valid message to the form that the relay uses, with one canonical name for each resource, and
// returns an error for each violation of the protocol.
func faults(u *discoverypb.DeltaDiscoveryResponse) (found []error) {
	if u.GetTypeUrl() == "" {
		found = append(found, wire.ErrMalformed)
	}
	for i := range u.GetRemovedResources() {
		found = append(found, respell(&u.RemovedResources[i])...)
	}
	var variants []*discoverypb.ResourceName
	for _, full := range u.GetRemovedResourceNames() {
		found = append(found, respell(&full.Name)...)
		if constraints(full) == nil {
			u.RemovedResources = append(u.RemovedResources, full.GetName())
		} else {
			variants = append(variants, full)
		}
	}
	u.RemovedResourceNames = variants
	for _, e := range u.GetResourceErrors() {
		if full := e.GetResourceName(); full != nil {
			full.Name = cmp.Or(full.GetName(), wire.Wildcard)
			found = append(found, respell(&full.Name)...)
		} else {
			found = append(found, wire.ErrUnnamed)
		}
	}
	for _, r := range u.GetResources() {
		found = append(found, resourceFaults(u.GetTypeUrl(), r)...)
	}
	return append(found, duplicates(u)...)
}

// respell replaces a name by its canonical form, and returns the error if it has none.
func respell(name *string) []error {
	canonical, err := wire.CanonicalName(*name)
	if err != nil {
		return []error{wire.ErrXDSTP}
	}
	*name = canonical
	return nil
}

func resourceFaults(typeURL string, r *discoverypb.Resource) (found []error) {
	for i := range r.GetAliases() {
		found = append(found, respell(&r.Aliases[i])...)
	}
	if full := r.GetResourceName(); full.GetName() != "" {
		if r.GetName() != "" {
			found = append(found, wire.ErrMalformed)
		}
		r.Name = full.GetName()
		r.ResourceName = nil
		if c := constraints(full); c != nil {
			r.ResourceName = &discoverypb.ResourceName{Name: r.GetName(),
				DynamicParameterConstraints: full.GetDynamicParameterConstraints()}
		}
	}
	found = append(found, respell(&r.Name)...)
	if variantOf(r) != nil {
		r.ResourceName.Name = r.GetName()
	}
	if r.GetName() == "" && wire.Known(typeURL) {
		found = append(found, wire.ErrUnnamed)
	}
	in := r.GetResource().GetTypeUrl()
	standsIn := strings.HasPrefix(r.GetName(), "xdstp://") && (in == redirectType || in == typeURL+"Collection")
	if r.GetResource() != nil && in != typeURL && !standsIn {
		found = append(found, wire.ErrTypeMismatch)
	}
	return found
}

// redirectType is the type of a redirect to another name.
const redirectType = "type.googleapis.com/xds.core.v3.ResourceLocator"

// constraints returns the deterministic encoding of the constraints of a name; nil if there are none.
func constraints(full *discoverypb.ResourceName) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(full.GetDynamicParameterConstraints())
	if err != nil {
		panic(err) // it was decoded
	}
	if len(b) == 0 {
		return nil
	}
	return b
}

// variantOf returns the constraints of a resource in a message that faults has converted; nil if it has no variants.
func variantOf(r *discoverypb.Resource) []byte {
	if r.GetResourceName().GetName() == "" {
		return nil // empty constraints
	}
	return constraints(r.GetResourceName())
}

// duplicates returns an error if a message that resourceFaults has converted contains a resource twice.
func duplicates(u *discoverypb.DeltaDiscoveryResponse) []error {
	seen := map[string]bool{}
	twice := func(name string, variant []byte) bool {
		key := wire.Variant{Name: name, Constraints: variant}.Key()
		defer func() { seen[key] = true }()
		return seen[key]
	}
	found := false
	for _, r := range u.GetResources() {
		found = twice(r.GetName(), variantOf(r)) || found
	}
	for _, e := range u.GetResourceErrors() {
		full := e.GetResourceName()
		found = seen[wire.Variant{Name: full.GetName(), Constraints: constraints(full)}.Key()] || found
	}
	for _, name := range u.GetRemovedResources() {
		found = twice(name, nil) || found
	}
	for _, full := range u.GetRemovedResourceNames() {
		found = twice(full.GetName(), constraints(full)) || found
	}
	if found {
		return []error{wire.ErrDuplicate}
	}
	return nil
}

func checkEnvelope(t *testing.T, msg []byte, got wire.Update, want *discoverypb.DeltaDiscoveryResponse, accepted bool) {
	t.Helper()
	if got.TypeURL != want.GetTypeUrl() || got.Nonce != want.GetNonce() {
		t.Errorf("Decode(%q): got type %q nonce %q, want %q %q", msg, got.TypeURL, got.Nonce, want.GetTypeUrl(),
			want.GetNonce())
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
	// The names of the two fields may be mixed.
	if removed := want.GetRemovedResources(); !slices.Equal(slices.Sorted(slices.Values(got.Removed)),
		slices.Sorted(slices.Values(removed))) {
		t.Errorf("Decode(%q): got removed %q, want %q", msg, got.Removed, removed)
	}
	if !slices.EqualFunc(got.RemovedVariants, want.GetRemovedResourceNames(), isVariant) {
		t.Errorf("Decode(%q): got removed variants %q, want %v", msg, got.RemovedVariants, want.GetRemovedResourceNames())
	}
	if len(got.Errors) != len(want.GetResourceErrors()) {
		t.Fatalf("Decode(%q): got %d errors, want %d", msg, len(got.Errors), len(want.GetResourceErrors()))
	}
	for i, e := range got.Errors {
		w := want.GetResourceErrors()[i]
		if !isVariant(e.Variant, w.GetResourceName()) || int32(e.Code) != w.GetErrorDetail().GetCode() ||
			e.Message != w.GetErrorDetail().GetMessage() {
			t.Errorf("Decode(%q): got error of %q: %d %q, want %v", msg, e.Name, e.Code, e.Message, w)
		}
	}
}

func isVariant(got wire.Variant, want *discoverypb.ResourceName) bool {
	return got.Name == want.GetName() && bytes.Equal(got.Constraints, constraints(want))
}

func checkResource(t *testing.T, d wire.Decoder, got *wire.Resource, want *discoverypb.Resource) {
	t.Helper()
	if got.Name != want.GetName() || got.OriginVersion != want.GetVersion() ||
		!slices.Equal(got.Aliases, want.GetAliases()) {
		t.Errorf("resource %v:\n got name %q version %q aliases %q", want, got.Name, got.OriginVersion, got.Aliases)
	}
	if !bytes.Equal(got.Constraints, variantOf(want)) {
		t.Errorf("resource %v:\n got constraints %q", want, got.Constraints)
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

// asSent returns the resource that clients are sent, for an origin's resource that resourceFaults has converted.
func asSent(r *wire.Resource, origin *discoverypb.Resource) *discoverypb.Resource {
	sent := proto.CloneOf(origin)
	sent.Version = r.Version
	if r.Constraints != nil {
		sent.Name = "" // the name is in resource_name
	}
	if sent.Ttl = nil; r.TTL > 0 {
		sent.Ttl = durationpb.New(r.TTL)
	}
	return sent
}

// checkRelayed compares the resources that clients receive with those of the origin.
func checkRelayed(t *testing.T, got wire.Update, want *discoverypb.DeltaDiscoveryResponse) {
	t.Helper()
	delta, sotw := checkRelay(t, got)
	wrapped := relayWrapped(t, got.TypeURL, got.Resources...)
	next := 0
	for i, r := range got.Resources {
		origin := asSent(r, want.GetResources()[i])
		wantMessage(t, "Delta resource", delta.GetResources()[i], origin)
		if r.HasBody() {
			wantMessage(t, "SotW resource", sotw.GetResources()[next], origin.GetResource())
			wantMessage(t, "wrapped SotW resource", wrapped[next], origin)
			next++
		}
	}
}

// checkRelay sends the update in both variants. A client's decoder must accept it and find all resources.
func checkRelay(t *testing.T, u wire.Update) (*discoverypb.DeltaDiscoveryResponse, *discoverypb.DiscoveryResponse) {
	t.Helper()
	body, full := wire.NewDeltaBody(u.TypeURL, u.SystemVersion), wire.NewSotWBody(u.TypeURL, "v", wire.Unwrapped)
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
	for _, v := range u.RemovedVariants {
		body.RemoveVariant(v)
	}
	for _, e := range u.Errors {
		body.Error(e)
		full.Error(e)
	}
	delta, sotw := new(discoverypb.DeltaDiscoveryResponse), new(discoverypb.DiscoveryResponse)
	receive(t, send(t, &wire.Response{Body: body, Nonce: "n", ControlPlane: u.ControlPlane}), delta)
	receive(t, send(t, &wire.Response{Body: full, Nonce: "n", ControlPlane: u.ControlPlane}), sotw)
	if len(delta.GetResources()) != len(u.Resources) || !slices.Equal(delta.GetRemovedResources(), u.Removed) ||
		!slices.EqualFunc(u.RemovedVariants, delta.GetRemovedResourceNames(), isVariant) {
		t.Fatalf("relayed update: got %v", delta)
	}
	if len(sotw.GetResources()) != bodies || full.Len() != bodies+len(u.Errors) {
		t.Fatalf("relayed set: got %d resources, Len %d, want %d", len(sotw.GetResources()), full.Len(), bodies)
	}
	for i, e := range u.Errors {
		for _, sent := range []*discoverypb.ResourceError{delta.GetResourceErrors()[i], sotw.GetResourceErrors()[i]} {
			if !isVariant(e.Variant, sent.GetResourceName()) || int32(e.Code) != sent.GetErrorDetail().GetCode() {
				t.Errorf("relayed error of %q: got %v", e.Name, sent)
			}
		}
	}
	for i, r := range u.Resources {
		in := delta.GetResources()[i]
		if sent := cmp.Or(in.GetName(), in.GetResourceName().GetName()); sent != r.Name || in.GetVersion() != r.Version ||
			!bytes.Equal(in.GetResource().GetValue(), r.Value()) {
			t.Errorf("relayed resource %q version %q: got %v", r.Name, r.Version, in)
		}
	}
	if !utf8.ValidString(u.Nonce) || delta.GetControlPlane().GetIdentifier() != u.ControlPlane {
		t.Errorf("relayed envelope: got control plane %v, want %q", delta.GetControlPlane(), u.ControlPlane)
	}
	return delta, sotw
}
