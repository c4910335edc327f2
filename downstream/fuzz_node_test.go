package downstream

import (
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// FuzzNode: a Node that is accepted is what the generated decoder makes of it, but for its extensions and what that does not know; and
// what the generated decoder accepts is refused for a limit only.
func FuzzNode(f *testing.F) {
	for _, n := range []*node{{}, {Id: "n"}, nodeOfValues(20), withExtensions(nodeOfValues(10), 100), nodeOfBytes(f, 300)} {
		encoded := marshalNode(f, n)
		f.Add(encoded)
		f.Add(append(encoded, encoded...))
	}
	f.Add([]byte("\x4a\x01\xff\x48\x01"))
	server, err := New(Config{Views: oneView{}, DynamicParameters: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		want := new(node)
		refused := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(encoded, want)
		want.Extensions = nil
		stripped, size, _, err := wire.TakeNode(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), encoded), 1)
		if err != nil {
			if refused == nil {
				t.Fatalf("%q is refused: %v", encoded, err)
			}
			return
		}
		got, err := server.cfg.node(RawNode{stripped, size})
		_, limited := LimitOf(err)
		switch {
		case err != nil && refused == nil && !limited && !strings.Contains(err.Error(), "in one another"):
			t.Fatalf("%q is refused: %v", encoded, err)
		case err == nil && refused == nil && !proto.Equal(got, want):
			t.Fatalf("%q is %v, want %v", encoded, got, want)
		}
		if err == nil && len(got.GetExtensions()) > 0 {
			t.Fatalf("%q has extensions: %v", encoded, got)
		}
	})
}

// FuzzSkimNode: a poll that is looked through is the request that it was, but for the extensions of its Node, of which nothing is left.
func FuzzSkimNode(f *testing.F) {
	for _, seed := range []string{
		`{"node":{"id":"n","extensions":[{"name":"a]\"","category":"}"},{}],"cluster":"c"},"resource_names":["extensions",":"]}`,
		`{"\u006eode" : {"\u0065xtensions" : [ [] ] , "metadata":{"extensions":[1,2]}},"extensions":[]}`,
		`{"node":{"extensions":null}}`, `{"node":{"extensions":[`, `{"x":{"node":{"extensions":[{}]}},"node":[]}`, `["node":{`, `{"node":1}]]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		body := []byte(text)
		before, after := new(discoverypb.DiscoveryRequest), new(discoverypb.DiscoveryRequest)
		errBefore := tolerant.Unmarshal([]byte(text), before)
		size, err := skimNode(body)
		if size < 0 || size > len(text) || len(body) != len(text) {
			t.Fatalf("%q has a Node of %d bytes, %d are left of %d", text, size, len(body), len(text))
		}
		if err != nil || errBefore != nil {
			return
		}
		if err := tolerant.Unmarshal(body, after); err != nil {
			t.Fatalf("%q is refused as %q: %v", text, body, err)
		}
		if len(after.GetNode().GetExtensions()) > 0 {
			t.Fatalf("%q has extensions as %q", text, body)
		}
		if before.GetNode() != nil {
			before.Node.Extensions = nil
		}
		if !proto.Equal(before, after) {
			t.Fatalf("%q is %v, want %v", text, after, before)
		}
	})
}
