package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
)

// A spec defines a variable: its name, default, allowed values and meaning. Load, tender check and
// deploy/docs/configuration.md use it.
type spec struct {
	name         string // without TENDER_
	defaultValue string // the default in the syntax of the variable; may be empty
	defaultText  string // the default in words, if defaultValue cannot express it
	emptyText    string // the word for an empty value, if that is not the default
	allowed      string
	meaning      string // one line, without a period
	advice       string // details, and when to change the variable
	secret       bool   // errors do not quote its value

	// parse returns a value of the type of the Config field.
	parse func(raw string) (any, error)

	// format returns the text of a value. If nil, the type of the field determines it.
	format func(value any) string
}

// untyped converts a parser to the type of spec.parse.
func untyped[T any](parse func(raw string) (T, error)) func(string) (any, error) {
	return func(raw string) (any, error) { return parse(raw) }
}

// invalid returns the error for an invalid value. It quotes the value, which may contain control characters.
func (v *spec) invalid(raw string, cause error) error {
	return fmt.Errorf("%s%s=%s: %w; allowed: %s", prefix, v.name, v.quote(raw), cause, plain(v.allowed))
}

// quote returns a value quoted, or masked if it is secret.
func (v *spec) quote(raw string) string {
	if v.secret && raw != "" {
		return "…"
	}
	return humanize.Quote(raw)
}

// A section has the variables of a topic.
type section struct {
	title string
	rows  []spec
}

// sections has all variables by topic, in the order of deploy/docs/configuration.md.
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

// choice returns the row of an enumeration, whose first word is the default.
func choice(name, meaning, advice string, words ...string) spec {
	last := len(words) - 1
	allowed := "`" + strings.Join(words[:last], "`, `") + "` or `" + words[last] + "`"
	return spec{
		name: name, defaultValue: words[0], allowed: allowed, meaning: meaning, advice: advice,
		parse: untyped(oneOf(words...)),
	}
}

// onOff returns the row of a switch.
func onOff(name, preset, meaning, advice string) spec {
	parse := func(raw string) (bool, error) {
		word, err := oneOf("on", "off")(raw)
		return word == "on", err
	}
	return spec{
		name: name, defaultValue: preset, allowed: "`on` or `off`", meaning: meaning, advice: advice, parse: untyped(parse),
	}
}

// file returns the row of a path. needs names the variables that must also be set.
func file(name, needs, meaning, advice string) spec {
	return spec{name: name, allowed: allowedPath + needs, meaning: meaning, advice: advice, parse: untyped(parseFile)}
}

// types returns the row of a list of types.
func types(name string, parse func(string) (string, error), meaning, advice string) spec {
	return spec{
		name: name, meaning: meaning, advice: advice, parse: untyped(listOf(",", parse)),
		allowed: allowedTypes,
	}
}

// allowedTypes describes the allowed values of rows of types.
const allowedTypes = "short names (`lds`, `cds`, `eds`, …) or type URLs, separated by commas"

// duration returns the row of a duration.
func duration(name, preset string, minimum, maximum time.Duration, meaning, advice string) spec {
	return spec{
		name: name, defaultValue: preset, allowed: between(minimum, maximum), meaning: meaning, advice: advice,
		parse: untyped(durationBetween(minimum, maximum)),
	}
}

// whole returns the row of a whole number.
func whole(name, preset string, minimum, maximum int, meaning, advice string) spec {
	return spec{
		name: name, defaultValue: preset, meaning: meaning, advice: advice, parse: untyped(intBetween(minimum, maximum)),
		allowed: fmt.Sprintf("a whole number from %d to %d", minimum, maximum),
	}
}

// limit returns the row of a maximum number.
func limit(name, preset string, maximum int, of, advice string) spec {
	return whole(name, preset, 1, maximum, "Maximum number of "+of, advice)
}

// sizeLimit returns the row of a maximum size.
func sizeLimit(name, preset string, minimum, maximum Size, of, advice string) spec {
	return spec{
		name: name, defaultValue: preset, meaning: "Maximum " + of, advice: advice,
		parse:   untyped(sizeBetween(minimum, maximum)),
		allowed: fmt.Sprintf("a size from %s to %s, in B, KiB, MiB or GiB", minimum, maximum),
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
