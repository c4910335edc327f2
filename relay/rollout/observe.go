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
func (o *Observer) Rejected(typeURL string, r *downstream.Rejection, subscribes func(*downstream.Change) bool) {
	for _, c := range o.controllers {
		c.tracker.recordRejection(o, typeURL, r, subscribes)
	}
}

// A tracker has what the goroutines of streams and views report to the controller of an origin: the sections, the
// clients, and the signals of the clients about the editions. Its methods may be called from any goroutine.
type tracker struct {
	cfg  *ControllerConfig
	poke func() // Controller.Poke

	mu       sync.Mutex
	sections []*Section         // in the order in which they joined
	changes  uint64             // number of times that a section joined or left
	parts    []*part            // of the controller
	streams  map[Client]int     // open streams per connected client
	clients  [MaxStages + 1]int // connected clients per cohort
}

// setParts sets the parts of the controller.
func (t *tracker) setParts(all []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parts = slices.Clone(all)
}

// eachSignals calls f for the signals of each part that has an edition. t.mu must be held.
func (t *tracker) eachSignals(f func(*Signals)) {
	for _, p := range t.parts {
		if p.signals != nil {
			f(p.signals)
		}
	}
}

// join adds a section.
func (t *tracker) join(p *Section) {
	t.mu.Lock()
	t.sections = append(t.sections, p)
	t.changes++
	t.mu.Unlock()
	t.poke()
}

// leave removes a section.
func (t *tracker) leave(p *Section) {
	t.mu.Lock()
	t.sections = slices.DeleteFunc(t.sections, func(other *Section) bool { return other == p })
	t.changes++
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
	t.eachSignals(func(s *Signals) { s.RecordReconnect(client) })
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
	if o.disconnected {
		t.eachSignals(func(s *Signals) { s.RecordDisconnect(o.client) })
		t.poke()
	}
}

// recordRejection counts a NACK for the parts to whose changes it refers: those of which the error names a resource, or
// all whose changes the response contained. subscribes reports whether the client subscribes to any of a change.
func (t *tracker) recordRejection(
	o *Observer, typeURL string, r *downstream.Rejection, subscribes func(*downstream.Change) bool,
) {
	words := wordsOf(r.Detail)
	t.mu.Lock()
	defer t.mu.Unlock()
	var all, subscribed, named []*part
	late := false // the error names a resource of a part that was withdrawn meanwhile
	for _, p := range t.parts {
		if p.signals == nil || o.client.Cohort >= p.recentlyReached() {
			continue
		}
		is := t.rejectionOf(p, o, typeURL, r, words, subscribes)
		if o.client.Cohort >= p.reached {
			late = late || is.named
			continue
		}
		all, subscribed, named = is.add(p, all, subscribed, named)
	}
	if len(subscribed) > 0 { // otherwise the client unsubscribed with the NACK
		all = subscribed
	}
	for _, p := range all {
		if (late || len(named) > 0) && !slices.Contains(named, p) {
			p.spared[o.client.Cohort] = max(p.spared[o.client.Cohort], spareOf(late))
			continue
		}
		t.countRejection(p, Rejection{o.client, typeURL, r.Detail})
	}
	if late {
		t.poke()
	}
}

// A spare tells when a cohort is sent the changes of a part again that a client of it rejected together with those of another one.
type spare int

// The spares.
const (
	notSpared      spare = iota
	untilWithdrawn       // when the other part is withdrawn
	untilServed          // it was withdrawn: with the next step
)

// spareOf returns the spare of a part if the other one was withdrawn before the rejection, or was not.
func spareOf(late bool) spare {
	if late {
		return untilServed
	}
	return untilWithdrawn
}

// add adds a part to those whose changes a rejected response had.
func (is rejectionOf) add(p *part, all, subscribed, named []*part) (_, _, _ []*part) {
	if is.contained {
		all = append(all, p)
	}
	if is.subscribed {
		subscribed = append(subscribed, p)
	}
	if is.named {
		named = append(named, p)
	}
	return all, subscribed, named
}

