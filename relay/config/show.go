package config

import (
	"cmp"
	"encoding"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
)

// A Setting is a variable with its value and source.
type Setting struct {
	Variable string // TENDER_…
	Value    string // the effective value, or the one that is refused
	Source   string // SourceDefault, SourceEnvironment and so on
	Meaning  string // one line
}

// Values of [Setting.Source].
const (
	SourceDefault     = "default"     // the variable is not set
	SourceEnvironment = "environment" // the variable is set
	SourceRefused     = "refused"     // the variable is set, and there is an error about its value
	SourceMissing     = "missing"     // the variable is not set, and must be
	SourceUnknown     = "unknown"     // there is no such variable; its value is not shown, because it may be a secret
)

// Table returns all variables in the order of deploy/docs/configuration.md, and then those of the environment that do not
// exist. Control characters are escaped.
func (c Config) Table() (table []Setting) {
	fields := c.fields()
	for _, v := range variablesOf(c.Origins) {
		field := fields[v.name]
		s := Setting{Variable: prefix + v.name, Value: show(field), Source: SourceDefault, Meaning: plain(v.meaning)}
		if field.IsZero() {
			s.Value = cmp.Or(v.zero, plain(unset[v.text.name]), s.Value)
		}
		raw, refused := c.rejected[v.name]
		switch {
		case refused && strings.TrimSpace(raw) != "":
			s.Source = SourceRefused
			if s.Value = escape(raw); v.masks(raw) {
				s.Value = masked
			}
		case refused || c.missing[v.name] || v.name == "ORIGIN" && field.IsZero():
			s.Source = SourceMissing
		case c.fromEnv[v.name]:
			s.Source = SourceEnvironment
		}
		table = append(table, s)
	}
	for _, e := range c.unknown {
		table = append(table, Setting{Variable: e.Variables[0], Value: masked, Source: SourceUnknown, Meaning: e.Message})
	}
	return table
}

// show returns a field in the syntax of its variable, with control characters escaped.
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

// showList returns a list in the syntax of its variable.
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

// A Variable is the documentation of a variable. Texts are in Markdown.
type Variable struct {
	Name    string // TENDER_…
	Default string
	Preset  string // the default in the syntax of the variable; empty if there is none
	Allowed string
	Words   []string // of an enumeration
	Bounds  []string // the minimum and the maximum of a number
	Meaning string   // one line, without a period
	Advice  string   // details, and when to change the variable
}

// documentation returns the documentation of the variable.
func (v *variable) documentation() Variable {
	preset := unset[v.name]
	if value := cmp.Or(v.preset, v.zero); preset == "" && value != "" {
		preset = "`" + value + "`"
	}
	return Variable{
		Name: prefix + v.name, Default: cmp.Or(preset, "empty"), Preset: v.preset, Allowed: v.allowed(), Words: v.words,
		Bounds: v.bounds, Meaning: v.meaning, Advice: v.advice,
	}
}

// Variables returns all variables, in the order of deploy/docs/configuration.md.
func Variables() (all []Variable) {
	for i := range variables {
		all = append(all, variables[i].documentation())
	}
	return all
}

// Page returns the variables by topic, as deploy/docs/configuration.md shows them.
func Page() string {
	var b strings.Builder
	for _, section := range sections {
		fmt.Fprintf(&b, "### %s\n\n", section.title)
		for _, t := range section.texts {
			d := find(variables, t.name).documentation()
			fmt.Fprintf(&b, "#### `%s`\n\n%s\n", d.Name, humanize.Wrap(d.Meaning+". "+d.Advice, "", ""))
			b.WriteString(humanize.Wrap("Default: "+d.Default, "- ", "  ") + humanize.Wrap("Allowed: "+d.Allowed, "- ", "  "))
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// plain removes Markdown markup.
func plain(s string) string { return link.ReplaceAllString(strings.ReplaceAll(s, "`", ""), "$1") }

// link matches a Markdown link.
var link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
