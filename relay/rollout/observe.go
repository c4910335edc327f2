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

// Observe returns the observer of a new client stream of a node group. The caller must call Ended when the stream ends.
func Observe(client Client, group string, controllers []*Controller) *Observer {
	o := &Observer{client: client, group: group, controllers: controllers}
	for _, c := range controllers {
		c.tracker().streamStarted(client)
	}
	return o
}

// Ended records that the stream has ended.
func (o *Observer) Ended() {
	for _, c := range o.controllers {
		c.tracker().streamEnded(o)
	}
}

// Disconnected implements [downstream.Observer]. It records that the client closed the stream. The caller calls Ended next.
func (o *Observer) Disconnected() { o.disconnected = true }

// Refused implements [downstream.Observer].
func (o *Observer) Refused(typeURL string, r *downstream.Refusal) {
	for _, c := range o.controllers {
		c.tracker().recordRefusal(o, typeURL, r)
	}
}

// streamStarted counts a client with its first stream.
func (c tracker) streamStarted(client Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[client]++; c.streams[client] > 1 {
		return
	}
	c.clients[client.Cohort]++
	if c.signals != nil {
		c.signals.RecordReconnect(client)
	}
}

// streamEnded stops counting a client with its last stream. It records a disconnect if the client closed the stream.
func (c tracker) streamEnded(o *Observer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[o.client]--; c.streams[o.client] > 0 {
		return
	}
	delete(c.streams, o.client)
	c.clients[o.client.Cohort]--
	if o.disconnected && c.signals != nil {
		c.signals.RecordDisconnect(o.client)
		c.Poke()
	}
}

// recordRefusal counts a NACK if it refers to resources of the edition.
func (c tracker) recordRefusal(o *Observer, typeURL string, r *downstream.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signals == nil || o.client.Cohort >= c.reached {
		return
	}
	isRefused := func(change downstream.Change) bool {
		changedType, _, _ := cache.SplitCollection(change.Key)
		return changedType == typeURL && r.HasChange(change.After, change.UpTo)
	}
	for _, p := range c.parts {
		if p.Key.Group == o.group && slices.ContainsFunc(p.changes[o.client.Cohort], isRefused) {
			c.countRefusal(Refusal{o.client, typeURL, r.Detail})
			return
		}
	}
}

// countRefusal counts a NACK of the edition. c.mu must be held.
func (c tracker) countRefusal(r Refusal) {
	if !c.signals.AddRefusal(r) {
		return
	}
	if len(c.refusals) < MaxRefusals {
		c.refusals = append(c.refusals, r)
	}
	c.Poke()
}

// A clientAnswer is the answer of a client to the edition that it is served.
type clientAnswer struct {
	Client
	accepted     bool
	refusedTypes []string
}

// clientAnswers returns one answer for each open stream. It locks streams, so c.mu must not be held.
func (c tracker) clientAnswers() (all []clientAnswer) {
	for stream := range c.cfg.Observed() {
		if o, ok := stream.Observer.(*Observer); ok {
			accepted, refusedTypes := stream.AckStatus(c.cfg.Waits)
			all = append(all, clientAnswer{o.client, accepted, refusedTypes})
		}
	}
	return all
}

// resetSignals starts to count the signals of a new edition. A client that is served the superseded edition cannot
// accept the last good any more, so it remains registered if it was.
func (c tracker) resetSignals() {
	all, signals := c.clientAnswers(), NewSignals(c.cfg.Config)
	c.mu.Lock() // after the locks of streams
	defer c.mu.Unlock()
	for _, answer := range all {
		if answer.Cohort < c.reached && c.signals.lookup(answer.Client) != nil {
			signals.AddClient(answer.Client, answer.refusedTypes...)
		}
	}
	c.signals, c.refusals = signals, nil
}

// addAcceptedClients registers clients that have accepted the last good and are not served the edition yet. The caller
// calls it before it serves the edition to a cohort, to include clients that were offline or had not answered at the
// cut.
func (c tracker) addAcceptedClients() {
	all := c.clientAnswers()
	c.mu.Lock() // after the locks of streams
	defer c.mu.Unlock()
	for _, answer := range all {
		if answer.Cohort >= c.reached && answer.accepted {
			c.signals.AddClient(answer.Client, answer.refusedTypes...)
		}
	}
}

// An observation is a count of the answers of clients to the edition.
type observation struct {
	observed time.Time // time of the observation
	stage    int       // State.Stage at that time
	evidence Evidence
	cohorts  []Cohort
	canaries []string // node ids of the clients that are served the edition, sorted
}

// newCohorts returns the cohorts without counts.
func (c tracker) newCohorts() (all []Cohort) {
	for _, stage := range c.cfg.Stages {
		all = append(all, Cohort{Name: stage.String()})
	}
	return append(all, Cohort{Name: "the rest"})
}

// observe counts the answers of clients to the edition.
func (c tracker) observe(now time.Time) {
	stage := c.machine.State().Stage
	c.observation = observation{observed: now, stage: stage, cohorts: c.newCohorts()}
	changes := c.shownChanges(stage)
	states := make(map[Client]downstream.ResourceState)
	for stream := range c.cfg.Observed() {
		o, ok := stream.Observer.(*Observer)
		if !ok || o.client.Cohort >= stage {
			continue
		}
		state, subscribed := stream.ChangeState(changes[groupCohort{o.group, o.client.Cohort}])
		if !subscribed {
			continue
		}
		if other, ok := states[o.client]; ok { // the client has several streams
			state = worse(state, other)
		}
		states[o.client] = state
	}
	c.countStates(states)
}

// worse returns Refused if one of the states is Refused, else the state that is farther from Accepted.
func worse(a, b downstream.ResourceState) downstream.ResourceState {
	if a == downstream.Refused || b == downstream.Refused {
		return downstream.Refused
	}
	return min(a, b)
}

// countStates adds the states of clients to the observation.
func (c tracker) countStates(states map[Client]downstream.ResourceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for client, state := range states {
		c.countState(client, state)
	}
	slices.Sort(c.canaries)
	c.canaries = slices.Compact(c.canaries)
	if c.signals != nil {
		c.signals.countDisconnected(c.cohorts)
	}
}

// A groupCohort is a cohort of a node group.
type groupCohort struct {
	group  string
	cohort int
}

// shownChanges returns the changes of the edition for each cohort of the first stages.
func (c tracker) shownChanges(stages int) map[groupCohort][]downstream.Change {
	all := make(map[groupCohort][]downstream.Change)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		for cohort := range stages {
			key := groupCohort{p.Key.Group, cohort}
			all[key] = append(all[key], p.changes[cohort]...)
		}
	}
	return all
}

// countState adds the state of one client to the observation. c.mu must be held.
func (c tracker) countState(client Client, state downstream.ResourceState) {
	cohort := &c.cohorts[client.Cohort]
	cohort.Subscribed++
	c.evidence.Subscribed++
	if c.signals != nil && c.signals.accepted(client) {
		c.evidence.Trusted++
	}
	switch state {
	case downstream.Accepted:
		cohort.Accepted++
		c.evidence.Accepted++
		c.evidence.Answered++
	case downstream.Refused:
		cohort.Refused++
		c.evidence.Answered++
	}
	if client.Node != "" {
		c.canaries = append(c.canaries, client.Node)
	}
}

// countClients sets the number of connected clients in cohorts.
func (c tracker) countClients(cohorts []Cohort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range cohorts {
		cohorts[i].Clients = c.clients[i]
	}
}
