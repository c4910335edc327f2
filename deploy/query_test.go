package deploy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// A checker checks that queries parse, and use only exported series, labels and label values.
type checker struct {
	known  map[string]series
	faults []string // of the current query
}

// check returns the labels that the result of a query may have. The error lists all faults of the query.
func (c *checker) check(query string) (set, error) {
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return nil, err
	}
	c.faults = nil
	has := c.labels(expr)
	if len(c.faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(c.faults, "; "))
	}
	return has, nil
}

// labels returns the labels that the result of an expression may have, and records faults.
func (c *checker) labels(node parser.Node) set {
	has := set{}
	for child := range parser.ChildrenIter(node) {
		maps.Copy(has, c.labels(child))
	}
	switch e := node.(type) {
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.BinaryExpr:
		if e.VectorMatching != nil {
			c.among(e, has, e.VectorMatching.MatchingLabels)
		}
	case *parser.AggregateExpr:
		c.among(e, has, e.Grouping)
		if e.Op != parser.TOPK && e.Op != parser.BOTTOMK {
			maps.DeleteFunc(has, func(label string, _ bool) bool { return slices.Contains(e.Grouping, label) == e.Without })
		}
	case *parser.Call:
		switch e.Func.Name {
		case "absent", "scalar":
			clear(has)
		case "histogram_quantile":
			c.among(e, has, []string{"le"})
			delete(has, "le")
		}
	}
	return has
}

// selector returns the labels of the series of a selector, and records unknown names and values.
func (c *checker) selector(e *parser.VectorSelector) set {
	has := set{}
	for label := range c.known[e.Name] {
		has[label] = true
	}
	if c.known[e.Name] == nil {
		c.faults = append(c.faults, e.Name+" is not exported")
		return has
	}
	for _, m := range e.LabelMatchers {
		if m.Name == model.MetricNameLabel {
			continue
		}
		c.among(e, has, []string{m.Name})
		if values := c.known[e.Name][m.Name]; len(values) > 0 && m.Type == labels.MatchEqual && !values[m.Value] {
			c.faults = append(c.faults, fmt.Sprintf("%s has no %s=%q, but %q", e.Name, m.Name, m.Value, slices.Sorted(maps.Keys(values))))
		}
	}
	return has
}

// among records a fault for each of labels that has lacks.
func (c *checker) among(e parser.Expr, has set, labels []string) {
	for _, label := range labels {
		if !has[label] {
			c.faults = append(c.faults, fmt.Sprintf("%s has no label %s, but %q", e, label, slices.Sorted(maps.Keys(has))))
		}
	}
}
