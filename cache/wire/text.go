package wire

import "strings"

// Shorten returns the beginning of a text that has more than so many bytes, with an ellipsis.
func Shorten(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}
