package downstream

import (
	"bytes"
	"encoding/json"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// FuzzScanBody checks that a scanned body decodes to the same request, except for the extensions of its Node. The scan
// must not count fewer values or less nesting than the body has.
func FuzzScanBody(f *testing.F) {
	for _, seed := range []string{
		`{"node":{"id":"n","extensions":[{"name":"a]\"","category":"}"},{}],"cluster":"c"},` +
			`"resource_names":["extensions",":"]}`,
		`{"\u006eode" : {"\u0065xtensions" : [ [] ] , "metadata":{"extensions":[1,2]}},"extensions":[]}`,
		`{"node":{"extensions":null}}`, `{"node":{"extensions":[`, `{"x":{"node":{"extensions":[{}]}},"node":[]}`,
		`["node":{`, `{"node":1}]]`,
		`{"node":{"id":"n"},"resource_names":["a","b\"]"]}`, `[1,-2.5e3,true,null,[],{}]`, `"\\"`, `[[[`,
		`{"a" : {"b":[1 , 2]}}x`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		body := []byte(text)
		before, after := new(discoverypb.DiscoveryRequest), new(discoverypb.DiscoveryRequest)
		errBefore := unmarshalOptions.Unmarshal([]byte(text), before)
		s := scanBody(body)
		if s.nodeBytes < 0 || s.nodeBytes > len(text) || len(body) != len(text) {
			t.Fatalf("%q: the Node has %d bytes, the scanned body %d of %d", text, s.nodeBytes, len(body), len(text))
		}
		if n, deepest := countJSON(body); json.Valid(body) && (n > s.values || deepest > s.nesting) {
			t.Errorf("%q: counted %d values and %d levels, want at least %d and %d", body, s.values, s.nesting, n, deepest)
		}
		if errBefore != nil {
			return
		}
		if err := unmarshalOptions.Unmarshal(body, after); err != nil {
			t.Fatalf("%q is refused after the scan as %q: %v", text, body, err)
		}
		if before.GetNode() != nil {
			before.Node.Extensions = nil
		}
		if !proto.Equal(before, after) {
			t.Fatalf("%q decodes to %v after the scan, want %v", text, after, before)
		}
	})
}

// countJSON returns the number of values in JSON, and their deepest nesting.
func countJSON(text []byte) (n, deepest int) {
	depth := 0
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		switch token, err := d.Token(); {
		case err != nil:
			return n, deepest
		case token == json.Delim('{'), token == json.Delim('['):
			depth++
			deepest = max(deepest, depth)
			n++
		case token == json.Delim('}'), token == json.Delim(']'):
			depth--
		default:
			n++
		}
	}
}
