package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v2"
)

// A shape is one of the forms that a JSON or YAML file may have.
type shape int

const (
	shapeResponse      shape = iota // a DiscoveryResponse
	shapeTypedResponse              // one with "@type"
	shapeList                       // a list of resources
	shapeResource                   // one resource
)

// around is what makes a DiscoveryResponse of each shape.
var around = [...]struct{ before, after string }{
	shapeResponse:      {},
	shapeTypedResponse: {},
	shapeList:          {`{"resources":`, `}`},
	shapeResource:      {`{"resources":[`, `]}`},
}

// shapeOf looks at the outermost value of some JSON. What is not JSON passes for
// a response, so that reading it finds the error.
func shapeOf(data []byte) shape {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '[' {
		return shapeList
	}
	var outer struct {
		Type string `json:"@type"`
	}
	switch err := json.Unmarshal(data, &outer); {
	case err != nil || outer.Type == "":
		return shapeResponse
	case outer.Type == responseType:
		return shapeTypedResponse
	default:
		return shapeResource
	}
}

// A path leads to a value in a document: field names and list indexes.
type path []any

// pathAt returns the path to the token at a column, from 1 and in characters, of
// a JSON text that is one line.
func pathAt(text []byte, column int) path {
	offset := int64(0)
	for i := range string(text) {
		if column--; column < 0 {
			break
		}
		offset = int64(i) + 1
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	at, _ := findToken(dec, func() bool { return dec.InputOffset() >= offset })
	return at
}

// findToken reads one value and returns the path in it to the token after which
// there says so. It reports false if there is none.
func findToken(dec *json.Decoder, there func() bool) (path, bool) {
	token, err := dec.Token()
	if err != nil || there() {
		return nil, true
	}
	if token != json.Delim('{') && token != json.Delim('[') {
		return nil, false
	}
	for i := 0; dec.More(); i++ {
		step := any(i)
		if token == json.Delim('{') {
			if step, err = dec.Token(); err != nil || there() {
				return path{step}, true
			}
		}
		if rest, ok := findToken(dec, there); ok {
			return append(path{step}, rest...), true
		}
	}
	_, err = dec.Token()
	return nil, err != nil || there()
}

// A yamlNode is a YAML value of which only the lines are kept.
type yamlNode struct {
	line  int // where it starts; 0 for a null, of which the parser does not tell
	keys  map[string]yamlKey
	items []*yamlNode
}

type yamlKey struct {
	line  int
	value *yamlNode
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (n *yamlNode) UnmarshalYAML(unmarshal func(any) error) error {
	n.line = lineOf(unmarshal)
	var fields map[yamlName]*yamlNode
	if unmarshal(&fields) == nil {
		n.keys = make(map[string]yamlKey, len(fields))
		for k, v := range fields {
			n.keys[k.name] = yamlKey{k.line, v}
		}
		return nil
	}
	if unmarshal(&n.items) != nil {
		n.items = nil
	}
	return nil
}

// A yamlName is the name of a field and its line.
type yamlName struct {
	line int
	name string
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (n *yamlName) UnmarshalYAML(unmarshal func(any) error) error {
	n.line = lineOf(unmarshal)
	return unmarshal(&n.name)
}

// lineOf returns the line of a YAML value. The parser tells lines only in errors,
// so it is asked for what no value can be.
func lineOf(unmarshal func(any) error) (line int) {
	var impossible chan struct{}
	if err := unmarshal(&impossible); err != nil {
		line = tidy(err).line
	}
	return line
}

// yamlLine returns the line to which a path leads in a YAML file, or the nearest
// before it that is known.
func yamlLine(data []byte, at path) (line int) {
	root := new(yamlNode)
	if yaml.Unmarshal(data, root) != nil {
		return 0
	}
	line = root.line
	for n := root; n != nil && len(at) > 0; at = at[1:] {
		switch step := at[0].(type) {
		case string:
			key, ok := n.keys[step]
			if !ok {
				return line
			}
			line, n = key.line, key.value
		case int:
			if step >= len(n.items) {
				return line
			}
			if n = n.items[step]; n != nil && n.line > 0 {
				line = n.line
			}
		}
	}
	return line
}

// resourceLine returns the line on which a resource of a YAML file starts; JSON is
// YAML too.
func resourceLine(data []byte, index int) int {
	root := new(yamlNode)
	if yaml.Unmarshal(data, root) != nil {
		return 0
	}
	switch {
	case root.items != nil:
		return yamlLine(data, path{index})
	case root.keys["resources"].value != nil:
		return yamlLine(data, path{"resources", index})
	default:
		return root.line
	}
}

// oneDocument refuses a YAML stream of several documents, of which a parser would
// read only the first.
func oneDocument(data []byte) error {
	if !bytes.Contains(data, []byte("\n---")) {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var content any
		switch err := dec.Decode(&content); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return tidy(err)
		case n > 0 && content != nil:
			return fmt.Errorf("document %d in one file: use a list, or several files", n+1)
		}
	}
}
