package rollout

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
)

// An Observer reports the events of one client stream to the controllers. A nil Observer reports nothing.
type Observer struct {
	client       Client
	group        string
	controllers  []*Controller
	disconnected bool
}

// Observe returns the observer of a new client stream of a node group. The caller calls Ended when the stream ends.
func Observe(client Client, group string, controllers []*Controller) *Observer {
	o := &Observer{client: client, group: group, controllers: controllers}
	for _, c := range controllers {
		c.observer().streamStarted(client)
	}
	return o
}

// Ended records that the stream has ended.
func (o *Observer) Ended() {
	for _, c := range o.controllers {
		c.observer().streamEnded(o)
	}
}

// Disconnected implements [downstream.Observer]. Ended follows.
func (o *Observer) Disconnected() { o.disconnected = true }

// Refused implements [downstream.Observer].
func (o *Observer) Refused(typeURL string, r *downstream.Refusal) {
	for _, c := range o.controllers {
		c.observer().recordRefusal(o, typeURL, r)
	}
}

func (c observer) streamStarted(client Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[client]++; c.streams[client] > 1 {
		return
	}
	c.clients[client.Cohort]++
	if c.signals != nil {
		c.signals.Reconnected(client)
	}
}

func (c observer) streamEnded(o *Observer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[o.client]--; c.streams[o.client] > 0 {
		return
	}
	delete(c.streams, o.client)
	c.clients[o.client.Cohort]--
	if o.disconnected && c.signals != nil {
		c.signals.Disconnected(o.client)
		c.Poke()
	}
}

// recordRefusal counts a NACK if it refers to resources of the edition.
func (c observer) recordRefusal(o *Observer, typeURL string, r *downstream.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signals == nil || o.client.Cohort >= c.reached {
		return
	}
	refuses := func(change downstream.Change) bool {
		of, _, _ := cache.SplitCollection(change.Key)
		return of == typeURL && r.HasChange(change.After, change.UpTo)
	}
	for _, p := range c.parts {
		if p.Key.Group == o.group && slices.ContainsFunc(p.changes[o.client.Cohort], refuses) {
			c.countRefusal(Refusal{o.client, typeURL, r.Detail})
			return
		}
	}
}

// countRefusal counts a NACK of the edition. c.mu must be held.
func (c observer) countRefusal(r Refusal) {
	if !c.signals.Refused(r) {
		return
	}
	if len(c.refused) < MaxRefusals {
		c.refused = append(c.refused, r)
	}
	c.Poke()
}

// A clientAnswer is the answer of a client to the edition that it is served.
type clientAnswer struct {
	Client
	accepted bool
	refused  []string // types
}

func (c observer) clientAnswers() (all []clientAnswer) {
	for o := range c.cfg.Observed() {
		if of, ok := o.Observer.(*Observer); ok {
			accepted, refused := o.AckStatus(c.cfg.Waits)
			all = append(all, clientAnswer{of.client, accepted, refused})
		}
	}
	return all
}

// resetSignals starts counting the signals of a new edition. Clients of a superseded edition stay registered if they
// were, because the superseded edition is not the last good.
func (c observer) resetSignals() {
	all, signals := c.clientAnswers(), NewSignals(c.cfg.Config)
	c.mu.Lock() // after the locks of streams
	defer c.mu.Unlock()
	for _, is := range all {
		if is.Cohort < c.reached && c.signals.lookup(is.Client) != nil {
			signals.AddClient(is.Client, is.refused...)
		}
	}
	c.signals, c.refused = signals, nil
}

// addAcceptedClients registers clients that have accepted the last good and are not served the edition yet. It is
// called before a cohort is served the edition, to include clients that were offline or had not answered at the cut.
func (c observer) addAcceptedClients() {
	all := c.clientAnswers()
	c.mu.Lock() // after the locks of streams
	defer c.mu.Unlock()
	for _, is := range all {
		if is.Cohort >= c.reached && is.accepted {
			c.signals.AddClient(is.Client, is.refused...)
		}
	}
}

// An observation is a count of the answers of clients to the edition.
type observation struct {
	observed time.Time // when
	stage    int       // then
	evidence Evidence
	cohorts  []Cohort
	canaries []string // ids of the Nodes that are served the edition
}

func (c observer) newCohorts() (all []Cohort) {
	for _, stage := range c.cfg.Stages {
		all = append(all, Cohort{Name: stage.String()})
	}
	return append(all, Cohort{Name: "the rest"})
}

// observe counts the answers of clients to the edition.
func (c observer) observe(now time.Time) {
	stage := c.machine.State().Stage
	c.observation = observation{observed: now, stage: stage, cohorts: c.newCohorts()}
	changes := c.shownChanges(stage)
	nodes := make(map[Client]downstream.ResourceState)
	for o := range c.cfg.Observed() {
		of, ok := o.Observer.(*Observer)
		if !ok || of.client.Cohort >= stage {
			continue
		}
		state, wants := o.ChangeState(changes[cohortOf{of.group, of.client.Cohort}])
		if !wants {
			continue
		}
		if before, is := nodes[of.client]; !is || state == downstream.Refused || before != downstream.Refused && state < before {
			nodes[of.client] = state
		}
	}
	c.count(nodes)
}

// count adds the states of clients to the observation.
func (c observer) count(nodes map[Client]downstream.ResourceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for client, state := range nodes {
		c.add(client, state)
	}
	slices.Sort(c.canaries)
	c.canaries = slices.Compact(c.canaries)
	if c.signals != nil {
		c.signals.countDisconnected(c.cohorts)
	}
}

// A cohortOf is a cohort of a node group.
type cohortOf struct {
	group  string
	cohort int
}

// shownChanges returns the changes of the edition for each cohort of the first stages.
func (c observer) shownChanges(stages int) map[cohortOf][]downstream.Change {
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

// add counts the answer of one client.
func (c observer) add(client Client, state downstream.ResourceState) {
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

// countClients sets the number of connected clients in cohorts.
func (c observer) countClients(cohorts []Cohort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range cohorts {
		cohorts[i].Clients = c.clients[i]
	}
}
