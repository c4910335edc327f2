package prometheus_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// A checker looks at queries: whether they parse, and ask for series, labels and values of
// labels that there are.
type checker struct {
	known  map[string]series
	faults []string // of the expression that is looked at
}

// check returns the labels of what an expression evaluates to, and what is wrong with it.
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

func (c *checker) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// labels returns the labels of what an expression evaluates to.
func (c *checker) labels(expr parser.Expr) set {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.MatrixSelector:
		return c.labels(e.VectorSelector)
	case *parser.SubqueryExpr:
		return c.labels(e.Expr)
	case *parser.ParenExpr:
		return c.labels(e.Expr)
	case *parser.UnaryExpr:
		return c.labels(e.Expr)
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	case *parser.Call:
		return c.call(e)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return set{}
	}
	c.fault("this test does not know %T", expr)
	return set{}
}

func (c *checker) selector(e *parser.VectorSelector) set {
	of, ok := c.known[e.Name]
	if !ok {
		c.fault("%s is not exported", e)
		return set{}
	}
	for _, m := range e.LabelMatchers {
		if m.Name == model.MetricNameLabel {
			continue
		}
		if values, ok := of[m.Name]; !ok {
			c.fault("%s has no label %s, but %q", e.Name, m.Name, slices.Sorted(maps.Keys(of)))
		} else if len(values) > 0 && m.Type == labels.MatchEqual && !values[m.Value] {
			c.fault("%s has no %s=%q, but %q", e.Name, m.Name, m.Value, slices.Sorted(maps.Keys(values)))
		}
	}
	has := set{}
	for label := range of {
		has[label] = true
	}
	return has
}

func (c *checker) aggregate(e *parser.AggregateExpr) set {
	has := c.labels(e.Expr)
	c.among(e, has, e.Grouping)
	if e.Without {
		for _, label := range e.Grouping {
			delete(has, label)
		}
		return has
	}
	if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
		return has
	}
	return setOf(e.Grouping)
}

func (c *checker) binary(e *parser.BinaryExpr) set {
	left, right := c.labels(e.LHS), c.labels(e.RHS)
	m := e.VectorMatching
	switch {
	case m == nil && e.LHS.Type() == parser.ValueTypeVector:
		return left
	case m == nil:
		return right
	}
	c.among(e, left, m.MatchingLabels)
	c.among(e, right, m.MatchingLabels)
	switch {
	case e.Op == parser.LOR:
		maps.Copy(left, right)
		return left
	case e.Op == parser.LAND, e.Op == parser.LUNLESS, m.Card == parser.CardManyToOne:
		return left
	case m.Card == parser.CardOneToMany:
		return right
	case m.On:
		return setOf(m.MatchingLabels)
	}
	if !maps.Equal(left, right) {
		c.fault("%s matches nothing: its sides have other labels, %v and %v", e, left, right)
	}
	return left
}

func (c *checker) call(e *parser.Call) set {
	has := set{}
	for _, arg := range e.Args {
		maps.Copy(has, c.labels(arg))
	}
	switch e.Func.Name {
	case "absent", "scalar", "vector", "time":
		return set{}
	case "histogram_quantile":
		if !has["le"] {
			c.fault("%s: there is no le", e)
		}
		delete(has, "le")
	case "label_replace", "label_join":
		c.fault("this test does not know %s", e.Func.Name)
	}
	return has
}

// among wants that an expression names only labels that there are.
func (c *checker) among(e parser.Expr, has set, labels []string) {
	for _, label := range labels {
		if !has[label] {
			c.fault("there is no %s in %s, but %q", label, e, slices.Sorted(maps.Keys(has)))
		}
	}
}

func setOf(names []string) set {
	s := set{}
	for _, name := range names {
		s[name] = true
	}
	return s
}

// TestChecker holds that the checker finds what it is there to find.
func TestChecker(t *testing.T) {
	c := checker{known: map[string]series{
		"up":       {"job": nil, "instance": nil},
		"x_total":  {"job": nil, "reason": {"good": true}},
		"h_bucket": {"job": nil, "le": nil},
	}}
	for _, tt := range []struct{ query, labels, fault string }{
		{"sum by (job) (rate(x_total[5m]))", "job", ""},
		{`x_total{reason="good"} > 1 or up`, "instance job reason", ""},
		{"histogram_quantile(0.5, sum by (le) (rate(h_bucket[5m])))", "", ""},
		{"up - on (job) group_left () sum by (job) (x_total)", "instance job", ""},
		{"sum without (reason) (x_total)", "job", ""},
		{"absent(up)", "", ""},
		{"time() - up", "instance job", ""},
		{"up(", "", "parse error"},
		{"down", "", "down is not exported"},
		{`up{type="cds"}`, "", "up has no label type"},
		{`x_total{reason="god"}`, "", `x_total has no reason="god"`},
		{"sum by (reason) (sum by (job) (x_total))", "", "there is no reason"},
		{"up - on (reason) x_total", "", "there is no reason"},
		{"up / x_total", "", "matches nothing"},
		{"histogram_quantile(0.5, sum by (job) (rate(h_bucket[5m])))", "", "there is no le"},
	} {
		got, err := c.check(tt.query)
		if fault := fmt.Sprint(err); (err != nil) != (tt.fault != "") || !strings.Contains(fault, tt.fault) {
			t.Errorf("%s: error %v, want %q", tt.query, err, tt.fault)
		} else if names := strings.Join(slices.Sorted(maps.Keys(got)), " "); names != tt.labels {
			t.Errorf("%s: labels %q, want %q", tt.query, names, tt.labels)
		}
	}
}
