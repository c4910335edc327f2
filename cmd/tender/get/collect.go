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

// An item is a resource, or only its name in a change.
type item struct {
	typeURL string
	name    string
	version string // of the resource; in SotW that of the response, if the resource has none
	aliases []string
	value   []byte // encoded message of typeURL
}

// An answer is an event of a stream: the stream is open, a response, or the error that ended the stream.
type answer struct {
	opened bool  // the first answer of a stream: the stream is open, or err is why not
	err    error // no further answer follows; the fields below have no meaning

	full    bool              // items are the full state: other resources do not exist
	items   []item            // added or updated
	absent  []string          // names that do not exist or no longer exist
	refused map[string]string // errors of the server by name
}

// notFound is the reason for a missing resource for which the server reports no error.
const notFound = "does not exist"

// A change is the effect of an answer on a name of a collection.
type change struct {
	event string // "added", "changed", "removed" or "missing"
	item  item   // only the name if removed or missing
	why   string // reason; empty if added or changed
}

// A collection holds the resources received for a subscription. It does no I/O, and is not safe for concurrent use.
type collection struct {
	wanted    []string // subscribed names; none means all
	openEnded bool     // a Delta wildcard subscription: the protocol does not mark the end of the initial set

	connected bool              // the stream was opened
	silent    bool              // the stream was opened, but no response arrived within the timeout
	answers   int               // responses applied
	items     map[string]item   // by name
	missing   map[string]string // reasons by wanted name that does not exist
}

// newCollection returns an empty collection for the subscription of o.
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

// apply records an answer, which must have no error, and returns the changes. An equal resource with a new version is
// not a change.
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

// remove records that a name has no resource, and returns the change. A name that is not wanted and has no resource, or
// is already missing for the same reason, makes no change.
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

// unsaid returns the names that do not exist because a full answer does not contain them.
func (c *collection) unsaid(a answer) []string {
	if !a.full {
		return nil
	}
	present := make(map[string]bool, len(a.items))
	for _, it := range a.items {
		present[it.name] = true
	}
	names := slices.Concat(slices.Sorted(maps.Keys(c.items)), c.unresolved())
	return slices.DeleteFunc(names, func(name string) bool { return present[name] })
}

// unresolved returns the wanted names that the server has neither sent nor reported as missing. It ignores globs.
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

// complete reports whether the server has responded for all wanted names. Later answers can only contain updates.
func (c *collection) complete() bool {
	return c.answers > 0 && !c.openEnded && len(c.unresolved()) == 0
}

// more reports whether these changes restart the wait of quiet for an open-ended collection. The first response and new
// resources do. Updates of known resources do not, because a server may send them without end.
func (c *collection) more(changes []change) bool {
	added := slices.ContainsFunc(changes, func(c change) bool { return c.event == "added" })
	return c.openEnded && (added || c.answers == 1)
}

// sorted returns the items in order of their names.
func (c *collection) sorted() []item {
	return slices.SortedFunc(maps.Values(c.items), func(a, b item) int { return strings.Compare(a.name, b.name) })
}

// silence returns the error for a server that sent no response within the timeout.
func (c *collection) silence(o options) error {
	if !c.connected {
		return fmt.Errorf("not connected within %s", o.timeout)
	}
	what := o.typeURL
	if short, ok := schema.ShortName(what); ok {
		what = short
	}
	// In ADS mode, go-control-plane responds to a SotW request only if it names all resources of the snapshot.
	hint := ""
	if o.sotw {
		hint = "; try without --sotw"
	}
	if len(o.names) > 0 {
		return fmt.Errorf("no answer within %s: the server has no %s %s, or waits for it%s", o.timeout, what, quoted(o.names), hint)
	}
	return fmt.Errorf("no answer within %s: the server has no %s, or gives it only by name%s", o.timeout, what, hint)
}

// shortfall returns an error that lists the wanted names without a resource, or nil if there are none.
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
		errs = append(errs, fmt.Errorf("no answer within %s about %s: the server does not have it, or waits for it", o.timeout, quoted(silent)))
	}
	return errors.Join(errs...)
}

// quoted returns names as a list of quoted strings for an error.
func quoted(names []string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = strconv.Quote(name)
	}
	return strings.Join(texts, ", ")
}
