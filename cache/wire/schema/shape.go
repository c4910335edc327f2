package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// A shape is one of the structures that a JSON or YAML file may have.
type shape int

const (
	shapeResponse      shape = iota // a DiscoveryResponse
	shapeTypedResponse              // a DiscoveryResponse with "@type"
	shapeList                       // a list of resources
	shapeResource                   // one resource
)

// around is the text that turns each shape into a DiscoveryResponse.
var around = [...]struct{ before, after string }{
	shapeResponse:      {},
	shapeTypedResponse: {},
	shapeList:          {`{"resources":`, `}`},
	shapeResource:      {`{"resources":[`, `]}`},
}

// shapeOf returns the shape of a JSON text by its outermost value. Invalid JSON has the
// shape of a response, so that the parser reports the error.
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

// findToken reads one value and returns the path in it to the first token after which
// done returns true. It reports false if there is no such token.
func findToken(dec *json.Decoder, done func() bool) (path, bool) {
	token, err := dec.Token()
	if err != nil || done() {
		return nil, true
	}
	if token != json.Delim('{') && token != json.Delim('[') {
		return nil, false
	}
	for i := 0; dec.More(); i++ {
		step := any(i)
		if token == json.Delim('{') {
			if step, err = dec.Token(); err != nil || done() {
				return path{step}, true
			}
		}
		if rest, ok := findToken(dec, done); ok {
			return append(path{step}, rest...), true
		}
	}
	_, err = dec.Token()
	return nil, err != nil || done()
}

// yamlRoot returns the value of a YAML document, nil if it is not YAML.
func yamlRoot(data []byte) *yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// find returns the value of a field of a YAML mapping, and its line; the value is nil if there is none.
func find(n *yaml.Node, field string) (value *yaml.Node, line int) {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == field {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	}
	return nil, 0
}

// yamlLine returns the line to which a path leads in a YAML file, or the nearest
// before it that is known.
func yamlLine(data []byte, at path) (line int) {
	n := yamlRoot(data)
	if n == nil {
		return 0
	}
	line = n.Line
	for _, step := range at {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		switch step := step.(type) {
		case string:
			value, at := find(n, step)
			if value == nil {
				return line
			}
			n, line = value, at
		case int:
			if n.Kind != yaml.SequenceNode || step >= len(n.Content) {
				return line
			}
			n = n.Content[step]
			line = n.Line
		}
	}
	return line
}

// resourceLine returns the line on which a resource of a YAML file starts; JSON is
// YAML too.
func resourceLine(data []byte, index int) int {
	root := yamlRoot(data)
	if root == nil {
		return 0
	}
	if resources, _ := find(root, "resources"); resources != nil {
		return yamlLine(data, path{"resources", index})
	}
	return yamlLine(data, path{index}) // a list, or one resource
}

// oneDocument rejects a YAML stream of several documents, of which a parser would
// read only the first.
func oneDocument(data []byte) error {
	if !bytes.Contains(data, []byte("\n---")) {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var doc yaml.Node
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return tidy(err)
		case n > 0 && doc.Content[0].Tag != "!!null":
			return fmt.Errorf("document %d in one file: use a list, or several files", n+1)
		}
	}
}
