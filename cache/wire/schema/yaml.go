package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// responseYAML converts YAML to JSON and reads that. Positions of errors are those in the
// YAML.
func responseYAML(types Resolver, data []byte, m protoreflect.Message) error {
	if err := oneDocument(data); err != nil {
		return err
	}
	text, err := yamlToJSON(data)
	if err != nil {
		return err
	}
	err = responseJSON(types, text, m)
	var p *positioned
	if errors.As(err, &p) {
		p.line, p.column = yamlLine(data, pathAt(text, p.column)), 0
	}
	return err
}

// yamlToJSON converts the first YAML document to JSON on one line. Scalars have the types that Envoy gives them
// ([appendScalar]), and Envoy ignores a key with the tag !ignore, under which people keep anchors. Merge keys, which Envoy does
// not have, are as in YAML 1.1.
func yamlToJSON(data []byte) ([]byte, error) {
	root, err := yamlRoot(data)
	if err != nil {
		return nil, tidy(err)
	}
	if root == nil {
		return []byte("null"), nil
	}
	c := yamlConverter{left: expansion*len(data) + 1<<20}
	err = c.value(root)
	return c.text, err
}

// expansion is how many times longer a document may become by its aliases, beside 1 MiB. Aliases of aliases multiply.
const expansion = 64

// A yamlConverter appends values to a JSON text.
type yamlConverter struct {
	text []byte
	left int          // how many bytes of scalars, and nodes, may still be read
	open []*yaml.Node // the values of the aliases that lead to the current value
}

// value appends a value.
func (c *yamlConverter) value(n *yaml.Node) error {
	if err := c.spend(n); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		return c.alias(n, c.value)
	case yaml.MappingNode:
		c.text = append(c.text, '{')
		if err := c.fields(n, make(map[string]bool)); err != nil {
			return err
		}
		c.text = append(bytes.TrimSuffix(c.text, []byte(",")), '}')
	case yaml.SequenceNode:
		c.text = append(c.text, '[')
		for i, item := range n.Content {
			if i > 0 {
				c.text = append(c.text, ',')
			}
			if err := c.value(item); err != nil {
				return err
			}
		}
		c.text = append(c.text, ']')
	default:
		c.text = appendScalar(c.text, n)
	}
	return nil
}

// spend counts a node that is read. It returns an error if aliases make the document too long.
func (c *yamlConverter) spend(n *yaml.Node) error {
	if c.left -= 1 + len(n.Value); c.left < 0 {
		return invalidYAML(n, "aliases make the document more than %d times longer", expansion)
	}
	return nil
}

// alias calls read with the value of an alias, which must not contain itself.
func (c *yamlConverter) alias(n *yaml.Node, read func(*yaml.Node) error) error {
	if slices.Contains(c.open, n.Alias) {
		return invalidYAML(n, "anchor %q contains itself", n.Value)
	}
	c.open = append(c.open, n.Alias)
	defer func() { c.open = c.open[:len(c.open)-1] }()
	return read(n.Alias)
}

// fields appends the fields of a mapping, each with a comma behind it, and then those that it merges, without the fields that
// are already set.
func (c *yamlConverter) fields(n *yaml.Node, set map[string]bool) error {
	var merged []*yaml.Node
	own := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if err := c.spend(key); err != nil {
			return err
		}
		switch {
		case key.Tag == "!ignore":
			continue
		case key.Kind != yaml.ScalarNode:
			return invalidYAML(key, "a key must be text")
		case key.Tag == "!!merge":
			merged = append(merged, value)
			continue
		case own[key.Value]:
			return invalidYAML(key, "key %q already set in map", key.Value)
		}
		own[key.Value] = true
		if set[key.Value] {
			continue
		}
		set[key.Value] = true
		c.text = append(appendText(c.text, key.Value), ':')
		if err := c.value(value); err != nil {
			return err
		}
		c.text = append(c.text, ',')
	}
	for _, value := range merged {
		if err := c.merge(value, set); err != nil {
			return err
		}
	}
	return nil
}

// merge appends the fields of the value of a merge key: a mapping, or a list of mappings of which the first counts.
func (c *yamlConverter) merge(n *yaml.Node, set map[string]bool) error {
	if err := c.spend(n); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		return c.alias(n, func(n *yaml.Node) error { return c.merge(n, set) })
	case yaml.MappingNode:
		return c.fields(n, set)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if err := c.merge(item, set); err != nil {
				return err
			}
		}
		return nil
	default:
		return invalidYAML(n, "a merge key needs a mapping, or a list of mappings")
	}
}

// appendScalar appends a scalar with the type that Envoy 1.36 to 1.40 gives it (its
// source/common/protobuf/yaml_utility.cc). Only null, bool and an integer of 32 bits have a type. A longer integer is decimal
// text, and everything else is the text itself: a field of a message reads a number from it, and a Struct keeps 1.10 apart from
// 1.1. A tag, such as !!str, changes nothing but that the scalar is not null.
func appendScalar(text []byte, n *yaml.Node) []byte {
	tagged := n.Style&yaml.TaggedStyle != 0
	quoted := n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	switch n.Value {
	case "", "~", "null", "Null", "NULL":
		if !tagged && !quoted {
			return append(text, "null"...)
		}
	}
	if quoted && !tagged || n.Tag == "!" {
		return appendText(text, n.Value)
	}
	if value, ok := yamlBool(n.Value); ok {
		return strconv.AppendBool(text, value)
	}
	value, ok := yamlInt(n.Value)
	switch {
	case !ok:
		return appendText(text, n.Value)
	case math.MinInt32 <= value && value <= math.MaxInt32:
		return strconv.AppendInt(text, value, 10)
	default:
		return appendText(text, strconv.FormatInt(value, 10))
	}
}

// yamlBool reads a bool of YAML 1.1: in lower or upper case, or capitalized.
func yamlBool(text string) (value, ok bool) {
	lower := strings.ToLower(text)
	if text != lower && text != strings.ToUpper(text) && text[1:] != lower[1:] {
		return false, false
	}
	switch lower {
	case "y", "yes", "true", "on":
		return true, true
	case "n", "no", "false", "off":
		return false, true
	default:
		return false, false
	}
}

// yamlInt reads an integer of 64 bits in the syntax of C: decimal, octal after 0, or hexadecimal after 0x.
func yamlInt(text string) (value int64, ok bool) {
	digits := strings.TrimLeft(text, "+-")
	sign, base := text[:len(text)-len(digits)], 10
	if rest, hex := strings.CutPrefix(strings.ToLower(digits), "0x"); hex {
		digits, base = rest, 16
	} else if len(digits) > 1 && digits[0] == '0' {
		base = 8
	}
	value, err := strconv.ParseInt(sign+digits, base, 64)
	return value, err == nil
}

// appendText appends a JSON string.
func appendText(text []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // cannot fail
	return append(text, quoted...)
}

// invalidYAML returns an error about a value of a YAML file.
func invalidYAML(n *yaml.Node, format string, args ...any) error {
	p := &positioned{text: fmt.Sprintf(format, args...), line: n.Line}
	p.cause = errors.New(p.text)
	return p
}

// yamlRoot returns the value of the first YAML document, nil if there is none.
func yamlRoot(data []byte) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return nil, err
	}
	return doc.Content[0], nil
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
	n, _ := yamlRoot(data) // only the position of an error is missing then
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
	root, _ := yamlRoot(data)
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
