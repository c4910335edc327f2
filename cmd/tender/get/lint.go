package get

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/lint"
)

// checkLint validates the flags that require --lint or exclude it.
func (o *options) checkLint() error {
	if !o.lint {
		if len(o.static) > 0 {
			return errors.New("--static-cluster: only --lint takes it")
		}
		return nil
	}
	if o.watch {
		return errors.New("--lint and --watch exclude each other")
	}
	if o.output != "wide" && o.output != "json" {
		return fmt.Errorf("--output=%s: with --lint, want wide or json", o.output)
	}
	for _, pattern := range o.static {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("--static-cluster=%s: %w", pattern, err)
		}
	}
	return nil
}

// A linting collects facts about the requested resources and, transitively, about all resources that they refer to.
type linting struct {
	conn     *grpc.ClientConn
	o        options
	facts    map[lint.Reference]*lint.Facts // by the type and each name of a resource
	asked    map[lint.Reference]bool        // requests so far; the empty name stands for the wildcard
	answered map[string]bool                // types for which the server sent a wildcard set
	onDemand bool                           // a resource uses on-demand CDS: no cluster has to exist
}

// getLint prints findings about the resources. It returns an error if a finding breaks a resource, or if a name of the
// command line does not exist.
func getLint(ctx context.Context, conn *grpc.ClientConn, o options, p *printer) error {
	l := &linting{
		conn: conn, o: o, facts: make(map[lint.Reference]*lint.Facts), asked: make(map[lint.Reference]bool), answered: make(map[string]bool),
	}
	missing, err := l.fetchAll(ctx)
	if err != nil {
		return err
	}
	findings := l.findings()
	if err := p.findings(findings, len(l.facts)); err != nil {
		return fmt.Errorf("print findings: %w", err)
	}
	breaking := 0
	for _, f := range findings {
		if f.Kind.Breaks() {
			breaking++
		}
	}
	if breaking > 0 {
		return errors.Join(missing, fmt.Errorf("%d of %d findings break a resource", breaking, len(findings)))
	}
	return missing
}

// fetchAll requests the resources of the command line, and then referenced resources until no new references appear.
// missing is the error that lists resources of the command line that the server does not have.
func (l *linting) fetchAll(ctx context.Context) (missing, err error) {
	if l.o.typeURL != "" {
		c, err := l.fetch(ctx, l.o.typeURL, l.o.names)
		if err != nil {
			return nil, err
		}
		missing = c.shortfall(l.o)
	} else if err := l.fetchTops(ctx); err != nil {
		return nil, err
	}
	for next := l.unmet(); len(next) > 0; next = l.unmet() {
		for _, typeURL := range slices.Sorted(maps.Keys(next)) {
			if c, err := l.fetch(ctx, typeURL, next[typeURL]); err != nil && !c.silent {
				return nil, err
			}
		}
	}
	return missing, nil
}

// fetchTops requests all clusters and all listeners. It ignores a missing response for one of the types, unless no
// resource arrives at all: some servers do not respond if they have no resources of a type.
func (l *linting) fetchTops(ctx context.Context) (first error) {
	for _, typeURL := range schema.Roots {
		c, err := l.fetch(ctx, typeURL, nil)
		if err != nil && !c.silent {
			return err
		}
		first = cmp.Or(first, err)
	}
	if len(l.facts) > 0 {
		return nil
	}
	return first
}

// fetch requests resources by name, or all of a type without names, on a stream of its own, and inspects them. The
// collection is not nil, also with an error.
func (l *linting) fetch(ctx context.Context, typeURL string, names []string) (*collection, error) {
	o := l.o
	o.typeURL, o.names = typeURL, names
	c, err := collect(ctx, l.conn, o)
	for _, name := range names {
		l.asked[lint.Reference{TypeURL: typeURL, Name: name}] = true
	}
	if len(names) == 0 {
		l.asked[lint.Reference{TypeURL: typeURL}] = true
		l.answered[typeURL] = len(c.items) > 0
	}
	for _, it := range c.sorted() {
		facts := lint.Inspect(it.typeURL, it.value)
		l.onDemand = l.onDemand || facts.OnDemand
		for _, name := range append([]string{it.name}, it.aliases...) {
			l.facts[lint.Reference{TypeURL: typeURL, Name: name}] = facts
		}
	}
	return c, err
}

// unmet returns the referenced names that were not requested yet, by type. For types that Envoy subscribes to with a
// wildcard, it returns no names at first. If the server did not respond to the wildcard, it returns the names then.
func (l *linting) unmet() map[string][]string {
	next := make(map[string][]string)
	for _, facts := range l.facts {
		for _, r := range facts.References {
			all := lint.Reference{TypeURL: r.TypeURL}
			switch {
			case l.facts[r] != nil || l.asked[r] || r.Exempt(l.onDemand, l.o.static):
			case !r.ByWildcard():
				next[r.TypeURL] = append(next[r.TypeURL], r.Name)
			case !l.asked[all]:
				next[r.TypeURL] = nil
			case !l.answered[r.TypeURL]:
				next[r.TypeURL] = append(next[r.TypeURL], r.Name)
			}
		}
	}
	for typeURL, names := range next {
		slices.Sort(names)
		next[typeURL] = slices.Compact(names)
	}
	return next
}

// findings returns the findings about all resources, including references to resources that the server did not send.
func (l *linting) findings() (all []lint.Finding) {
	for of, facts := range l.facts {
		add := func(f lint.Finding) {
			f.TypeURL, f.Name = of.TypeURL, of.Name
			all = append(all, f)
		}
		for _, f := range facts.Findings {
			add(f)
		}
		for _, r := range facts.References {
			if l.facts[r] == nil && !r.Exempt(l.onDemand, l.o.static) {
				add(lint.Finding{Kind: lint.Missing, Detail: "names " + r.Describe() + ", which the server did not send"})
			}
		}
	}
	slices.SortFunc(all, lint.Finding.Compare)
	return all
}

// findings prints findings, or the number of checked resources if there are none.
func (p *printer) findings(all []lint.Finding, of int) error {
	if p.format == "json" {
		return p.jsonFindings(all)
	}
	if len(all) == 0 {
		p.note(fmt.Sprintf("%d resources checked, no findings", of))
		return nil
	}
	t := &cli.Table{Wide: true}
	t.Row("FINDING", "TYPE", "NAME")
	for _, f := range all {
		t.Row(f.Kind.Text(), cli.ShortType(f.TypeURL), f.Name)
		t.Note("%s", f.Detail)
	}
	return t.Print(p.out)
}

// jsonFindings prints findings as a JSON array, also if there are none.
func (p *printer) jsonFindings(all []lint.Finding) error {
	type line struct {
		Kind    lint.Kind `json:"kind"`
		TypeURL string    `json:"type_url"`
		Name    string    `json:"name"`
		Detail  string    `json:"detail"`
	}
	lines := make([]line, len(all))
	for i, f := range all {
		lines[i] = line{f.Kind, f.TypeURL, f.Name, f.Detail}
	}
	encoder := json.NewEncoder(p.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(lines)
}
