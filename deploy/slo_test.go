package deploy_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// recorded returns the exported series together with the series of the recording rules.
func recorded(t *testing.T) map[string]series {
	t.Helper()
	var file struct {
		Groups []struct {
			Name     string `json:"name"`
			Interval string `json:"interval"`
			Rules    []struct {
				Record string `json:"record"`
				Expr   string `json:"expr"`
			} `json:"rules"`
		} `json:"groups"`
	}
	readYAML(t, "prometheus/tender.slo.rules.yaml", &file)
	c := checker{known: exported(t)}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			has, err := c.check(r.Expr)
			if err != nil {
				t.Errorf("%s: %v", r.Record, err)
			}
			c.known[r.Record] = series{}
			for label := range has {
				c.known[r.Record].add(label)
			}
		}
	}
	return c.known
}

// promql matches a query on a page.
var promql = regexp.MustCompile("(?s)```promql\n(.*?)```")

// B.43: the recording rules and each query on the pages use exported or recorded series only. Each recorded series is
// used by a query on the pages.
func TestB43_ObjectivesAskForWhatIsExported(t *testing.T) {
	c, asked, queries := checker{known: recorded(t)}, "", 0
	names, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, match := range promql.FindAllStringSubmatch(readText(t, name), -1) {
			queries++
			asked += match[1]
			if _, err := c.check(match[1]); err != nil {
				t.Errorf("%s: %v\n%s", name, err, match[1])
			}
		}
	}
	if queries < 6 {
		t.Errorf("pages have %d queries, want 6 at least", queries)
	}
	for name := range c.known {
		if strings.HasPrefix(name, "job:") && !strings.Contains(asked, name) {
			t.Errorf("%s is recorded, but no query on the pages uses it", name)
		}
	}
}
