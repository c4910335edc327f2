package config

import (
	"encoding"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"
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
func (c Config) Table() []Setting {
	fields := c.fields()
	rows := append(slices.Clip(variables), c.accessRows()...)
	table := make([]Setting, 0, len(rows))
	for i := range rows {
		v := &rows[i]
		s := Setting{
			Variable: prefix + v.name,
			Value:    show(fields[v.name]),
			Source:   "default",
			Meaning:  plain(v.meaning),
		}
		raw, refused := c.refused[v.name]
		switch {
		case refused:
			s.Value, s.Source = v.quote(raw), "refused"
		case c.given[v.name]:
			s.Source = "environment"
		}
		if (s.Value == "0" || s.Value == "0B") && v.empty != "" {
			s.Value = v.empty
		}
		if s.Value == "" {
			s.Value = plain(v.shown)
		}
		if s.Value == "" {
			s.Value = v.empty
		}
		table = append(table, s)
	}
	return table
}

// fields returns the fields by variable.
func (c Config) fields() map[string]any {
	fields := map[string]any{}
	addFields(fields, "", c)
	addFields(fields, accessPrefix(PrimaryOrigin), c.OriginAccess)
	for _, o := range c.Origins {
		addFields(fields, accessPrefix(o.Name), o.Access)
	}
	return fields
}

// addFields adds the fields of a struct that have variables, whose names begin alike.
func addFields(fields map[string]any, prefix string, of any) {
	value := reflect.ValueOf(of)
	for i := range value.NumField() {
		if name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("env"), ","); name != "" {
			fields[prefix+name] = value.Field(i).Interface()
		}
	}
}

// show returns a field as one would write it into the variable, with control
// characters escaped.
func show(field any) string {
	if list, is := showList(field); is {
		return list
	}
	switch field := field.(type) {
	case bool:
		if field {
			return "on"
		}
		return "off"
	case slog.Level:
		return strings.ToLower(field.String())
	case time.Duration:
		if field == 0 {
			return "off"
		}
		return shortDuration(field)
	case encoding.TextMarshaler:
		text, err := field.MarshalText()
		if err != nil {
			return escape(err.Error())
		}
		return escape(string(text))
	default:
		return escape(fmt.Sprint(field))
	}
}

// showList is show for lists. It reports whether the field is one.
func showList(field any) (list string, is bool) {
	switch field := field.(type) {
	case []string:
		return escape(strings.Join(field, ",")), true
	case []NamedOrigin:
		return showAll(field), true
	case []Route:
		return showAll(field), true
	case []TrustDomain:
		return showAll(field), true
	default:
		return "", false
	}
}

// showAll returns a list of which the variable separates the items by ";".
func showAll[T any](fields []T) string {
	texts := make([]string, len(fields))
	for i, field := range fields {
		texts[i] = show(field)
	}
	return strings.Join(texts, ";")
}

// MarkdownTable returns the table of variables as deploy/docs/configuration.md shows it.
func MarkdownTable() string {
	var b strings.Builder
	b.WriteString("| Variable | Default | Allowed | Meaning |\n| --- | --- | --- | --- |\n")
	for i := range variables {
		v := &variables[i]
		preset := v.shown
		if preset == "" && v.preset != "" {
			preset = "`" + v.presetShown() + "`"
		}
		if preset == "" {
			preset = "empty"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", prefix, v.name, preset, v.allowed, v.meaning)
	}
	return b.String()
}

// presetShown returns the default as one would write it: 10m rather than the
// 10m0s that time.Duration prints, on rather than true.
func (v *spec) presetShown() string {
	switch v.preset {
	case "true":
		return "on"
	case "false":
		return "off"
	}
	if d, err := time.ParseDuration(v.preset); err == nil {
		return shortDuration(d)
	}
	return v.preset
}

// plain strips the marks of Markdown.
func plain(s string) string { return strings.ReplaceAll(s, "`", "") }
