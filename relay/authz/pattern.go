package authz

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxPatternBytes is the maximum length of a pattern. By default, resource names are at most as long.
const maxPatternBytes = 4 << 10

// stops are the characters that * does not match: the separators in resource names, paths, and the node IDs of service
// meshes.
const stops = "/~"

// A part is a literal, a wildcard or a capture in a pattern.
type part struct {
	kind partKind
	text string // the literal, or the name of a capture; empty for wildcards
}

// A partKind determines which text a part matches.
type partKind int

const (
	literal partKind = iota
	within           // *: any text without stops
	across           // **: any text
	capture          // {name}: its bound value, or else non-empty text without stops
)

// A pattern matches whole texts. It is immutable. The zero value matches the empty text.
type pattern struct {
	text  string // as it is written in the file
	stops string // characters that within and capture do not match
	parts []part
}

// parsePattern parses a pattern. stops are the characters that * and captures do not match.
func parsePattern(text, stops string) (p pattern, err error) {
	if len(text) > maxPatternBytes {
		return p, fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), maxPatternBytes)
	}
	p = pattern{text: text, stops: stops}
	for rest := text; rest != ""; {
		var next part
		if next, rest, err = nextPart(rest); err != nil {
			return pattern{}, err
		}
		p.parts = append(p.parts, next)
	}
	return p, nil
}

// captureName matches a valid name of a capture.
var captureName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// nextPart parses the first part of a text, which must not be empty, and returns the rest of the text.
func nextPart(text string) (next part, rest string, err error) {
	switch text[0] {
	case '*':
		rest = strings.TrimLeft(text, "*")
		switch len(text) - len(rest) {
		case 1:
			return part{kind: within}, rest, nil
		case 2:
			return part{kind: across}, rest, nil
		}
		return part{}, "", errors.New("more than two * in a row stand for nothing")
	case '{':
		name, rest, closed := strings.Cut(text[1:], "}")
		if !closed || !captureName.MatchString(name) {
			return part{}, "", errors.New("a brace begins a name of a-z, 0-9 and _, and } ends it")
		}
		return part{capture, name}, rest, nil
	case '}':
		return part{}, "", errors.New("} ends nothing")
	}
	if i := strings.IndexAny(text, "*{}"); i >= 0 {
		return part{literal, text[:i]}, text[i:], nil
	}
	return part{literal, text}, "", nil
}

// captures returns the names of the captures, in order of appearance.
func (p *pattern) captures() (names []string) {
	for _, part := range p.parts {
		if part.kind == capture {
			names = append(names, part.text)
		}
	}
	return names
}

// matches reports whether the pattern matches the whole text. A capture matches its value in bound; a capture without a
// value matches any non-empty text without stops. The time is at most proportional to the product of both lengths:
// it does not backtrack, so a client cannot make a match slow by its choice of names.
func (p *pattern) matches(text string, bound map[string]string) bool {
	reached := make([]bool, len(text)+1) // reached[i]: the parts so far can match text[:i]
	reached[0] = true
	for _, part := range p.parts {
		value, isBound := part.text, part.kind == literal
		if part.kind == capture {
			value, isBound = bound[part.text]
		}
		if isBound {
			reached = step(reached, text, value)
		} else {
			p.spread(reached, text, part.kind)
		}
	}
	return reached[len(text)]
}

// step returns the positions that can be reached by matching a literal, from each position reached before.
func step(reached []bool, text, value string) []bool {
	next := make([]bool, len(reached))
	for i, is := range reached {
		if is && strings.HasPrefix(text[i:], value) {
			next[i+len(value)] = true
		}
	}
	return next
}

// spread updates reached, in place, with the positions that a wildcard or an unbound capture can reach.
func (p *pattern) spread(reached []bool, text string, kind partKind) {
	on := false
	for i := range reached {
		if i > 0 && on && kind != across && strings.IndexByte(p.stops, text[i-1]) >= 0 {
			on = false
		}
		was := reached[i]
		if reached[i] = on; kind != capture {
			reached[i] = on || was
		}
		on = on || was
	}
}

// anyMatches reports whether one of the patterns matches the text.
func anyMatches(patterns []pattern, text string, bound map[string]string) bool {
	for i := range patterns {
		if patterns[i].matches(text, bound) {
			return true
		}
	}
	return false
}
