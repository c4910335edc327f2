package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// A point is the load on one relay, in the variables of the model.
type point struct {
	clients   int
	resources int     // served by the origin
	names     int     // subscribed to by each client; 0 is the wildcard
	bytes     int     // of each resource
	changes   float64 // per second, each of one resource
}

// share returns the fraction of the clients that subscribe to any one resource.
func (p point) share() float64 {
	if p.names == 0 {
		return 1
	}
	return float64(p.names) / float64(p.resources)
}

// kept returns the number of resources in the cache of the relay, which caches the subscribed resources only.
func (p point) kept() float64 {
	if p.names == 0 {
		return float64(p.resources)
	}
	return float64(min(p.resources, p.clients*p.names))
}

// deliveries returns the number of deliveries to clients per second.
func (p point) deliveries() float64 { return p.changes * float64(p.clients) * p.share() }

// String returns the label of the row that measures the point.
func (p point) String() string {
	interest := "wildcard"
	if p.names > 0 {
		interest = fmt.Sprintf("%d names each", p.names)
	}
	return fmt.Sprintf("%d clients, %d resources of %d B, %s, %g/s", p.clients, p.resources, p.bytes, interest, p.changes)
}

// cpuTerms are the terms of the CPU cost, in CPU seconds per second.
var cpuTerms = []term{
	{"a change", func(p point) float64 { return p.changes * p.kept() / float64(p.resources) }, "µs", 1e6},
	{"a delivery", point.deliveries, "µs", 1e6},
	{"a delivery, more if it is by name", func(p point) float64 {
		if p.names == 0 {
			return 0
		}
		return p.deliveries()
	}, "µs", 1e6},
	{"a KiB delivered", func(p point) float64 { return p.deliveries() * float64(p.bytes) / 1024 }, "µs", 1e6},
}

// memoryTerms are the terms of resident memory, in MiB.
var memoryTerms = []term{
	{"the process", func(point) float64 { return 1 }, "MiB", 1},
	{"a client", func(p point) float64 { return float64(p.clients) }, "KiB", 1 << 10},
	{"a client and name", func(p point) float64 { return float64(p.clients * p.names) }, "bytes", 1 << 20},
	{"a resource", point.kept, "bytes", 1 << 20},
	{"a KiB of resources", func(p point) float64 { return p.kept() * float64(p.bytes) / 1024 }, "bytes", 1 << 20},
}

// points are the loads that the model is fitted to. Each term is large at some points
// and small at others, so that its coefficient can be determined.
var points = []point{
	{250, 100, 0, 1024, 4},
	{1000, 100, 0, 1024, 4},
	{2500, 100, 0, 1024, 4},
	{1000, 100, 0, 1024, 20},
	{500, 100, 0, 65536, 4},
	{500, 100, 0, 256, 20},
	{250, 1000, 0, 32768, 4},
	{250, 10_000, 0, 256, 4},
	{1000, 10_000, 50, 256, 400},
	{2500, 10_000, 50, 256, 400},
	{1000, 10_000, 500, 256, 40},
	{250, 10_000, 2000, 256, 40},
}

// eachRelay is the maximum number of clients per relay in the forecasts for trees. The
// model is also checked at this number.
const eachRelay = 5000

// model is MODEL: it measures points, fits the model and checks it on further rows.
func (o options) model() scenario {
	s := scenario{id: "MODEL", title: "what CPU and memory grow with", rounds: 1}
	var measured []point
	for _, p := range points {
		p.clients = o.scaled(p.clients)
		measured = append(measured, p)
		s.rows = append(s.rows, o.modelRow(p, 0))
	}
	check := point{o.scaled(eachRelay), 100, 0, 1024, 4}
	one, three := o.modelRow(check, 0), o.modelRow(check, 2)
	one.label, three.label = "check: "+one.label, "check: "+three.label+", tree of three"
	s.rows = append(s.rows, one, three)
	s.conclude = func(r result) string {
		return conclusion(r, measured, s.rows, []checked{{one.label, tree(check, check.clients)}, {three.label, tree(check, check.clients/2)}})
	}
	return s
}

// modelRow returns a row that measures a point on one relay, or on lower relays behind another if lower is not 0.
func (o options) modelRow(p point, lower int) row {
	typeURL := content.Cluster
	if p.names > 0 {
		typeURL = content.Endpoint
	}
	changes := serve.Changes{
		TypeURL: typeURL, Count: max(o.scaled(int(3*p.changes)), 4), Every: time.Duration(float64(time.Second) / p.changes), Random: p.names > 0,
	}
	seconds := (time.Duration(changes.Count) * changes.Every).Seconds()
	act := func(st *stage, f *figures) error {
		if err := changing(changes)(st, f); err != nil {
			return err
		}
		m, err := st.servers.Memory()
		f.held, f.cores = float64(m.Resident)/(1<<20), f.spent/seconds
		return err
	}
	return row{label: p.String(), kind: "tender", act: act, setup: setup{
		kinds:     []content.Kind{{TypeURL: typeURL, Count: p.resources, Bytes: p.bytes}},
		interests: []load.Interest{{TypeURL: typeURL, Wildcard: p.names == 0, Count: p.names, Of: p.resources}},
		clients:   p.clients, lower: lower,
	}}
}

