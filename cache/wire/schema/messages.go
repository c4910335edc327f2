package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ParseMessages reads a JSON or YAML file that contains one message, or one message in
// each of several YAML documents. For each message it calls next with the line on which
// the message starts, and decodes into the result. If a document has the field, its value
// is the message, and the rest of the document is ignored.
//
// Every error begins with name, and with the line where it is known. A file
// without a message is an error.
func ParseMessages(name string, data []byte, field string, next func(line int) proto.Message) error {
	none := true
	for _, d := range documents(data) {
		text, err := yamlToJSON(d.content)
		if err == nil && string(text) != "null" {
			none = false
			err = d.parse(text, field, next)
		}
		if err != nil {
			var p *positioned
			if errors.As(err, &p) {
				p.line = d.above + max(p.line, 1)
				return p.inFile(name)
			}
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if none {
		return fmt.Errorf("%s: the file contains no message", name)
	}
	return nil
}

// A document is a document of a YAML file and the number of lines before it.
type document struct {
	content []byte
	above   int
}

// documents splits a YAML file at the lines that begin a document. These lines are part of
// the document that they begin.
func documents(data []byte) (all []document) {
	var d document
	line := 0
	for text := range bytes.Lines(data) {
		if startsDocument(text) {
			all = append(all, d)
			d = document{above: line}
		}
		d.content = append(d.content, text...)
		line++
	}
	return append(all, d)
}

// parse reads the JSON of the document.
func (d document) parse(text []byte, field string, next func(line int) proto.Message) error {
	var at path
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) == nil && fields[field] != nil {
		text, at = fields[field], path{field}
	}
	err := protojson.Unmarshal(text, next(d.above+yamlLine(d.content, at)))
	if err == nil {
		return nil
	}
	p := tidy(err)
	p.line, p.column = yamlLine(d.content, append(at, pathAt(text, p.column)...)), 0
	return p
}

func startsDocument(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])))
}
