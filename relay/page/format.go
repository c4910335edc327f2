package page

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire/schema"
)

// short returns the short name of a type, such as cds, or the message's name.
func short(typeURL string) string {
	if name, ok := schema.ShortName(typeURL); ok {
		return name
	}
	return cmp.Or(typeURL[strings.LastIndexAny(typeURL, "./")+1:], typeURL)
}

// brief returns a number of seconds as one reads it: 4ms, 0.4s, 12s, 3m20s, 5h1m, 12d3h.
func brief(seconds float64) string {
	d := time.Duration(max(seconds, 0) * float64(time.Second))
	switch {
	case math.IsNaN(seconds):
		return "–"
	case d == 0:
		return "0s"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.3gms", float64(d)/float64(time.Millisecond))
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// size returns a number of bytes as one reads it.
func size(bytes float64) string {
	const step = 1024
	unit := 0
	for units := "KMGT"; bytes >= step && unit < len(units); unit++ {
		bytes /= step
	}
	if unit == 0 {
		return fmt.Sprintf("%.0f B", bytes)
	}
	return fmt.Sprintf("%.*f %ciB", decimals(bytes), bytes, " KMGT"[unit])
}

// number returns a number with three digits or more: 0.25, 7.1, 42, 1,234.
func number(n float64) string {
	if math.IsNaN(n) {
		return "–"
	}
	whole := fmt.Sprintf("%.*f", decimals(n), n)
	if n < 999.5 {
		return whole
	}
	var b strings.Builder
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// decimals returns how many of them a number has that people read.
func decimals(n float64) int {
	switch {
	case n == math.Trunc(n), n >= 10:
		return 0
	case n >= 1:
		return 1
	default:
		return 2
	}
}

// plural returns a count and what is counted: 1 client, 2 clients.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(float64(n)) + " " + what + "s"
}

// ending returns the verb's ending for so many: 1 client refuses, 2 clients refuse.
func ending(n int) string {
	if n == 1 {
		return "s"
	}
	return ""
}

// cut returns a text of at most so many characters, the middle left out of a longer one.
func cut(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	head := most / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-head-1):])
}

// ago returns how long ago something was, or a dash if it never was.
func ago(then, now time.Time) string {
	if then.IsZero() {
		return "–"
	}
	return brief(now.Sub(then).Seconds())
}
