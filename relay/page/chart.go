package page

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Sizes of a chart, in its own units.
const (
	chartWidth, chartHeight = 360, 90
	chartTop                = 6 // room for the line's own width
)

// The charts of the overview have a heading that says which time they show.
type chartsOf struct {
	Heading string
	Charts  []chart
}

// A chart is a few series over the last hour, as SVG has them.
type chart struct {
	Title  string
	Most   string // the value at the top
	From   string // how long ago the left edge is
	Series []series
}

// A series is one line.
type series struct {
	Name, Class string
	Now, Most   string
	Lines       []string // points of polylines: there are gaps where there is no value
}

// newChart draws values of points.
func newChart(title string, points []Point, now time.Time, format func(float64) string, lines ...line) chart {
	most := highest(points, lines)
	span := spanOf(points, now)
	c := chart{Title: title, From: brief(span.Seconds())}
	if top := nice(most); top > 0 {
		c.Most = format(top)
		most = top
	}
	for _, l := range lines {
		s := series{Name: l.name, Class: l.class, Now: format(math.NaN()), Most: format(math.NaN())}
		peak := math.NaN()
		var line strings.Builder
		flush := func() {
			if line.Len() > 0 {
				s.Lines = append(s.Lines, strings.TrimSpace(line.String()))
			}
			line.Reset()
		}
		for _, p := range points {
			v := l.of(p)
			if math.IsNaN(v) || now.Sub(p.At) > span { // the process may have been suspended
				flush()
				continue
			}
			if !(peak >= v) {
				peak = v
			}
			x := chartWidth * (1 - now.Sub(p.At).Seconds()/span.Seconds())
			y := float64(chartHeight)
			if most > 0 {
				y -= (chartHeight - chartTop) * v / most
			}
			fmt.Fprintf(&line, "%.1f,%.1f ", x, y)
		}
		flush()
		if len(points) > 0 {
			s.Now = format(l.of(points[len(points)-1]))
		}
		s.Most = format(peak)
		c.Series = append(c.Series, s)
	}
	return c
}

// highest returns the highest value of some lines.
func highest(points []Point, lines []line) (most float64) {
	for _, p := range points {
		for _, l := range lines {
			if v := l.of(p); v > most { // which NaN never is
				most = v
			}
		}
	}
	return most
}

// spanOf returns the time that a chart shows: since the first point, at least five minutes and at most an hour. It is an
// hour once as many points as a history keeps were taken.
func spanOf(points []Point, now time.Time) time.Duration {
	if len(points) >= kept {
		return time.Hour
	}
	span := 5 * time.Minute
	if len(points) > 0 {
		span = max(span, now.Sub(points[0].At))
	}
	return min(span, time.Hour)
}

// headingOf returns the heading of charts of these points.
func headingOf(points []Point, now time.Time) string {
	span := spanOf(points, now)
	if span == time.Hour {
		return "The last hour"
	}
	return "The last " + plural(int(math.Ceil(span.Minutes())), "minute")
}

// A line is what a chart shows of points.
type line struct {
	name, class string
	of          func(Point) float64
}

// nice returns the least number of the form 1, 2 or 5 times a power of ten that is not below n.
func nice(n float64) float64 {
	if n <= 0 {
		return 0
	}
	step := math.Pow(10, math.Floor(math.Log10(n)))
	for _, times := range []float64{1, 2, 5} {
		if times*step >= n {
			return times * step
		}
	}
	return 10 * step
}

// charts returns the charts of the overview.
func charts(points []Point, now time.Time) chartsOf {
	return chartsOf{headingOf(points, now), []chart{
		newChart("Deliveries a second", points, now, number,
			line{"deliveries", "deliveries", func(p Point) float64 { return p.Deliveries }},
			line{"refused", "refused", func(p Point) float64 { return p.Refusals }}),
		newChart("From the origin to a client’s ACK", points, now, brief,
			line{"p50", "p50", func(p Point) float64 { return p.P50 }},
			line{"p99", "p99", func(p Point) float64 { return p.P99 }}),
		newChart("Streams", points, now, number,
			line{"streams", "streams", func(p Point) float64 { return p.Streams }}),
	}}
}