// A rejectionOf tells what a rejected response had of a part.
type rejectionOf struct {
	contained  bool // changes of the part, as far as positions tell
	subscribed bool // and the client subscribes to one of their resources
	named      bool // and the error names one of these
}

// rejectionOf returns what a rejected response had of a part. t.mu must be held.
func (t *tracker) rejectionOf(
	p *part, o *Observer, typeURL string, r *downstream.Rejection, words []string, subscribes func(*downstream.Change) bool,
) (is rejectionOf) {
	for _, s := range t.sections {
		if s.Key.Group != o.group || s.of[p] == nil {
			continue
		}
		shown := &s.of[p].shown[o.client.Cohort]
		if o.client.Cohort >= p.reached {
			shown = &s.of[p].withdrawn[o.client.Cohort]
		}
		for i := range shown.changes {
			change := &shown.changes[i]
			changedType, _, _ := cache.SplitCollection(change.Key)
			if changedType != typeURL || !r.HasChange(change.After, change.UpTo) {
				continue
			}
			if is.contained = true; !subscribes(change) {
				continue
			}
			is.subscribed = true
			is.named = is.named || shown.names[i].isMentioned(r.Detail, words)
		}
	}
	return is
}

// takeSpared reports whether the changes of the part are to be sent to a cohort again. withdrawn reports whether those of another
// part have just been withdrawn from it.
func (t *tracker) takeSpared(p *part, cohort int, withdrawn bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.spared[cohort] == notSpared || p.spared[cohort] == untilWithdrawn && !withdrawn {
		return false
	}
	p.spared[cohort] = notSpared
	return true
}

// countRejection counts a NACK of the edition of a part. t.mu must be held.
func (t *tracker) countRejection(p *part, r Rejection) {
	if !p.signals.AddRejection(r) {
		return
	}
	if len(p.rejections) < MaxRejections {
		p.rejections = append(p.rejections, r)
	}
	t.poke()
}

// members returns the sections that have joined and not left, and how often that has changed.
func (t *tracker) members() ([]*Section, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sections), t.changes
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

// resetSignals starts to count the signals of a new edition of a part. A client that is served the superseded edition
// cannot accept the last good any more, so it remains registered if it was.
func (t *tracker) resetSignals(p *part) {
	signals := NewSignals(t.cfg.Config)
	all := t.clientAnswers()
	t.mu.Lock() // after the locks of streams
	defer t.mu.Unlock()
	for _, answer := range all {
		if answer.Cohort < p.reached && p.signals.lookup(answer.Client) != nil {
			signals.AddClient(answer.Client, answer.rejectedTypes...)
		}
	}
	p.signals, p.rejections, p.spared = signals, nil, [MaxStages]spare{}
}

// addAcceptedClients registers clients that have accepted the last good and are not served the editions of some parts
// yet. The caller calls it before it serves them to a cohort, to include clients that were offline or had not answered
// at the cut. A client that is served the edition of another part, or was until a moment ago, cannot have accepted the last
// good, so it counts as it does for that one.
func (t *tracker) addAcceptedClients(of []*part) {
	all := t.clientAnswers()
	t.mu.Lock() // after the locks of streams
	defer t.mu.Unlock()
	for _, answer := range all {
		rejected, accepted := answer.rejectedTypes, answer.accepted
		for _, p := range t.parts {
			if p.signals == nil || answer.Cohort >= p.recentlyReached() {
				continue
			}
			if k := p.signals.lookup(answer.Client); k != nil {
				rejected, accepted = k.rejectedTypes, true
				break
			}
		}
		for _, p := range of {
			if accepted && answer.Cohort >= p.reached {
				p.signals.AddClient(answer.Client, rejected...)
			}
		}
	}
}

// recoveryTime is the time in which clients accept the last good after an edition was withdrawn from them.
const recoveryTime = time.Minute

