package wire_test

import (
	"errors"
	"testing"
	"unicode/utf8"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire"
)

// FuzzResponse builds bodies from a script (see steps), and compares the output of the generated decoder with the
// script.
func FuzzResponse(f *testing.F) {
	script := []byte("\x00\x01a\x01v\x05value\x00\x04\x01b\x00\x00\x02al\x01\x04gone\x02\x07\x1a\x01c\x0a\x02v9")
	for _, join := range []bool{true, false} {
		for _, typeURL := range []string{wire.ClusterType, acme, ""} {
			f.Add(script, typeURL, "7", "nonce", "tender-1", join)
			f.Add([]byte(nil), typeURL, "", "", "", join)
		}
	}
	f.Fuzz(func(t *testing.T, script []byte, typeURL, version, nonce, controlPlane string, join bool) {
		for _, s := range []string{typeURL, version, nonce, controlPlane} {
			if !utf8.ValidString(s) {
				t.Skip("the relay sends only strings that it has decoded")
			}
		}
		b := newBuilder(typeURL, version)
		b.run(t, script)
		b.finish(nonce, controlPlane)
		delta, sotw, wrap := b.deltaBody, b.sotwBody, b.wrapBody
		if join {
			delta, sotw, wrap = delta.Join(), sotw.Join(), wrap.Join()
		}
		checkResponse(t, &wire.Response{Body: delta, Nonce: nonce, ControlPlane: controlPlane}, b.delta)
		checkResponse(t, &wire.Response{Body: sotw, Nonce: nonce, ControlPlane: controlPlane}, b.sotw)
		checkWrapped(t, &wire.Response{Body: wrap, Nonce: nonce, ControlPlane: controlPlane}, b.wrap)
		if got, want := delta.Len(), len(b.delta.GetResources())+len(b.delta.GetRemovedResources()); got != want {
			t.Errorf("Delta Len: got %d, want %d", got, want)
		}
		if got, want := sotw.Len(), len(b.sotw.GetResources()); got != want {
			t.Errorf("SotW Len: got %d, want %d", got, want)
		}
	})
}

func checkResponse(t *testing.T, r *wire.Response, want proto.Message) {
	t.Helper()
	sent := send(t, r)
	got := want.ProtoReflect().New().Interface()
	receive(t, sent, got)
	wantMessage(t, "response", got, want)
	own := len(send(t, &wire.Response{Body: emptyLike(want), Nonce: r.Nonce, ControlPlane: r.ControlPlane}))
	if r.Body.Size()+own != len(sent) {
		t.Errorf("Size: got %d, sent %d %d of them in the tail", r.Body.Size(), len(sent), own)
	}
}

// checkWrapped compares the decoded wrappers, since the order of map entries and fields is not defined.
func checkWrapped(t *testing.T, r *wire.Response, want *discoverypb.DiscoveryResponse) {
	t.Helper()
	got := new(discoverypb.DiscoveryResponse)
	receive(t, send(t, r), got)
	for _, m := range []*discoverypb.DiscoveryResponse{got, want} {
		for _, any := range m.GetResources() {
			wrapper := new(discoverypb.Resource)
			if err := any.UnmarshalTo(wrapper); err != nil {
				t.Fatalf("unwrap %v: %v", any, err)
			}
			any.Value = marshal(t, wrapper)
		}
	}
	wantMessage(t, "wrapped response", got, want)
	if r.Body.Len() != len(want.GetResources()) {
		t.Errorf("wrapped Len: got %d, want %d", r.Body.Len(), len(want.GetResources()))
	}
}

func emptyLike(m proto.Message) *wire.Body {
	if _, ok := m.(*discoverypb.DeltaDiscoveryResponse); ok {
		return wire.NewDeltaBody("", "")
	}
	return wire.NewSotWBody("", "", wire.Unwrapped)
}

