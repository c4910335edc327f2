package schema

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A positioned error has a position in the input. Zero means unknown.
type positioned struct {
	line, column int
	text         string
	cause        error
}

func (e *positioned) Error() string {
	switch {
	case e.line == 0:
		return e.text
	case e.column == 0:
		return fmt.Sprintf("line %d: %s", e.line, e.text)
	default:
		return fmt.Sprintf("line %d:%d: %s", e.line, e.column, e.text)
	}
}

func (e *positioned) Unwrap() error { return e.cause }

// inFile returns the error in the form that compilers use: name:line:column: text.
func (e *positioned) inFile(name string) error {
	where := name
	if e.line > 0 {
		where += ":" + strconv.Itoa(e.line)
		if e.column > 0 {
			where += ":" + strconv.Itoa(e.column)
		}
	}
	return fmt.Errorf("%s: %w", where, &positioned{text: e.text, cause: e.cause})
}

// position matches "(line 3:14): " of the protobuf parsers and "line 3: " of the YAML
// parser.
var position = regexp.MustCompile(`\(?line (\d+)(?::(\d+))?\)?:\s*`)

// quoting matches errors of the protobuf parsers that quote a value, which may be a private
// key: the value of a string or bytes field, or one that they cannot parse.
var quoting = regexp.MustCompile(`(invalid value for (?:bytes|string) field [^:]*):|(unexpected token) ["\d-]|^(invalid value) (?:[^f]|f[^o])`)

// withoutValue returns the message of a parser without the value that it quotes (B.36).
func withoutValue(text string) string {
	at := quoting.FindStringSubmatchIndex(text)
	for i := 2; i < len(at); i += 2 {
		if at[i] >= 0 {
			return text[:at[i+1]]
		}
	}
	return text
}

// tidy parses the position of a parser's error, and removes it and the parser's name from
// the text. The protobuf parsers vary the space after their name.
func tidy(err error) *positioned {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n", "proto: ", "syntax error "} {
		text = strings.TrimPrefix(text, prefix)
	}
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	p := &positioned{text: text, cause: err}
	if at := position.FindStringSubmatchIndex(text); at != nil {
		p.line, _ = strconv.Atoi(text[at[2]:at[3]])
		if at[4] >= 0 {
			p.column, _ = strconv.Atoi(text[at[4]:at[5]])
		}
		p.text = text[:at[0]] + text[at[1]:]
	}
	p.text = withoutValue(p.text)
	return p
}
