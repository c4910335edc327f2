package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/xdstender/tender/cache/wire/schema"
)

// ShortType returns the short name of a type such as cds, or the printable type URL if it has none.
func ShortType(typeURL string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		return short
	}
	return Printable(typeURL)
}

// OrDash returns Printable(s), or "-" if s is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return Printable(s)
}

// Printable escapes all unprintable characters of s, including newlines.
func Printable(s string) string { return Escape(s, "") }

// Escape replaces unprintable characters of s, except those in but, with \uXXXX as in JSON. It replaces invalid UTF-8
// with U+FFFD. Text from peers must be escaped, since it may contain sequences that control a terminal.
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
