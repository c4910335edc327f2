package get

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/xdstender/tender/cache/wire/schema"
)

// An item is one resource as a server gave it.
type item struct {
	typeURL string
	name    string
	version string // of the resource; with SotW that of the response, if the resource has none
	aliases []string
	value   []byte
}

// An answer is what came from the server: that the stream is open, one response,
// or why there will be no more.
type answer struct {
	opened bool
	err    error

	full    bool // items are all that there is: what is missing does not exist
	items   []item
	absent  []string          // names that do not exist, or no longer
	refused map[string]string // names the server gives an error for
}

// notFound is the reason for a missing resource without an error of the server.
const notFound = "does not exist"

// A change is what an answer did to a collection.
type change struct {
	event string // "added", "changed", "removed", "missing"
	item  item   // of the last two only the name
	why   string // for the last two
}

// A collection is what has been learnt of what was asked for. It does no I/O.
type collection struct {
	wanted    []string // none means all
	openEnded bool     // a Delta wildcard subscription: the protocol does not mark the end of the initial set

	connected bool
	silent    bool // the server did not answer in time
	answers   int
	items     map[string]item   // by name
	missing   map[string]string // wanted names that do not exist, and why
}

func newCollection(o options) *collection {
	// An xdstp name that ends in * matches any number of resources.
	glob := slices.ContainsFunc(o.names, func(name string) bool { return strings.HasSuffix(name, "*") })
	return &collection{
		wanted:    o.names,
		openEnded: glob || len(o.names) == 0 && !o.sotw,
		items:     make(map[string]item),
		missing:   make(map[string]string),
	}
}

// apply records an answer without an error, and returns what it changed.
func (c *collection) apply(a answer) []change {
	c.connected = true
	if a.opened {
		return nil
	}
	c.answers++
	var changes []change
	for _, it := range a.items {
		old, had := c.items[it.name]
		c.items[it.name] = it
		delete(c.missing, it.name)
		switch {
		case !had:
			changes = append(changes, change{event: "added", item: it})
		case !bytes.Equal(old.value, it.value):
			changes = append(changes, change{event: "changed", item: it})
		}
	}
	for _, name := range slices.Concat(a.absent, c.unsaid(a)) {
		changes = append(changes, c.remove(name, notFound)...)
	}
	for _, name := range slices.Sorted(maps.Keys(a.refused)) {
		changes = append(changes, c.remove(name, a.refused[name])...)
	}
	return changes
}

// remove records that a name has no resource.
func (c *collection) remove(name, why string) []change {
	if _, had := c.items[name]; had {
		delete(c.items, name)
		if slices.Contains(c.wanted, name) {
			c.missing[name] = why
		}
		return []change{{event: "removed", item: item{name: name}, why: why}}
	}
	if was, known := c.missing[name]; slices.Contains(c.wanted, name) && (!known || was != why) {
		c.missing[name] = why
		return []change{{event: "missing", item: item{name: name}, why: why}}
	}
	return nil
}

// unsaid returns the names that do not exist because a full answer lacks them.
func (c *collection) unsaid(a answer) []string {
	if !a.full {
		return nil
	}
	said := make(map[string]bool, len(a.items))
	for _, it := range a.items {
		said[it.name] = true
	}
	names := slices.Concat(slices.Sorted(maps.Keys(c.items)), c.unresolved())
	return slices.DeleteFunc(names, func(name string) bool { return said[name] })
}

// unresolved returns the wanted names of which nothing is known.
func (c *collection) unresolved() []string {
	known := make(map[string]bool)
	for name, it := range c.items {
		known[name] = true
		for _, alias := range it.aliases {
			known[alias] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(c.wanted), func(name string) bool {
		_, missing := c.missing[name]
		return known[name] || missing || strings.HasSuffix(name, "*")
	})
}

// complete reports whether no further answer can add anything but news.
func (c *collection) complete() bool {
	return c.answers > 0 && !c.openEnded && len(c.unresolved()) == 0
}

// more reports whether, after these changes, an open-ended collection may still be incomplete: after the first response,
// and after new resources. Later versions of known resources do not count, because a server may send them without end.
func (c *collection) more(changes []change) bool {
	added := slices.ContainsFunc(changes, func(c change) bool { return c.event == "added" })
	return c.openEnded && (added || c.answers == 1)
}

// sorted returns the items by name.
func (c *collection) sorted() []item {
	return slices.SortedFunc(maps.Values(c.items), func(a, b item) int { return strings.Compare(a.name, b.name) })
}

// silence is the error for a server that did not answer in time.
func (c *collection) silence(o options) error {
	if !c.connected {
		return fmt.Errorf("not connected within %s", o.timeout)
	}
	what := o.typeURL
	if short, ok := schema.ShortName(what); ok {
		what = short
	}
	// A well-known server answers a SotW request only once it names everything.
	hint := ""
	if o.sotw {
		hint = "; try without --sotw"
	}
	if len(o.names) > 0 {
		return fmt.Errorf("no answer within %s: the server does not know %s %s, or is waiting for it%s", o.timeout, what, quoted(o.names), hint)
	}
	return fmt.Errorf("no answer within %s: the server has no %s, or gives it only by name%s", o.timeout, what, hint)
}

// shortfall is the error for the wanted names that were not given, nil if there
// are none.
func (c *collection) shortfall(o options) error {
	var (
		errs    []error
		nowhere []string
	)
	for _, name := range slices.Compact(slices.Clone(c.wanted)) {
		switch why, missing := c.missing[name]; {
		case missing && why == notFound:
			nowhere = append(nowhere, name)
		case missing:
			errs = append(errs, fmt.Errorf("%s: %s", quoted([]string{name}), why))
		}
	}
	if len(nowhere) > 0 {
		errs = append(errs, fmt.Errorf("not found: %s", quoted(nowhere)))
	}
	if silent := c.unresolved(); len(silent) > 0 {
		errs = append(errs, fmt.Errorf("no answer within %s about %s: the server does not know it, or is waiting for it", o.timeout, quoted(silent)))
	}
	return errors.Join(errs...)
}

// quoted lists names for a message.
func quoted(names []string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = strconv.Quote(name)
	}
	return strings.Join(texts, ", ")
}
