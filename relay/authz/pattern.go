package authz

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxPatternBytes bounds a pattern: names are at most that long by default.
const maxPatternBytes = 4 << 10

// stops are the characters that * does not match: the separators in resource names, paths, and the node IDs of service
// meshes.
const stops = "/~"

// A part of a pattern.
type part struct {
	kind partKind
	text string // the literal, or the name of a capture
}

type partKind int

const (
	literal partKind = iota
	within           // *: any text without stops
	across           // **: any text
	capture          // {name}: text without stops, and not empty
)

// A pattern is met by texts as a whole.
type pattern struct {
	text  string
	stops string
	parts []part
}

// parsePattern reads a pattern in which * does not stand for stops.
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

// captureName is what may stand between braces.
var captureName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// nextPart reads the first part of a text that is not empty.
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

// captures returns the names in braces.
func (p *pattern) captures() (names []string) {
	for _, part := range p.parts {
		if part.kind == capture {
			names = append(names, part.text)
		}
	}
	return names
}

// matches reports whether a text meets the pattern, with bound in the place of captures. Those
// that are not bound stand for any text without stops. It takes time in proportion to both,
// whatever the pattern.
func (p *pattern) matches(text string, bound map[string]string) bool {
	reached := make([]bool, len(text)+1) // up to where the parts so far may have come
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

// step returns where a literal leads.
func step(reached []bool, text, value string) []bool {
	next := make([]bool, len(reached))
	for i, is := range reached {
		if is && strings.HasPrefix(text[i:], value) {
			next[i+len(value)] = true
		}
	}
	return next
}

// spread adds the positions that a wildcard part can reach.
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

// anyMatches reports whether a text meets one of the patterns.
func anyMatches(patterns []pattern, text string, bound map[string]string) bool {
	for i := range patterns {
		if patterns[i].matches(text, bound) {
			return true
		}
	}
	return false
}
