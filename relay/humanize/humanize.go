// Package humanize formats durations, sizes and names for the commands and the status page.
//
// The package is not a stable API: programs that embed Tender use package relay.
package humanize

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Seconds formats a number of seconds: 0.4s, 12s, 3m20s, 5h1m, 12d3h. A negative number is 0s.
func Seconds(n float64) string {
	d := time.Duration(max(n, 0) * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// Duration formats a duration as time.Duration.String does, without trailing zero units: 10m, not 10m0s.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Bytes formats a number of bytes: 320 B, 1.5 KiB, 48 MiB.
func Bytes[N int | int64 | uint64](n N) string {
	size, unit := float64(n), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, larger
	}
	if size < 9.95 && unit != "B" {
		return fmt.Sprintf("%.1f %s", size, unit)
	}
	return fmt.Sprintf("%.0f %s", size, unit)
}

// Cut shortens a text to a maximum number of characters. It replaces the middle with an ellipsis, since names often
// differ only at their end.
func Cut(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	head := most / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-head-1):])
}

// Quote returns a text as a quoted Go string. It truncates the text to 120 bytes, since a long value makes a message
// unreadable.
func Quote(text string) string {
	const most = 120
	if len(text) <= most {
		return strconv.Quote(text)
	}
	return strconv.Quote(text[:most]) + "…"
}

// pageWidth is the maximum length of a line in the documentation, in characters.
const pageWidth = 118

// Wrap breaks a text at spaces into lines of at most 118 characters; a longer word makes a longer line. The result ends
// with a newline. The first line is prefixed with first, such as "- " in a list, and all other lines with others.
func Wrap(text, first, others string) string {
	var b strings.Builder
	indent, width := first, 0
	for word := range strings.FieldsSeq(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case width == 0:
			b.WriteString(indent)
			width = utf8.RuneCountInString(indent)
		case width+1+length > pageWidth:
			b.WriteString("\n" + others)
			width = utf8.RuneCountInString(others)
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += length
	}
	return b.String() + "\n"
}
