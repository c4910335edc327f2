package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/xdstender/tender/cache/wire/schema"
)

// ShortType is how a type is called in a table.
func ShortType(typeURL string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		return short
	}
	return Printable(typeURL)
}

// OrDash returns a printable s, or a dash if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return Printable(s)
}

// Printable escapes every character of s that is not printable.
func Printable(s string) string { return Escape(s, "") }

// Escape replaces what is not printable, and not in but, by \uXXXX as JSON
// writes it.
func Escape(s, but string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	clean := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(but, r) }
	if !strings.ContainsFunc(s, func(r rune) bool { return !clean(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if clean(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