// recentlyReached returns the number of cohorts that are served an edition, or were less than recoveryTime ago. tracker.mu
// must be held.
func (p *part) recentlyReached() int {
	if time.Since(p.leftAt) < recoveryTime {
		return max(p.reached, p.left)
	}
	return p.reached
}

// setReached sets the reached cohorts of parts to those up to the last one for which differs returns true. A change
// begins a stage of the signals.
func (t *tracker) setReached(all []*part, differs func(p *part, cohort int) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range all {
		reached := 0
		for cohort := range t.cfg.Stages {
			if differs(p, cohort) {
				reached = cohort + 1
			}
		}
		if p.reached != reached && p.signals != nil {
			p.signals.BeginStage()
		}
		if reached < p.reached {
			p.left, p.leftAt = p.reached, time.Now()
		}
		p.reached = reached
		if reached == 0 && !p.machine.phase.inProgress() && time.Since(p.leftAt) >= recoveryTime {
			p.signals = nil // they have all clients
		}
	}
}

// haltReason returns the result of [Signals.HaltReason] for the cohorts that are served the edition of a part.
func (t *tracker) haltReason(p *part, elapsed time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.signals == nil || p.reached == 0 {
		return ""
	}
	return p.signals.HaltReason(p.reached, elapsed)
}

// shownRejections returns the rejections of the edition of a part for operators.
func (t *tracker) shownRejections(p *part) []Rejection {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(p.rejections)
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

// observe counts the answers of clients to the editions of parts, which the first stages are served.
func (t *tracker) observe(now time.Time, all []*part) {
	states := make([]map[Client]downstream.ResourceState, len(all))
	changes := make([]map[groupCohort][]downstream.Change, len(all))
	stages := make([]int, len(all))
	for i, p := range all {
		stages[i] = p.machine.State().Stage
		changes[i], states[i] = t.shownChanges(p, stages[i]), make(map[Client]downstream.ResourceState)
	}
	for stream := range t.cfg.Observed() {
		o, ok := stream.Observer.(*Observer)
		if !ok {
			continue
		}
		for i := range all {
			if o.client.Cohort >= stages[i] {
				continue
			}
			state, subscribed := stream.ChangeState(changes[i][groupCohort{o.group, o.client.Cohort}])
			if !subscribed {
				continue
			}
			if other, ok := states[i][o.client]; ok { // the client has several streams
				state = worse(state, other)
			}
			states[i][o.client] = state
		}
	}
	for i, p := range all {
		seen := observation{observed: now, stage: stages[i], cohorts: newCohorts(t.cfg.Stages)}
		t.countStates(p, &seen, states[i])
		p.observation = seen
	}
}

// worse returns Rejected if one of the states is Rejected, else the state that is farther from Accepted.
func worse(a, b downstream.ResourceState) downstream.ResourceState {
	if a == downstream.Rejected || b == downstream.Rejected {
		return downstream.Rejected
	}
	return min(a, b)
}

// countStates adds the states of clients to an observation.
func (t *tracker) countStates(p *part, seen *observation, states map[Client]downstream.ResourceState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for client, state := range states {
		seen.countState(client, state, p.signals != nil && p.signals.accepted(client))
	}
	slices.Sort(seen.canaries)
	seen.canaries = slices.Compact(seen.canaries)
	if p.signals != nil {
		p.signals.countDisconnected(seen.cohorts)
	}
}

// A groupCohort is a cohort of a node group.
type groupCohort struct {
	group  string
	cohort int
}

// shownChanges returns the changes of the edition of a part for each cohort of the first stages.
func (t *tracker) shownChanges(p *part, stages int) map[groupCohort][]downstream.Change {
	all := make(map[groupCohort][]downstream.Change)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.sections {
		if s.of[p] == nil {
			continue
		}
		for cohort := range stages {
			key := groupCohort{s.Key.Group, cohort}
			all[key] = append(all[key], s.of[p].shown[cohort].changes...)
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
