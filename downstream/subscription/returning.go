package subscription

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A change applies a request to what the client wants.
type requestUpdate struct {
	*Subscription
	first bool // it is the first of the type on the stream
	now   time.Time
}

// moveInitialVersions gives new globs what the client reports to hold of them. It no longer concerns the type's own
// subscription, except for what that also named.
func (c requestUpdate) moveInitialVersions(globs map[string]*Subscription) {
	if len(globs) == 0 {
		return
	}
	var texts []string
	for text, version := range c.initialVersions {
		glob, _ := wire.GlobOf(text)
		if g := globs[glob]; g != nil {
			if g.initialVersions == nil {
				g.initialVersions = make(map[string]string)
			}
			g.initialVersions[text] = version
			g.initialCount++
			texts = append(texts, text)
		}
	}
	for i, n := range c.Watch.Find(c.Key, texts) {
		if _, named := c.find(n); !named {
			delete(c.initialVersions, texts[i])
		}
	}
	for _, g := range globs {
		requestUpdate{g, c.first, c.now}.reportMembers(nil)
	}
}

// reportMembers has the view know what a returning client with a wildcard holds, except what it asks for by name. If
// the view has nothing from before, that is its last known set (B.7). The view then says which of it the client may be
// told is gone. It is called before the client subscribes: some origins answer at once.
func (c requestUpdate) reportMembers(asked []string) {
	if len(c.initialVersions) == 0 {
		return
	}
	named := make(map[string]struct{}, len(asked))
	for _, text := range asked {
		named[text] = struct{}{}
	}
	names := make([]string, 0, len(c.initialVersions))
	for text := range c.initialVersions {
		_, own := named[text]
		glob, _ := wire.GlobOf(text)
		if _, ofGlob := named[glob]; !own && !ofGlob {
			names = append(names, text)
		}
	}
	if len(names) > 0 {
		c.report = c.Watch.Report(c.Key, cache.Wildcard, names, len(names))
	}
}

// findUnanswered finds the names that a returning client holds and that the relay knows nothing of. Names beside a
// wildcard, and those of VHDS, do not count: the origin is asked for them on demand and may take its time, and its
// wildcard set need not hold them.
func (c requestUpdate) findUnanswered() {
	if len(c.initialVersions) == 0 || c.wildcard != nil || c.TypeURL == wire.VirtualHostType {
		return
	}
	t := c.Watch.Generation().Type(c.Key)
	for _, n := range c.names {
		if _, holds := c.initialVersions[n.name.String()]; !holds {
			continue
		}
		if e, _ := t.Lookup(n.name); e == nil {
			if c.unansweredNames == nil {
				c.unansweredNames = make(map[*cache.Name]struct{})
			}
			c.unansweredNames[n.name] = struct{}{}
		}
	}
}

// reportNames is reportMembers for the names that the client asks for and that the view knows nothing of.
func (c requestUpdate) reportNames() {
	var names []string
	for n := range c.unansweredNames {
		names = append(names, n.String())
	}
	if len(names) > 0 {
		c.report = c.Watch.Report(c.Key, cache.ByName, names, c.initialCount)
	}
}

// addRecentlyRemoved adds to what a returning Delta client holds the resources that were removed lately: it may have
// applied one in a response that it refused, and then it does not report it.
func (c requestUpdate) addRecentlyRemoved() {
	if c.wildcard == nil || c.initialCount == 0 {
		return
	}
	buried := c.Watch.Generation().Type(c.Key).Wildcard.RecentRemovals()
	c.addUnreported(buried)
}

// addDistrusted is addRecentlyRemoved for the resources of a rejected edition, for any Delta client: one that refused all
// that it was sent reports nothing.
func (c requestUpdate) addDistrusted() {
	for part := range c.wildcards() {
		if names := c.Watch.View().Distrust.Names(part.Key); len(names) > 0 {
			requestUpdate{part, c.first, c.now}.addUnreported(names)
		}
	}
}

// addUnreported adds to what the client holds the resources that the wildcard set does not have.
func (c requestUpdate) addUnreported(texts []string) {
	members := &c.Watch.Generation().Type(c.Key).Wildcard
	for i, n := range c.Watch.Find(c.Key, texts) {
		if _, reported := c.initialVersions[texts[i]]; reported || n != nil && members.Get(n).Present() {
			continue
		}
		if c.initialVersions == nil {
			c.initialVersions = make(map[string]string)
		}
		c.initialVersions[texts[i]] = ""
	}
}
