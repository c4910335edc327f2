package cli

import (
	"bytes"
	"encoding/json"
	"sync"

	"go.yaml.in/yaml/v2"
)

// UnfoldYAML makes YAML of long lines: they are easier to read, and to search, than
// folded ones.
var UnfoldYAML = sync.OnceFunc(yaml.FutureLineWrap)

// Ordered reads JSON as what YAML prints with the fields in the same order.
func Ordered(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return orderedValue(dec)
}

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
