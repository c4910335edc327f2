package page

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Sizes of a chart, in units of its viewBox.
const (
	chartWidth, chartHeight = 360, 90
	chartTop                = 6 // space for the width of a line at the top
)

// A chartSection is the charts of the overview, with a heading that contains the time span.
type chartSection struct {
	Heading string
	Charts  []chart
}

// A chart shows some series over at most the last hour.
type chart struct {
	Title  string
	Max    string // the value at the top
	From   string // age of the left edge
	Series []series
}

// A series is one line of a chart.
type series struct {
	Name, Class string
	Now, Max    string   // the newest and the highest value
	Lines       []string // points of polylines, with gaps where a value is missing
}

// newChart returns a chart of the values of points.
func newChart(title string, points []Point, now time.Time, format func(float64) string, lines ...line) chart {
	top := roundUp(highest(points, lines))
	span := chartSpan(points, now)
	c := chart{Title: title, From: brief(span.Seconds())}
	if top > 0 {
		c.Max = format(top)
	}
	for _, l := range lines {
		s := series{Name: l.name, Class: l.class, Now: format(math.NaN()), Max: format(math.NaN())}
		peak := math.NaN()
		var line strings.Builder
		flush := func() {
			if line.Len() > 0 {
				s.Lines = append(s.Lines, strings.TrimSpace(line.String()))
			}
			line.Reset()
		}
		for _, p := range points {
			v := l.value(p)
			if math.IsNaN(v) || now.Sub(p.At) > span { // the process may have been suspended
				flush()
				continue
			}
			if !(peak >= v) {
				peak = v
			}
			x := chartWidth * (1 - now.Sub(p.At).Seconds()/span.Seconds())
			y := float64(chartHeight)
			if top > 0 {
				y -= (chartHeight - chartTop) * v / top
			}
			fmt.Fprintf(&line, "%.1f,%.1f ", x, y)
		}
		flush()
		if len(points) > 0 {
			s.Now = format(l.value(points[len(points)-1]))
		}
		s.Max = format(peak)
		c.Series = append(c.Series, s)
	}
	return c
}

// highest returns the highest value of lines; 0 without a value.
func highest(points []Point, lines []line) (highest float64) {
	for _, p := range points {
		for _, l := range lines {
			if v := l.value(p); v > highest { // false for NaN
				highest = v
			}
		}
	}
	return highest
}

// chartSpan returns the time span of a chart: the age of the first point, from five minutes to an hour. It is an hour
// if the history is full.
func chartSpan(points []Point, now time.Time) time.Duration {
	if len(points) >= maxPoints {
		return time.Hour
	}
	span := 5 * time.Minute
	if len(points) > 0 {
		span = max(span, now.Sub(points[0].At))
	}
	return min(span, time.Hour)
}

// chartHeading returns the heading of charts of points.
func chartHeading(points []Point, now time.Time) string {
	span := chartSpan(points, now)
	if span == time.Hour {
		return "The last hour"
	}
	return "The last " + plural(int(math.Ceil(span.Minutes())), "minute")
}

// A line is the name of a series, its CSS class, and its value at a point.
type line struct {
	name, class string
	value       func(Point) float64
}

// roundUp returns the smallest number of the form 1, 2 or 5 times a power of ten that is at least n; 0 if n is not
// positive.
func roundUp(n float64) float64 {
	if n <= 0 {
		return 0
	}
	step := math.Pow(10, math.Floor(math.Log10(n)))
	for _, factor := range []float64{1, 2, 5} {
		if factor*step >= n {
			return factor * step
		}
	}
	return 10 * step
}

// newCharts returns the charts of the overview.
func newCharts(points []Point, now time.Time) chartSection {
	return chartSection{chartHeading(points, now), []chart{
		newChart("Deliveries per second", points, now, number,
			line{"deliveries", "deliveries", func(p Point) float64 { return p.Deliveries }},
			line{"rejected", "rejected", func(p Point) float64 { return p.Rejections }}),
		newChart("From the origin to a client’s ACK", points, now, brief,
			line{"p50", "p50", func(p Point) float64 { return p.P50 }},
			line{"p99", "p99", func(p Point) float64 { return p.P99 }}),
		newChart("Streams", points, now, number,
			line{"streams", "streams", func(p Point) float64 { return p.Streams }}),
	}}
}
