package rollout

import (
	"slices"
	"sync"
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
		c.tracker.streamStarted(client)
	}
	return o
}

// Ended records that the stream has ended.
func (o *Observer) Ended() {
	for _, c := range o.controllers {
		c.tracker.streamEnded(o)
	}
}

// Disconnected implements [downstream.Observer]. It records that the client closed the stream. The caller calls Ended next.
func (o *Observer) Disconnected() { o.disconnected = true }

// Rejected implements [downstream.Observer].
func (o *Observer) Rejected(typeURL string, r *downstream.Rejection) {
	for _, c := range o.controllers {
		c.tracker.recordRejection(o, typeURL, r)
	}
}

// A tracker has what the goroutines of streams and views report to the controller of an origin: the sections, the clients,
// and the signals of the clients about the edition. Its methods may be called from any goroutine.
type tracker struct {
	cfg  *ControllerConfig
	poke func() // Controller.Poke

	mu         sync.Mutex
	sections   []*Section         // in the order in which they joined
	signals    *Signals           // signals of the edition; nil before the first edition
	streams    map[Client]int     // open streams per connected client
	clients    [MaxStages + 1]int // connected clients per cohort
	reached    int                // number of cohorts that are served another edition than the rest
	rejections []Rejection        // rejections of the edition; at most MaxRejections
}

// join adds a section.
func (t *tracker) join(p *Section) {
	t.mu.Lock()
	t.sections = append(t.sections, p)
	t.mu.Unlock()
	t.poke()
}

// leave removes a section.
func (t *tracker) leave(p *Section) {
	t.mu.Lock()
	t.sections = slices.DeleteFunc(t.sections, func(other *Section) bool { return other == p })
	t.mu.Unlock()
	t.poke()
}

// joined returns the sections that have joined and not left.
func (t *tracker) joined() []*Section {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sections)
}

// streamStarted counts a client with its first stream.
func (t *tracker) streamStarted(client Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams[client]++; t.streams[client] > 1 {
		return
	}
	t.clients[client.Cohort]++
	if t.signals != nil {
		t.signals.RecordReconnect(client)
	}
}

// streamEnded stops counting a client with its last stream. It records a disconnect if the client closed the stream.
func (t *tracker) streamEnded(o *Observer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams[o.client]--; t.streams[o.client] > 0 {
		return
	}
	delete(t.streams, o.client)
	t.clients[o.client.Cohort]--
	if o.disconnected && t.signals != nil {
		t.signals.RecordDisconnect(o.client)
		t.poke()
	}
}

// recordRejection counts a NACK if it refers to resources of the edition.
func (t *tracker) recordRejection(o *Observer, typeURL string, r *downstream.Rejection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.signals == nil || o.client.Cohort >= t.reached {
		return
	}
	isRejected := func(change downstream.Change) bool {
		changedType, _, _ := cache.SplitCollection(change.Key)
		return changedType == typeURL && r.HasChange(change.After, change.UpTo)
	}
	for _, p := range t.sections {
		if p.Key.Group == o.group && slices.ContainsFunc(p.changes[o.client.Cohort], isRejected) {
			t.countRejection(Rejection{o.client, typeURL, r.Detail})
			return
		}
	}
}

// countRejection counts a NACK of the edition. t.mu must be held.
func (t *tracker) countRejection(r Rejection) {
	if !t.signals.AddRejection(r) {
		return
	}
	if len(t.rejections) < MaxRejections {
		t.rejections = append(t.rejections, r)
	}
	t.poke()
}

// A clientAnswer is the answer of a client to the edition that it is served.
type clientAnswer struct {
	Client
	accepted      bool
	rejectedTypes []string
}

// clientAnswers returns one answer for each open stream. It locks streams, so t.mu must not be held.
func (t *tracker) clientAnswers() (all []clientAnswer) {
	for stream := range t.cfg.Observed() {
		if o, ok := stream.Observer.(*Observer); ok {
			accepted, rejectedTypes := stream.AckStatus(t.cfg.Waits)
			all = append(all, clientAnswer{o.client, accepted, rejectedTypes})
		}
	}
	return all
}

// resetSignals starts to count the signals of a new edition. A client that is served the superseded edition cannot
// accept the last good any more, so it remains registered if it was.
func (t *tracker) resetSignals() {
	all, signals := t.clientAnswers(), NewSignals(t.cfg.Config)
	t.mu.Lock() // after the locks of streams
	defer t.mu.Unlock()
	for _, answer := range all {
		if answer.Cohort < t.reached && t.signals.lookup(answer.Client) != nil {
			signals.AddClient(answer.Client, answer.rejectedTypes...)
		}
	}
	t.signals, t.rejections = signals, nil
}

