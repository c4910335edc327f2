package downstream

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzJSONValues: a text of JSON has no more values, nested no deeper, than were counted.
func FuzzJSONValues(f *testing.F) {
	for _, text := range []string{`{"node":{"id":"n"},"resource_names":["a","b\"]"]}`, `[1,-2.5e3,true,null,[],{}]`, `"\\"`, `[[[`, `{"a" : {"b":[1 , 2]}}x`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		values, nesting := jsonValues(text)
		if !json.Valid(text) {
			return
		}
		d := json.NewDecoder(bytes.NewReader(text))
		n, depth, deepest := 0, 0, 0
		for {
			token, err := d.Token()
			if err != nil {
				break
			}
			switch token {
			case json.Delim('{'), json.Delim('['):
				depth++
				deepest = max(deepest, depth)
				n++
			case json.Delim('}'), json.Delim(']'):
				depth--
			default:
				n++
			}
		}
		if n > values || deepest > nesting {
			t.Errorf("%q: %d values, %d deep; counted %d and %d", text, n, deepest, values, nesting)
		}
	})
}
