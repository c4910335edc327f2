package cli

import (
	"bytes"
	"encoding/json"
	"sync"

	"go.yaml.in/yaml/v2"
)

// UnfoldYAML stops package yaml from folding long lines, which are easier to read and to search unfolded. The setting
// is global and permanent. UnfoldYAML may be called from any goroutine.
var UnfoldYAML = sync.OnceFunc(yaml.FutureLineWrap)

// Ordered decodes one JSON value so that [yaml.Marshal] keeps the order of the fields. Objects become [yaml.MapSlice],
// and numbers become [json.Number].
func Ordered(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return orderedValue(dec)
}

// orderedValue decodes the next value of dec.
func orderedValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object := yaml.MapSlice{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			value, err := orderedValue(dec)
			if err != nil {
				return nil, err
			}
			object = append(object, yaml.MapItem{Key: key, Value: value})
		}
		_, err = dec.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			value, err := orderedValue(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err = dec.Token()
		return list, err
	default:
		return token, nil
	}
}
