package rollout

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
)

// An Observer is one stream of a client, as the controllers of a relay see it. Nil observes nothing.
type Observer struct {
	client      Client
	group       string
	controllers []*Controller
	left        bool
}

// Observe returns the observer of a stream that begins, of a client of a node group. The caller calls Ended when it ends.
func Observe(client Client, group string, controllers []*Controller) *Observer {
	o := &Observer{client: client, group: group, controllers: controllers}
	for _, c := range controllers {
		c.began(client)
	}
	return o
}

// Ended records that the stream has ended.
func (o *Observer) Ended() {
	for _, c := range o.controllers {
		c.endedStream(o)
	}
}

// Left implements [downstream.Observer]. Ended follows.
func (o *Observer) Left() { o.left = true }

// Refused implements [downstream.Observer].
func (o *Observer) Refused(typeURL string, r *downstream.Refusal) {
	for _, c := range o.controllers {
		c.refusedBy(o, typeURL, r)
	}
}

func (c *Controller) began(client Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[client]++; c.streams[client] > 1 {
		return
	}
	c.clients[client.Cohort]++
	if c.signals != nil {
		c.signals.Returned(client)
	}
}

func (c *Controller) endedStream(o *Observer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[o.client]--; c.streams[o.client] > 0 {
		return
	}
	delete(c.streams, o.client)
	c.clients[o.client.Cohort]--
	if o.left && c.signals != nil {
		c.signals.Left(o.client)
		c.Poke()
	}
}

// refusedBy counts a NACK if it is one of what the client was served of the edition.
func (c *Controller) refusedBy(o *Observer, typeURL string, r *downstream.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signals == nil || o.client.Cohort >= c.reached {
		return
	}
	refuses := func(change downstream.Change) bool {
		of, _, _ := cache.SplitCollection(change.Key)
		return of == typeURL && r.Of(change.After, change.UpTo)
	}
	for _, p := range c.parts {
		if p.Key.Group == o.group && slices.ContainsFunc(p.changes[o.client.Cohort], refuses) {
			c.countRefusal(Refusal{o.client, typeURL, r.Detail})
			return
		}
	}
}

// countRefusal counts a NACK of the edition. c.mu must be held.
func (c *Controller) countRefusal(r Refusal) {
	if !c.signals.Refused(r) {
		return
	}
	if len(c.refused) < MaxRefusals {
		c.refused = append(c.refused, r)
	}
	c.Poke()
}

// A standing is the answer of a client to the edition that it is served.
type standing struct {
	Client
	accepted bool
	refused  []string // types
}

func (c *Controller) standings() (all []standing) {
	for o := range c.cfg.Observed() {
		if of, ok := o.Observer.(*Observer); ok {
			accepted, refused := o.Stands(c.cfg.Waits)
			all = append(all, standing{of.client, accepted, refused})
		}
	}
	return all
}

// countAnew begins to count signals of a new edition. Clients that are served the edition before, which it takes the place of, and were
// known stay known: what they hold of it is no last good.
func (c *Controller) countAnew() {
	all, signals := c.standings(), NewSignals(c.cfg.Config)
	c.mu.Lock() // after that of streams
	defer c.mu.Unlock()
	for _, is := range all {
		if is.Cohort < c.reached && c.signals.knows(is.Client) != nil {
			signals.Know(is.Client, is.refused...)
		}
	}
	c.signals, c.refused = signals, nil
}

// know registers clients that are not served the edition yet and have accepted what they are served. It is called before
// the edition is served to another cohort, so that clients that were answering or away at the cut are known by then.
func (c *Controller) know() {
	all := c.standings()
	c.mu.Lock() // after that of streams
	defer c.mu.Unlock()
	for _, is := range all {
		if is.Cohort >= c.reached && is.accepted {
			c.signals.Know(is.Client, is.refused...)
		}
	}
}

// An observation is what clients did with the edition.
type observation struct {
	observed time.Time // when
	stage    int       // then
	evidence Evidence
	cohorts  []Cohort
	canaries []string // ids of Nodes that are served it
}

func (c *Controller) newCohorts() (all []Cohort) {
	for _, stage := range c.cfg.Stages {
		all = append(all, Cohort{Name: stage.String()})
	}
	return append(all, Cohort{Name: "the rest"})
}

// observe looks up what clients did with the edition, which some are served.
func (c *Controller) observe(now time.Time) {
	stage := c.machine.Stage()
	c.observation = observation{observed: now, stage: stage, cohorts: c.newCohorts()}
	changes := c.shownChanges(stage)
	nodes := make(map[Client]downstream.ResourceState)
	for o := range c.cfg.Observed() {
		of, ok := o.Observer.(*Observer)
		if !ok || of.client.Cohort >= stage {
			continue
		}
		state, wants := o.Answer(changes[cohortOf{of.group, of.client.Cohort}])
		if !wants {
			continue
		}
		if before, is := nodes[of.client]; !is || state == downstream.Refused || before != downstream.Refused && state < before {
			nodes[of.client] = state
		}
	}
	c.count(nodes)
}

// count counts what clients did with the edition.
func (c *Controller) count(nodes map[Client]downstream.ResourceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for client, state := range nodes {
		c.add(client, state)
	}
	slices.Sort(c.canaries)
	c.canaries = slices.Compact(c.canaries)
	if c.signals != nil {
		c.signals.countLeft(c.cohorts)
	}
}

// cohortOf is a cohort of a node group.
type cohortOf struct {
	group  string
	cohort int
}

// shownChanges returns what the edition has changed for the cohorts of the first stages.
func (c *Controller) shownChanges(stages int) map[cohortOf][]downstream.Change {
	all := make(map[cohortOf][]downstream.Change)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		for cohort := range stages {
			of := cohortOf{p.Key.Group, cohort}
			all[of] = append(all[of], p.changes[cohort]...)
		}
	}
	return all
}

// add counts what a client did with the edition.
func (c *Controller) add(client Client, state downstream.ResourceState) {
	of := &c.cohorts[client.Cohort]
	of.Wanting++
	c.evidence.Wanting++
	if c.signals != nil && c.signals.accepted(client) {
		c.evidence.Known++
	}
	switch state {
	case downstream.Accepted:
		of.Accepted++
		c.evidence.Accepted++
		c.evidence.Answered++
	case downstream.Refused:
		of.Refused++
		c.evidence.Answered++
	}
	if client.Node != "" {
		c.canaries = append(c.canaries, client.Node)
	}
}

// countClients records in cohorts how many clients of each are connected.
func (c *Controller) countClients(cohorts []Cohort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range cohorts {
		cohorts[i].Clients = c.clients[i]
	}
}
