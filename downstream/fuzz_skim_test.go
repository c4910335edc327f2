package downstream

import (
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

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