// addAcceptedClients registers clients that have accepted the last good and are not served the edition yet. The caller
// calls it before it serves the edition to a cohort, to include clients that were offline or had not answered at the
// cut.
func (t *tracker) addAcceptedClients() {
	all := t.clientAnswers()
	t.mu.Lock() // after the locks of streams
	defer t.mu.Unlock()
	for _, answer := range all {
		if answer.Cohort >= t.reached && answer.accepted {
			t.signals.AddClient(answer.Client, answer.rejectedTypes...)
		}
	}
}

// setReached sets t.reached to the number of cohorts up to the last one for which differs returns true. A change begins
// a stage of the signals.
func (t *tracker) setReached(differs func(cohort int) bool) {
	reached := 0
	for cohort := range t.cfg.Stages {
		if differs(cohort) {
			reached = cohort + 1
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reached != reached && t.signals != nil {
		t.signals.BeginStage()
	}
	t.reached = reached
}

// haltReason returns the result of [Signals.HaltReason] for the cohorts that are served the edition.
func (t *tracker) haltReason(elapsed time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.signals == nil || t.reached == 0 {
		return ""
	}
	return t.signals.HaltReason(t.reached, elapsed)
}

// shownRejections returns the rejections of the edition for operators.
func (t *tracker) shownRejections() []Rejection {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.rejections)
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
func newCohorts(stages Stages) (all []Cohort) {
	for _, stage := range stages {
		all = append(all, Cohort{Name: stage.String()})
	}
	return append(all, Cohort{Name: "the rest"})
}

// observe counts the answers of clients to the edition, which the first stages are served.
func (t *tracker) observe(now time.Time, stages int) observation {
	seen := observation{observed: now, stage: stages, cohorts: newCohorts(t.cfg.Stages)}
	changes := t.shownChanges(stages)
	states := make(map[Client]downstream.ResourceState)
	for stream := range t.cfg.Observed() {
		o, ok := stream.Observer.(*Observer)
		if !ok || o.client.Cohort >= stages {
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
	t.countStates(&seen, states)
	return seen
}

// worse returns Rejected if one of the states is Rejected, else the state that is farther from Accepted.
func worse(a, b downstream.ResourceState) downstream.ResourceState {
	if a == downstream.Rejected || b == downstream.Rejected {
		return downstream.Rejected
	}
	return min(a, b)
}

// countStates adds the states of clients to an observation.
func (t *tracker) countStates(seen *observation, states map[Client]downstream.ResourceState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for client, state := range states {
		seen.countState(client, state, t.signals != nil && t.signals.accepted(client))
	}
	slices.Sort(seen.canaries)
	seen.canaries = slices.Compact(seen.canaries)
	if t.signals != nil {
		t.signals.countDisconnected(seen.cohorts)
	}
}

// A groupCohort is a cohort of a node group.
type groupCohort struct {
	group  string
	cohort int
}

// shownChanges returns the changes of the edition for each cohort of the first stages.
func (t *tracker) shownChanges(stages int) map[groupCohort][]downstream.Change {
	all := make(map[groupCohort][]downstream.Change)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.sections {
		for cohort := range stages {
			key := groupCohort{p.Key.Group, cohort}
			all[key] = append(all[key], p.changes[cohort]...)
		}
	}
	return all
}

// countState adds the state of one client. trusted reports whether the client had accepted the last good.
func (seen *observation) countState(client Client, state downstream.ResourceState, trusted bool) {
	cohort := &seen.cohorts[client.Cohort]
	cohort.Subscribed++
	seen.evidence.Subscribed++
	if trusted {
		seen.evidence.Trusted++
	}
	switch state {
	case downstream.Accepted:
		cohort.Accepted++
		seen.evidence.Accepted++
		seen.evidence.Answered++
	case downstream.Rejected:
		cohort.Rejected++
		seen.evidence.Answered++
	}
	if client.Node != "" {
		seen.canaries = append(seen.canaries, client.Node)
	}
}

// countClients sets the number of connected clients in cohorts.
func (t *tracker) countClients(cohorts []Cohort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range cohorts {
		cohorts[i].Clients = t.clients[i]
	}
}

// clientsOf returns the number of connected clients in the first stages.
func (t *tracker) clientsOf(stages int) (clients int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.clients[:stages] {
		clients += n
	}
	return clients
}