// A builder builds the same response six times: Delta, SotW and wrapped SotW, each by this package and as a generated
// message.
type builder struct {
	typeURL                       string
	deltaBody, sotwBody, wrapBody *wire.Body
	delta                         *discoverypb.DeltaDiscoveryResponse
	sotw, wrap                    *discoverypb.DiscoveryResponse
}

func newBuilder(typeURL, version string) *builder {
	return &builder{
		typeURL:   typeURL,
		deltaBody: wire.NewDeltaBody(typeURL, version),
		sotwBody:  wire.NewSotWBody(typeURL, version, wire.Unwrapped),
		wrapBody:  wire.NewSotWBody(typeURL, version, wire.WrapAll),
		delta:     &discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version},
		sotw:      &discoverypb.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version},
		wrap:      &discoverypb.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version},
	}
}

func (b *builder) finish(nonce, controlPlane string) {
	b.delta.Nonce, b.sotw.Nonce, b.wrap.Nonce = nonce, nonce, nonce
	if controlPlane != "" {
		cp := &corepb.ControlPlane{Identifier: controlPlane}
		b.delta.ControlPlane, b.sotw.ControlPlane, b.wrap.ControlPlane = cp, cp, cp
	}
}

// run executes the script: a byte for the step, then strings with a length of one byte.
func (b *builder) run(t *testing.T, script []byte) {
	t.Helper()
	s := steps(script)
	for len(s) > 0 {
		switch op := s.byte(); op % 3 {
		case 0:
			b.made(t, s.string(), s.string(), s.string(), s.strings(int(op/3)%3))
		case 1:
			if name := s.string(); utf8.ValidString(name) {
				b.deltaBody.Remove(name)
				b.delta.RemovedResources = append(b.delta.RemovedResources, name)
			}
		case 2:
			b.decoded(t, []byte(s.string()))
		}
	}
}

// made adds a resource of NewResource.
func (b *builder) made(t *testing.T, name, version, value string, aliases []string) {
	t.Helper()
	r, err := wire.NewResource(b.typeURL, name, version, []byte(value), aliases...)
	if err != nil {
		if !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, wire.ErrUnnamed) {
			t.Fatalf("NewResource(%q, %q): %v", b.typeURL, name, err)
		}
		return
	}
	if version == "" {
		version = r.ContentVersion()
	}
	b.add(t, r, &discoverypb.Resource{
		Name: name, Version: version, Aliases: aliases,
		Resource: &anypb.Any{TypeUrl: b.typeURL, Value: []byte(value)},
	})
}

// decoded adds a resource that an origin sent.
func (b *builder) decoded(t *testing.T, msg []byte) {
	t.Helper()
	u, err := wire.Decoder{}.Decode(updateOf(b.typeURL, msg))
	if err != nil {
		return
	}
	want := new(discoverypb.Resource)
	receive(t, msg, want)
	if found := resourceFaults(b.typeURL, want); len(found) > 0 {
		t.Fatalf("Decode of %q: got no error, want one of %v", msg, found)
	}
	b.add(t, u.Resources[0], asSent(u.Resources[0], want))
}

func (b *builder) add(t *testing.T, r *wire.Resource, want *discoverypb.Resource) {
	t.Helper()
	b.deltaBody.Add(r, r.TTL)
	b.sotwBody.Add(r, r.TTL)
	b.wrapBody.Add(r, r.TTL)
	b.delta.Resources = append(b.delta.Resources, want)
	if want.GetResource() != nil {
		b.sotw.Resources = append(b.sotw.Resources, want.GetResource())
		wrapper, err := anypb.New(want)
		if err != nil {
			t.Fatal(err)
		}
		b.wrap.Resources = append(b.wrap.Resources, wrapper)
	}
}

type steps []byte

func (s *steps) byte() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *steps) string() string {
	n := min(int(s.byte()), len(*s))
	out := string((*s)[:n])
	*s = (*s)[n:]
	return out
}

func (s *steps) strings(n int) (out []string) {
	for range n {
		out = append(out, s.string())
	}
	return out
}
