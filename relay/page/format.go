package page

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// short returns the short name of a type, such as cds, or else the name of its message.
func short(typeURL string) string {
	if name, ok := schema.ShortName(typeURL); ok {
		return name
	}
	return cmp.Or(typeURL[strings.LastIndexAny(typeURL, "./")+1:], typeURL)
}

// brief formats seconds for display: 4ms, 0.4s, 12s, 3m20s, 5h1m, 12d3h.
func brief(seconds float64) string {
	switch {
	case math.IsNaN(seconds):
		return "–"
	case seconds > 0 && seconds < 0.1:
		return fmt.Sprintf("%.3gms", seconds*1000)
	default:
		return humanize.Seconds(seconds)
	}
}

// number formats a number for display: 0.25, 7.1, 42, 1,234.
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

// decimals returns the number of decimals with which a number is displayed.
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

// plural returns a count with its noun: 1 client, 2 clients.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(float64(n)) + " " + noun + "s"
}

// verbEnding returns the ending of a verb for a count: 1 client rejects, 2 clients reject.
func verbEnding(n int) string {
	if n == 1 {
		return "s"
	}
	return ""
}

// ago returns the age of a time, or a dash for the zero time.
func ago(then, now time.Time) string {
	if then.IsZero() {
		return "–"
	}
	return brief(now.Sub(then).Seconds())
}

// groupName returns the name of a node group, at most 60 characters of it.
func groupName(key string) string { return humanize.Cut(nodegroup.Name(key), 60) }
