package nodegroup

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Name returns the key of a group as operators read it: metadata without that prefix, and texts in it without quotes,
// such as NAMESPACE=shop. Different keys have different names. The key of anything else is returned as it is.
func Name(key string) string {
	var parts []string
	for rest := key; rest != ""; {
		part, length := namedPart(rest)
		if length == 0 || length < len(rest) && (rest[length] != ',' || length+1 == len(rest)) {
			return key // not a key that Sort made
		}
		parts = append(parts, part)
		rest = strings.TrimPrefix(rest[length:], ",")
	}
	return strings.Join(parts, ",")
}

// Is reports whether a text that an operator gave is the key of a group, or its name.
func Is(text, key string) bool { return text == key || text == Name(key) }

// nodeFields are the fields of a key that are not metadata. Metadata with these names keeps its prefix.
var nodeFields = []string{"id", "cluster", "user_agent_name", "user_agent_version", "locality.region", "locality.zone", "locality.sub_zone"}

// namedPart returns the first part of a key as in Name, and its length in the key; 0 if it has no valid part.
func namedPart(key string) (part string, length int) {
	field, value, is := strings.Cut(key, "=")
	if !is || strings.Contains(field, ",") { // a feature
		part, _, _ = strings.Cut(key, ",")
		return part, len(part)
	}
	path, inMetadata := strings.CutPrefix(field, "metadata.")
	if !inMetadata {
		length = len(field) + 1 + len(plainValue(value))
		return key[:length], length
	}
	if slices.Contains(nodeFields, path) {
		path = field
	}
	if value == "" || value[0] == ',' { // the client has no such metadata
		return path + "=", len(field) + 1
	}
	decoder := json.NewDecoder(strings.NewReader(value))
	var raw json.RawMessage
	if decoder.Decode(&raw) != nil {
		return "", 0
	}
	return path + "=" + shownValue(string(raw)), len(field) + 1 + int(decoder.InputOffset())
}

// plainValue returns the value of a field that is not metadata, at the beginning of a text.
func plainValue(text string) string {
	if quoted, err := strconv.QuotedPrefix(text); err == nil && quoted[0] == '"' {
		return quoted
	}
	value, _, _ := strings.Cut(text, ",")
	return value
}

// shownValue returns a JSON value: a text without quotes, unless it could be read as another value or as several.
func shownValue(value string) string {
	var text string
	if json.Unmarshal([]byte(value), &text) != nil || text == "" || json.Valid([]byte(text)) ||
		strings.ContainsAny(text, `,="\{}[]`) || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return value
	}
	return text
}
