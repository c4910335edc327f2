package get

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/cmd/tender/cli"
)

// Outputs are the valid values of --output, the default first.
var Outputs = []string{"yaml", "json", "name", "wide"}

func validOutput(name string) bool { return slices.Contains(Outputs, name) }

// A printer prints resources. It escapes unprintable characters, so that its output cannot control a terminal.
type printer struct {
	out    io.Writer // for resources and findings
	notes  io.Writer // for messages
	format string    // one of Outputs

	headed bool // row has written the header of the table
}

// all prints a complete list of items. It must be called once, since JSON is one array.
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

// changes prints changes as they happen. It may be called again.
func (p *printer) changes(changes []change) error {
	for _, c := range changes {
		var err error
		switch p.format {
		case "json":
			err = p.jsonChange(c)
		case "name":
			_, err = fmt.Fprintf(p.out, "%s %s\n", c.event, cli.Printable(c.item.name))
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

// note prints a message as one line, with the prefix of errors.
func (p *printer) note(text string) {
	_, _ = fmt.Fprintf(p.notes, "tender: %s\n", cli.Printable(text))
}

// warn prints a warning, unless it is empty.
func (p *printer) warn(text string) {
	if text != "" {
		p.note("warning: " + text)
	}
}

// names prints one name per line.
func (p *printer) names(items []item) error {
	for _, it := range items {
		if _, err := fmt.Fprintln(p.out, cli.Printable(it.name)); err != nil {
			return err
		}
	}
	return nil
}

// table prints a table with a row for each item.
func (p *printer) table(items []item) error {
	t := &cli.Table{Wide: true}
	t.Row("NAME", "VERSION", "BYTES", "TYPE")
	for _, it := range items {
		t.Row(it.name, cmp.Or(it.version, "-"), len(it.value), cli.ShortType(it.typeURL))
	}
	return t.Print(p.out)
}

// row prints a change as a row of a table with fixed column widths, since later rows are unknown.
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
		size, typ = fmt.Sprint(len(c.item.value)), cli.ShortType(c.item.typeURL)
	}
	_, err := fmt.Fprintf(p.out, columns, c.event, cli.Printable(c.item.name), cli.OrDash(c.item.version), size, typ)
	return err
}

// yamlList prints items as a YAML list, which a file origin can read.
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
	comment := "# " + event + cli.Printable(it.name)
	if it.version != "" {
		comment += ", version " + cli.Printable(it.version)
	}
	if why != "" {
		comment += ": " + cli.Printable(why)
	}
	if len(it.aliases) > 0 {
		comment += ", also " + cli.Printable(strings.Join(it.aliases, ", "))
	}
	var list []byte
	if it.typeURL != "" {
		content, err := cli.Ordered(shown(it))
		if err != nil {
			return err
		}
		cli.UnfoldYAML()
		if list, err = yaml.Marshal([]any{content}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p.out, "%s\n%s", comment, cli.Escape(string(list), "\n\t"))
	return err
}

// jsonList prints items as an indented JSON array, which a file origin can read.
func (p *printer) jsonList(items []item) error {
	var list bytes.Buffer
	list.WriteByte('[')
	for i, it := range items {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(cli.Printable(string(shown(it))))
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
	_, err := io.WriteString(p.out, cli.Escape(out.String(), "\n"))
	return err
}

// shown returns a resource as JSON with redacted secrets. If the resource cannot be decoded, the JSON contains the
// error and no bytes, which may contain a secret.
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
