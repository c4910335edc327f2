package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
)

// A spec is one variable: its name, default, allowed values and meaning. LoadConfig,
// tender check and deploy/docs/configuration.md are made from it.
type spec struct {
	name         string // without the prefix
	defaultValue string // the default as a value of the variable; may be empty
	defaultText  string // the default in words, where preset cannot express it
	emptyText    string // the word for nothing, where that is not the default
	allowed      string
	meaning      string // one line, without a period
	advice       string // details, and when one would change it
	secret       bool   // no error quotes its value

	// formerName is the name before it was renamed, without the prefix. It goes on working with a warning for one minor
	// version.
	formerName string

	// parse returns a value of the type of the field.
	parse func(raw string) (any, error)

	// format returns the text of a value; nil if the type of the field says it.
	format func(value any) string
}

// untyped returns parse as a spec has it.
func untyped[T any](parse func(raw string) (T, error)) func(string) (any, error) {
	return func(raw string) (any, error) { return parse(raw) }
}

// invalid returns the error for a value that is not allowed. The value is
// quoted: it may hold control characters.
func (v *spec) invalid(raw string, cause error) error {
	return fmt.Errorf("%s%s=%s: %w; allowed: %s", prefix, v.name, v.quote(raw), cause, plain(v.allowed))
}

// quote returns a value as people may see it.
func (v *spec) quote(raw string) string {
	if v.secret && raw != "" {
		return "…"
	}
	return humanize.Quote(raw)
}

// A section is the variables of one topic.
type section struct {
	title string
	rows  []spec
}

// sections are all variables by topic, in the order of deploy/docs/configuration.md.
var sections = []section{
	{"Control plane", originRows},
	{"Listeners, TLS and authorization", servingRows},
	{"Operators, logs and traces", operatorRows},
	{"Snapshots and rollout", rolloutRows},
	{"Subscriptions, versions and removals", contentRows},
	{"Limits and timeouts", limitRows},
}

// variables are the rows of all sections.
var variables = func() (rows []spec) {
	for _, s := range sections {
		rows = append(rows, s.rows...)
	}
	return rows
}()

// renamed returns a row that also takes its value from the variable's former name, for one minor version.
func renamed(formerly string, row spec) spec {
	row.formerName = formerly
	return row
}

// choice is the row of one of several words, of which the first is the default.
func choice(name, meaning, advice string, words ...string) spec {
	last := len(words) - 1
	allowed := "`" + strings.Join(words[:last], "`, `") + "` or `" + words[last] + "`"
	return spec{name: name, defaultValue: words[0], allowed: allowed, meaning: meaning, advice: advice, parse: untyped(oneOf(words...))}
}

// onOff is the row of a switch.
func onOff(name, preset, meaning, advice string) spec {
	parse := func(raw string) (bool, error) {
		word, err := oneOf("on", "off")(raw)
		return word == "on", err
	}
	return spec{name: name, defaultValue: preset, allowed: "`on` or `off`", meaning: meaning, advice: advice, parse: untyped(parse)}
}

// file is the row of a path; needs says what else has to be set.
func file(name, needs, meaning, advice string) spec {
	return spec{name: name, allowed: allowedPath + needs, meaning: meaning, advice: advice, parse: untyped(parseFile)}
}

// types is the row of a list of types.
func types(name string, parse func(string) (string, error), meaning, advice string) spec {
	return spec{
		name: name, meaning: meaning, advice: advice, parse: untyped(listOf(",", parse)),
		allowed: allowedTypes,
	}
}

// allowedTypes is what the rows of types say.
const allowedTypes = "short names (`lds`, `cds`, `eds`, …) or type URLs, separated by commas"

// duration is the row of a duration.
func duration(name, preset string, least, most time.Duration, meaning, advice string) spec {
	return spec{
		name: name, defaultValue: preset, allowed: between(least, most), meaning: meaning, advice: advice,
		parse: untyped(durationBetween(least, most)),
	}
}

// whole is the row of a number.
func whole(name, preset string, least, most int, meaning, advice string) spec {
	return spec{
		name: name, defaultValue: preset, meaning: meaning, advice: advice, parse: untyped(intBetween(least, most)),
		allowed: fmt.Sprintf("a whole number from %d to %d", least, most),
	}
}

// limit is the row of a number of things.
func limit(name, preset string, most int, of, advice string) spec {
	return whole(name, preset, 1, most, "Maximum number of "+of, advice)
}

// sizeLimit is the row of a number of bytes.
func sizeLimit(name, preset string, least, most Size, of, advice string) spec {
	return spec{
		name: name, defaultValue: preset, meaning: "Maximum " + of, advice: advice, parse: untyped(sizeBetween(least, most)),
		allowed: fmt.Sprintf("a size from %s to %s, in B, KiB, MiB or GiB", least, most),
	}
}

// variable returns the row of name, which must exist.
func variable(name string) *spec {
	for i := range variables {
		if variables[i].name == name {
			return &variables[i]
		}
	}
	panic("config: no variable " + prefix + name)
}
