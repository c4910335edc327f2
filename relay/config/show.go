package config

import (
	"cmp"
	"encoding"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
)

// A Setting is one variable as it stands.
type Setting struct {
	Variable string // TENDER_…
	Value    string // what applies; a refused value as it was given, quoted
	Source   string // "default", "environment" or "refused"
	Meaning  string // one line
}

// Table returns every variable, in the order of deploy/docs/configuration.md. Values hold no
// control characters.
func (c Config) Table() (table []Setting) {
	fields := c.fields()
	for _, v := range append(slices.Clip(variables), c.accessRows()...) {
		field := fields[v.name]
		s := Setting{Variable: prefix + v.name, Value: v.show(field), Source: "default", Meaning: plain(v.meaning)}
		if field.IsZero() {
			s.Value = cmp.Or(v.empty, plain(v.shown), s.Value)
		}
		if raw, refused := c.refused[v.name]; refused {
			s.Value, s.Source = v.quote(raw), "refused"
		} else if c.given[v.name] {
			s.Source = "environment"
		}
		table = append(table, s)
	}
	return table
}

// show returns the field of the variable as one would write it, with control characters escaped.
func (v *spec) show(field reflect.Value) string {
	if v.shows == nil {
		return show(field)
	}
	return escape(v.shows(field.Interface()))
}

// show returns a field as one would write it into the variable, with control
// characters escaped.
func show(field reflect.Value) string {
	_, isText := field.Interface().(encoding.TextMarshaler)
	if field.Kind() == reflect.Slice && !isText {
		return showList(field)
	}
	switch value := field.Interface().(type) {
	case bool:
		if value {
			return "on"
		}
		return "off"
	case slog.Level:
		return strings.ToLower(value.String())
	case time.Duration:
		if value == 0 {
			return "off"
		}
		return humanize.Duration(value)
	case encoding.TextMarshaler:
		text, err := value.MarshalText()
		if err != nil {
			return escape(err.Error())
		}
		return escape(string(text))
	default:
		return escape(fmt.Sprint(value))
	}
}

// showList returns a list as one would write it into the variable.
func showList(field reflect.Value) string {
	items, separator := make([]string, field.Len()), ";"
	for i := range items {
		items[i] = show(field.Index(i))
	}
	if field.Type().Elem().Kind() == reflect.String {
		separator = ","
	}
	return strings.Join(items, separator)
}

// MarkdownTable returns the table of variables as deploy/docs/configuration.md shows it.
func MarkdownTable() string {
	var b strings.Builder
	b.WriteString("| Variable | Default | Allowed | Meaning |\n| --- | --- | --- | --- |\n")
	for i := range variables {
		v := &variables[i]
		preset := v.shown
		if preset == "" && v.preset != "" {
			preset = "`" + v.preset + "`"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", prefix, v.name, cmp.Or(preset, "empty"), v.allowed, v.meaning)
	}
	return b.String()
}

// plain strips the marks of Markdown.
func plain(s string) string { return link.ReplaceAllString(strings.ReplaceAll(s, "`", ""), "$1") }

// link matches a link of Markdown.
var link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
