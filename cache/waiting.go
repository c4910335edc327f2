package cache

import (
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Waiting counts the differences between latest of a source, the state that the rest is served, and an edition.
type Waiting struct {
	// Names is the number of waiting names: those whose state in latest differs from the state that the rest is served.
	Names int

	// Edited is the number of resources that the edition changes and whose content in latest differs from the edition.
	Edited int

	// Behind is the number of waiting names whose state in latest differs from the edition. It equals Names if there is
	// no edition.
	Behind int

	Changed time.Time // when a waiting name last changed
}

// A comparison compares latest of a writer's source with an edition. It belongs to the goroutine of the writer.
type comparison struct {
	w *Writer // set at creation

	edition *Edition                // nil if there is none
	edited  map[resourceID]struct{} // see Waiting.Edited
	behind  map[resourceID]struct{} // see Waiting.Behind
	changed time.Time               // see Waiting.Changed
	last    Waiting                 // with which Config.Waiting was last called
}

// Compare sets the edition with which Waiting compares latest; nil means none.
func (c *comparison) Compare(e *Edition) {
	c.edition = e
	c.compareAll()
	c.reportWaiting()
}

// compareAll compares all names of the edition, and all that wait.
func (c *comparison) compareAll() {
	c.edited, c.behind = make(map[resourceID]struct{}), make(map[resourceID]struct{})
	if c.edition == nil {
		return
	}
	x := &c.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	latest := c.w.Generation()
	for key, names := range c.edition.Changes {
		for text := range names {
			c.compare(latest.Type(key), resourceID{key, text}, x.types[key].find(text))
		}
	}
	for n, held := range c.w.servedToRest().withheld {
		c.compare(latest.Type(held.typ.url), resourceID{held.typ.url, n.text}, n)
	}
}

// compare compares one resource in latest with the edition. n is nil if the name is not in the index. The index must be
// locked.
func (c *comparison) compare(latest *Type, id resourceID, n *Name) {
	if c.edition == nil {
		return
	}
	content, changes := c.edition.Changes[id.key][id.name]
	pinned := c.edition.name(id)
	if changes && c.edition.forgottenIn(latest, id.key, pinned, n) {
		delete(c.edited, id)
		delete(c.behind, id)
		return
	}
	edited := changes && content != latest.content(n) && c.w.changeWaits(resourceType(id.key), content == wire.Digest{})
	same := n != nil && (pinned == nil || pinned.name == n) && c.w.changeWaits(resourceType(id.key), !latest.present(n))
	setMember(c.edited, id, edited)
	setMember(c.behind, id, c.edition.types != nil && (edited || same && c.isBehind(latest, pinned, n)))
}

// isBehind reports whether a name of a type would still wait after the edition was shown to the rest. If the edition
// has no state of a name, the rest keeps the state that it sees.
func (c *comparison) isBehind(latest *Type, pinned *pinnedName, n *Name) bool {
	rest := c.w.servedToRest().generation().Type(latest.URL)
	return slices.ContainsFunc(kinds[:], func(kind Kind) bool {
		if !c.w.writes(kind, latest, n) {
			return false
		}
		if pinned == nil || !pinned.is[kind].exists || kind == Wildcard && c.edition.types[latest.URL].era != latest.era {
			return rest.hasLastGood(kind) && !c.w.agreesOn(kind, rest, latest, n)
		}
		return !pinned.is[kind].sameAs(kind, latest.state(kind, n))
	})
}

// name returns a name as the edition changes it; nil if it does not change the resource, or if an earlier process made the
// edition.
func (e *Edition) name(id resourceID) *pinnedName {
	if e.types[id.key] == nil {
		return nil
	}
	names := e.types[id.key].names
	at, found := slices.BinarySearchFunc(names, id.name, func(n pinnedName, text string) int {
		return strings.Compare(n.text, text)
	})
	if !found {
		return nil
	}
	return &names[at]
}

// forgottenIn reports whether a resource that the edition changes was released since, because no client subscribed to
// it. A resource of that name in latest is then not compared with the edition. n is its present Name, which may be nil.
func (e *Edition) forgottenIn(latest *Type, key string, pinned *pinnedName, n *Name) bool {
	switch {
	case pinned == nil: // an earlier process made the edition
		return !latest.states(Wildcard, n) && (n == nil || !latest.present(n) && !latest.states(ByName, n))
	case pinned.was[Wildcard].entry.Present() || pinned.is[Wildcard].entry.Present():
		return e.types[key].era != latest.era
	}
	return n == nil || n != pinned.name || !latest.states(ByName, n)
}

// setMember adds a resource to a set or removes it from the set.
func setMember(in map[resourceID]struct{}, id resourceID, present bool) {
	if present {
		in[id] = struct{}{}
	} else {
		delete(in, id)
	}
}

// compareEdit compares the names that an edit of latest has changed, after it has passed the gate. It reports whether
// any of them waits. The index must be locked.
func (c *comparison) compareEdit(ed *edit) (waits bool) {
	for _, n := range ed.txn.touched {
		if c.w.servedToRest().withheld[n].waits {
			c.changed, waits = ed.now, true
		}
		c.compare(ed.typ, resourceID{ed.typ.URL, n.text}, n)
	}
	return waits
}

// reportWaiting calls Config.Waiting if the counts have changed.
func (c *comparison) reportWaiting() {
	names := c.w.servedToRest().waiting
	now := Waiting{Names: names, Edited: len(c.edited), Behind: len(c.behind), Changed: c.changed}
	if c.edition == nil {
		now.Behind = names
	}
	if now != c.last {
		c.last = now
		c.w.view.cfg.Waiting(c.w.source, now)
	}
}

// reportSettled calls Config.Waiting because the result of View.Settled may have changed.
func (c *comparison) reportSettled() {
	if c.w.view.cfg.Cohorts > 0 {
		c.w.view.cfg.Waiting(c.w.source, c.last)
	}
}

// RetainsUnused reports whether resources without subscribers must be kept. Otherwise returning clients would be sent
// the newest state, with changes that are withheld from the rest.
func (w *Writer) RetainsUnused() bool { return w.servedToRest().waiting > 0 }

// Withholds reports whether the newest state of a name is withheld from the rest.
func (w *Writer) Withholds(n *Name) bool {
	_, withheld := w.servedToRest().withheld[n]
	return withheld
}

// WithholdsWildcard reports whether the newest state of any resource of a wildcard set is withheld from the rest.
func (w *Writer) WithholdsWildcard(key string) bool {
	if len(w.servedToRest().withheld) == 0 {
		return false
	}
	for _, g := range []*Generation{w.servedToRest().generation(), w.Generation()} {
		for e := range g.Type(key).Wildcard.Since(0) {
			if w.Withholds(e.Name) {
				return true
			}
		}
	}
	return false
}

// Settled reports whether latest of a source is complete: the source is connected, has confirmed the wildcard sets and
// collections that were restored from a snapshot, and has responded for the restored names. A source without
// subscriptions and state is settled.
func (v *View) Settled(source int) bool {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	latest := v.writers[source].Generation()
	if !latest.sources[source].Connected {
		return !x.uses(source)
	}
	if x.sources[source].restored > 0 {
		return false
	}
	for key, t := range x.types {
		if t.source == source && latest.Type(key).Restored && latest.Type(key).Phase < Confirmed {
			return false
		}
	}
	return true
}

// uses reports whether a source has subscriptions or names. The index must be locked.
func (x *index) uses(source int) bool {
	for _, t := range x.types {
		if t.source == source && (len(t.wildcards) > 0 || t.tracked) {
			return true
		}
		for _, n := range t.names {
			if n.source == source {
				return true
			}
		}
	}
	return false
}

// restoredTimeout is the time after which a restored name counts as confirmed even without a response of the connected
// origin: an origin need not send a resource that the relay reported and that has not changed.
const restoredTimeout = 15 * time.Second
