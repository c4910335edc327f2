package subscription

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A requestUpdate applies a request to a subscription.
type requestUpdate struct {
	*Subscription
	first bool // the first request for the type on the stream
	now   time.Time
}

// moveInitialVersions moves the reported versions of new globs to their subscriptions. The subscription of the type
// keeps those of names that the client also subscribed to.
func (c requestUpdate) moveInitialVersions(globs map[string]*Subscription) {
	if len(globs) == 0 {
		return
	}
	var texts []string
	for text, version := range c.initialVersions {
		glob, _ := wire.GlobOf(text)
		if g := globs[glob]; g != nil {
			if g.initialVersions == nil {
				g.initialVersions, g.reportedAt = make(map[string]string), c.reportedAt
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

// reportMembers reports to the view which resources a returning client with a wildcard holds, except those in asked. A
// view without former state takes them as its last known set (B.7). The view decides which of them may be removed. Call
// it before the client subscribes, since an origin may answer at once.
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

// findUnanswered finds the names that a returning client holds and the origin has not answered. It ignores VHDS and
// names of a client with a wildcard. The origin serves those on demand, may take long, and its wildcard set may omit
// them.
func (c requestUpdate) findUnanswered() {
	if len(c.initialVersions) == 0 || c.wildcard != nil || wire.OnDemand(c.TypeURL) {
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

// reportNames reports to the view the names that the client holds and the origin has not answered.
func (c requestUpdate) reportNames() {
	var names []string
	for n := range c.unansweredNames {
		names = append(names, n.String())
	}
	if len(names) > 0 {
		c.report = c.Watch.Report(c.Key, cache.ByName, names, c.initialCount)
	}
}

// addRecentlyRemoved adds recently removed resources to those that a returning Delta client reported. The client may
// have applied one from a response that it rejected, and then does not report it.
func (c requestUpdate) addRecentlyRemoved() {
	if c.wildcard == nil || c.initialCount == 0 {
		return
	}
	c.addUnreported(c.Watch.Generation().Type(c.Key).Wildcard.RecentRemovals())
}

// addDistrusted adds the resources of a rejected edition to those that a Delta client reported. A client that rejected
// every response reports nothing but may have applied some.
func (c requestUpdate) addDistrusted() {
	for part := range c.wildcards() {
		if names := c.Watch.View().Distrust.Names(part.Key); len(names) > 0 {
			requestUpdate{part, c.first, c.now}.addUnreported(names)
		}
	}
}

// addUnreported adds resources, without a version, to initialVersions if the wildcard set does not have them.
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
