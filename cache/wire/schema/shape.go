package schema

import (
	"bytes"
	"encoding/json"
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