// A level is the set of relays in a tree that have the same distance from the origin.
type level struct {
	relays int
	load   point // of each relay
}

// tree returns the levels of relays that serve p.clients clients, from the lowest level
// up to the one relay next to the origin. each is the maximum number of clients per relay.
func tree(p point, each int) (levels []level) {
	for {
		relays := (p.clients + each - 1) / each
		p.clients = (p.clients + relays - 1) / relays
		levels = append(levels, level{relays, p})
		if relays == 1 {
			return levels
		}
		if p.names > 0 { // a relay subscribes upstream to the names of all its clients
			p.names = int(p.kept())
		}
		p.clients = relays
	}
}

// over returns the cost that the fit predicts for all relays of a tree.
func (f fit) over(levels []level) (cost float64) {
	for _, l := range levels {
		cost += float64(l.relays) * f.at(l.load)
	}
	return cost
}

// A checked row is measured to verify the model, and not used for the fit.
type checked struct {
	label  string
	levels []level
}

// conclusion fits the model and returns its coefficients, its checks and its forecast in Markdown.
func conclusion(r result, measured []point, rows []row, checks []checked) string {
	costs := func(figure func(figures) float64) (values []float64) {
		for i := range measured {
			values = append(values, median(r.of(rows[i].label, figure)))
		}
		return values
	}
	c, err := fitted(cpuTerms, measured, costs(cores))
	if err != nil {
		return fmt.Sprintf("\nNo model of CPU: %v.\n", err)
	}
	m, err := fitted(memoryTerms, measured, costs(held))
	if err != nil {
		return fmt.Sprintf("\nNo model of memory: %v.\n", err)
	}
	var b strings.Builder
	b.WriteString("\n### The model\n\n| Term | coefficient | unit |\n| --- | ---: | --- |\n")
	b.WriteString(c.rows("CPU") + m.rows("RSS"))
	b.WriteString("\n| Error of the fit | root mean square | at most |\n| --- | ---: | ---: |\n")
	for _, e := range []struct {
		cost string
		fit  fit
	}{{"CPU", c}, {"RSS", m}} {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", e.cost, percent(e.fit.mean), percent(e.fit.worst))
	}
	b.WriteString("\n| Check | CPU seconds a second | by the model | off by | RSS, MiB | RSS by the model | RSS off by |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, k := range checks {
		cpu, rss := median(r.of(k.label, cores)), median(r.of(k.label, held))
		fmt.Fprintf(&b, "| %s | %.3f | %.3f | %s | %s | %s | %s |\n", strings.TrimPrefix(k.label, "check: "),
			cpu, c.over(k.levels), percent(c.over(k.levels)/cpu-1), number(rss), number(m.over(k.levels)), percent(m.over(k.levels)/rss-1))
	}
	return b.String() + forecast(c, m)
}

// rows returns the coefficients of a fit as rows of a Markdown table, without the terms that the fit has dropped.
func (f fit) rows(cost string) string {
	var b strings.Builder
	for j, t := range f.terms {
		if f.coefficients[j] > 0 {
			fmt.Fprintf(&b, "| %s of %s | %s | %s |\n", cost, t.what, number(f.coefficients[j]*t.many), t.unit)
		}
	}
	return b.String()
}

// forecast returns a table of the predicted cost of 10,000 to 1,000,000 clients, for two loads.
func forecast(c, m fit) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n| Fleet | relays, of at most %d clients | CPU seconds a second, of one of the lowest | RSS of it, MiB | CPU seconds a second, of all | RSS of all, GiB |\n", eachRelay)
	b.WriteString("| --- | --- | ---: | ---: | ---: | ---: |\n")
	for _, p := range []point{
		{resources: 1000, bytes: 1024, changes: 1},
		{resources: 10_000, names: 50, bytes: 256, changes: 100},
	} {
		for _, clients := range []int{10_000, 100_000, 1_000_000} {
			p.clients = clients
			levels := tree(p, eachRelay)
			var relays []string
			for _, l := range slices.Backward(levels) {
				relays = append(relays, fmt.Sprint(l.relays))
			}
			lowest := levels[0].load
			fmt.Fprintf(&b, "| %s | %s | %.3f | %s | %s | %s |\n", p, strings.Join(relays, " + "),
				c.at(lowest), number(m.at(lowest)), number(c.over(levels)), number(m.over(levels)/1024))
		}
	}
	return b.String()
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*v)+0) } // + 0 turns −0 into 0
