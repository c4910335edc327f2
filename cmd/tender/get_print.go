package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v2"

	"github.com/xdstender/tender/cache/wire/schema"
)

// outputs are the values of --output.
var outputs = []string{"yaml", "json", "name", "wide"}

func validOutput(name string) bool { return slices.Contains(outputs, name) }

// A printer prints resources. It escapes unprintable characters, so that its output cannot control a terminal.
type printer struct {
	out    io.Writer
	notes  io.Writer // for what is not a resource
	format string    // one of outputs

	headed bool // the head of a table was written
}

// all prints the items, and nothing can be added later.
func (p *printer) all(items []item) error {
	switch p.format {
	case "json":
		return p.jsonList(items)
	case "name":
		return p.names(items)
	case "wide":
		return p.table(items)
	default:
		return p.yamlList(items)
	}
}

// changes prints what happened, one change after the other.
func (p *printer) changes(changes []change) error {
	for _, c := range changes {
		var err error
		switch p.format {
		case "json":
			err = p.jsonChange(c)
		case "name":
			_, err = fmt.Fprintf(p.out, "%s %s\n", c.event, printable(c.item.name))
		case "wide":
			err = p.row(c)
		default:
			err = p.yamlItem(c.event+" ", c.item, c.why)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) note(text string) {
	_, _ = fmt.Fprintf(p.notes, "tender: %s\n", printable(text))
}

func (p *printer) names(items []item) error {
	for _, it := range items {
		if _, err := fmt.Fprintln(p.out, printable(it.name)); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) table(items []item) error {
	t := &table{wide: true}
	t.row("NAME", "VERSION", "BYTES", "TYPE")
	for _, it := range items {
		t.row(it.name, cmp.Or(it.version, "-"), len(it.value), shortType(it.typeURL))
	}
	return t.print(p.out)
}

// row prints one line of a table of which the rest is yet to come.
func (p *printer) row(c change) error {
	const columns = "%-8s  %-40s  %-16s  %8s  %s\n"
	if !p.headed {
		p.headed = true
		if _, err := fmt.Fprintf(p.out, columns, "EVENT", "NAME", "VERSION", "BYTES", "TYPE"); err != nil {
			return err
		}
	}
	size, typ := "-", "-"
	if c.item.typeURL != "" {
		size, typ = fmt.Sprint(len(c.item.value)), shortType(c.item.typeURL)
	}
	_, err := fmt.Fprintf(p.out, columns, c.event, printable(c.item.name), orDash(c.item.version), size, typ)
	return err
}

func (p *printer) yamlList(items []item) error {
	if len(items) == 0 {
		_, err := fmt.Fprintln(p.out, "[]")
		return err
	}
	for _, it := range items {
		if err := p.yamlItem("", it, ""); err != nil {
			return err
		}
	}
	return nil
}

// yamlItem prints a resource as an element of a list, below a comment with its name, version and event.
func (p *printer) yamlItem(event string, it item, why string) error {
	comment := "# " + event + printable(it.name)
	if it.version != "" {
		comment += ", version " + printable(it.version)
	}
	if why != "" {
		comment += ": " + printable(why)
	}
	if len(it.aliases) > 0 {
		comment += ", also " + printable(strings.Join(it.aliases, ", "))
	}
	var list []byte
	if it.typeURL != "" {
		content, err := ordered(shown(it))
		if err != nil {
			return err
		}
		unfolded()
		if list, err = yaml.Marshal([]any{content}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p.out, "%s\n%s", comment, escape(string(list), "\n\t"))
	return err
}

func (p *printer) jsonList(items []item) error {
	var list bytes.Buffer
	list.WriteByte('[')
	for i, it := range items {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(printable(string(shown(it))))
	}
	list.WriteByte(']')
	var out bytes.Buffer
	if err := json.Indent(&out, list.Bytes(), "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := p.out.Write(out.Bytes())
	return err
}

// jsonChange prints a change as one line of JSON.
func (p *printer) jsonChange(c change) error {
	line := struct {
		Event    string          `json:"event"`
		Name     string          `json:"name"`
		Version  string          `json:"version,omitempty"`
		Reason   string          `json:"reason,omitempty"`
		Resource json.RawMessage `json:"resource,omitempty"`
	}{Event: c.event, Name: c.item.name, Version: c.item.version, Reason: c.why}
	if c.item.typeURL != "" {
		line.Resource = shown(c.item)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(line); err != nil {
		return err
	}
	_, err := io.WriteString(p.out, escape(out.String(), "\n"))
	return err
}

// shown returns a resource as JSON. If it cannot be decoded, it returns the reason: the bytes might contain a secret.
func shown(it item) []byte {
	b, err := schema.JSONOptions{Redact: true, ProtoNames: true, Unknown: schema.UnknownDigest}.Marshal(it.typeURL, it.value)
	if err != nil {
		b, _ = json.Marshal(struct {
			Type  string `json:"@type"`
			Error string `json:"error"`
		}{it.typeURL, err.Error()})
	}
	return b
}

// unfolded makes YAML of long lines: they are easier to read, and to search, than
// folded ones.
var unfolded = sync.OnceFunc(yaml.FutureLineWrap)

// ordered reads JSON as what YAML prints with the fields in the same order.
func ordered(b []byte) (any, error) {
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

// shortType is how a type is called in a table.
func shortType(typeURL string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		return short
	}
	return printable(typeURL)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

// printable escapes every character of s that is not printable.
func printable(s string) string { return escape(s, "") }

// escape replaces what is not printable, and not in but, by \uXXXX as JSON
// writes it.
func escape(s, but string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	clean := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(but, r) }
	if !strings.ContainsFunc(s, func(r rune) bool { return !clean(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if clean(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
