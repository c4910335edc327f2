package downstream

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
)

// A pass is one look at what is due to the client.
type pass struct {
	subscription.Turn           // see barrier for its cut
	next              time.Time // when to look again; zero: when something happens

	// removalsWait is set while a type that may refer to clusters has changes that were not sent: removals must not
	// overtake them.
	removalsBlocked bool

	// mayBlock is set if the goroutine that sends may wait for the client to read.
	mayBlock bool

	// answersWait is set if something is due that waits for an answer of the client.
	awaitsAnswer bool

	// How far dependent types may be read, and whether all of them wait, once that is known (see barrier).
	dependentLimit                cache.Seq
	dependentsBlocked, limitKnown bool
}

// wakeAt has the stream look again at a time; a zero time is none.
func (p *pass) wakeAt(t time.Time) { p.next = subscription.Earlier(p.next, t) }

// moreDue notes that more of a type is due than was sent.
func (p *pass) moreDue(sub *subscription.Subscription) {
	p.removalsBlocked = p.removalsBlocked || !sub.LateRemovals
}

// A barrier keeps a stream from sending dependent types, which refer to clusters, before the clusters and the endpoints
// that these need (B.11). Nothing waits longer than TENDER_ACK_WAIT for a change of clusters and its endpoints, or longer
// than TENDER_COLD_WAIT for the first set of clusters, and as long again once the origin has answered for it.
type barrier struct {
	coldSince      time.Time // when a dependent type first waited for the first set of clusters, or then the origin answered for it
	originAnswered bool      // it did
	unsentSince    time.Time // since when dependent types wait for changed clusters to be sent; zero if they do not

	batches []batch // oldest first

	// The client is sent one cut at a time: once it was sent clusters of a generation, the dependent types follow from
	// that generation too, however often they change meanwhile, and further clusters follow after these. Otherwise types
	// that change with every change of clusters would wait until these pause. The cut is nil while none is unfinished.
	cut         *cache.Generation
	cutDeadline time.Time // when the wait for the cut ends
}

// A batch is the EDS clusters of one response, from when that is sent until their
// endpoints are.
type batch struct {
	assignments []string  // names of the ClusterLoadAssignments; shared between streams
	sentCount   int       // of the assignments, how many were sent, in order
	floor       cache.Seq // position up to which dependent types may be read meanwhile
	deadline    time.Time // when the wait for the batch ends

	// nonce is that of the response after which all assignments were sent. Until that
	// is answered, newer endpoints cannot leave, and what is newer still must not
	// overtake them.
	nonce string
}

// maxBatches bounds the batches of a stream. Further clusters join the newest batch.
const maxBatches = 8

// limit returns the position up to which a type may be read, and whether nothing of it may be sent yet: a client that
// returns would take a part that refers to clusters which it has for all that is new. What a client newly asks for is
// exempt from the position: the client does not use it yet.
func (s sendOrder) readLimit(p *pass, sub *subscription.Subscription) (limit cache.Seq, waits bool) {
	if !sub.Dependent || !sub.At(p.GenerationFor(sub)).Behind() {
		return p.GenerationFor(sub).Seq, false
	}
	of := p.GenerationFor(sub)
	limit, shut := s.dependentLimit(p)
	limit = min(limit, of.Seq)
	return limit, shut || limit < of.Seq && sub.ReturningUnserved()
}

// dependentLimit returns the position up to which dependent types may be read, and whether nothing of them may be sent
// yet. Clusters and endpoints were served earlier in this pass.
func (s sendOrder) dependentLimit(p *pass) (limit cache.Seq, shut bool) {
	if p.limitKnown {
		return p.dependentLimit, p.dependentsBlocked
	}
	p.dependentLimit, p.limitKnown = p.Cut.Seq, true
	if cds := s.subscription(wire.ClusterType); cds != nil {
		p.dependentsBlocked = s.awaitsClusters(p, cds)
		p.dependentLimit = min(p.dependentLimit, s.clusterLimit(p, cds), s.endpointLimit(p))
	}
	return p.dependentLimit, p.dependentsBlocked
}

// cut returns the generation that a pass reads clusters and dependent types from.
func (s sendOrder) currentCut(p *pass) *cache.Generation {
	if s.barrier.cut == nil || !p.Now.Before(s.barrier.cutDeadline) {
		s.barrier.cut = nil
		return p.Newest
	}
	return s.barrier.cut
}

// beginning returns what the stream began with, nil once nothing older is read of any type. A client is sent first what is
// newest, even of a type of which other clients are sent changes after an interval only.
func (s sendOrder) updateStartGeneration(p *pass) *cache.Generation {
	switch {
	case !s.sent:
		s.startGeneration = p.StartGeneration()
	case s.startGeneration != nil && s.barrier.cut == nil && p.Newest.SendableRevision() >= s.startGeneration.Revision:
		s.startGeneration = nil
	}
	return s.startGeneration
}

// keepCut has dependent types follow the clusters that were just sent, from the same generation. A client that still
// waits for its first response of a dependent type is sent what is newest: that generation may lack a set.
func (s sendOrder) startCut(p *pass) {
	dependents := false
	for _, sub := range s.subs {
		if sub.Dependent && !sub.SentAny() {
			return
		}
		dependents = dependents || sub.Dependent
	}
	if dependents && s.barrier.cut == nil {
		s.barrier.cut, s.barrier.cutDeadline = p.Cut, p.Now.Add(s.cfg.AckWait)
	}
}

// holdCut ends the cut if the client was sent all of it, and otherwise has the stream look again.
func (s sendOrder) finishCut(p *pass) {
	switch {
	case s.barrier.cut == nil:
	case !slices.ContainsFunc(s.barrier.batches, func(b batch) bool { return b.nonce == "" }) &&
		!slices.ContainsFunc(s.subs,
			func(sub *subscription.Subscription) bool { return sub.At(p.GenerationFor(sub)).BehindCut() }):
		s.barrier.cut = nil
	default:
		p.awaitsAnswer = true
		p.wakeAt(s.barrier.cutDeadline)
	}
}

// cutEnded reports whether a cut has ended in a pass, and there is a newer generation.
func (s sendOrder) cutEnded(p *pass) bool { return s.barrier.cut == nil && p.Cut != p.Newest }

// clustersUnknown reports whether the client asked for all clusters, and too little of the set is known to send it
// (B.7), or too little of what it may hold.
func (s sendOrder) awaitsClusters(p *pass, cds *subscription.Subscription) bool {
	if !cds.AwaitsWildcard() {
		return false
	}
	if cds.At(p.GenerationFor(cds)).HeldByFreeze() {
		return true // the client keeps all that it has; the thaw wakes the stream
	}
	if s.barrier.coldSince.IsZero() {
		s.barrier.coldSince = p.Now
	}
	if !s.barrier.originAnswered && clustersAnswered(p.GenerationFor(cds), cds.Key) {
		// From now on it takes that long until the set is confirmed.
		s.barrier.originAnswered, s.barrier.coldSince = true, p.Now.Add(confirmMargin)
	}
	until := s.barrier.coldSince.Add(s.cfg.ColdWait)
	if !p.Now.Before(until) {
		return false
	}
	p.wakeAt(until)
	return true
}

// confirmMargin is how much longer dependent types wait than the set of clusters needs to be confirmed: both count from
// the same response, and the set comes first.
const confirmMargin = time.Second

// clustersAnswered reports whether the origin has answered for the set of clusters. A restored set is settled without that.
func clustersAnswered(g *cache.Generation, key string) bool {
	t := g.Type(key)
	return t.Phase >= cache.Settled && (!t.Restored || g.WildcardSource(key).Responded)
}

// clustersSent returns the position up to which clusters were sent, while later ones wait for an answer or for content.
func (s sendOrder) clusterLimit(p *pass, cds *subscription.Subscription) cache.Seq {
	until := cds.DependentsUnblockedAt(p.Now)
	if until.IsZero() {
		s.barrier.unsentSince = time.Time{}
		return p.Cut.Seq
	}
	unsent, upTo := cds.At(p.GenerationFor(cds)).Unsent()
	if !unsent {
		s.barrier.unsentSince = time.Time{}
		return p.Cut.Seq
	}
	if s.barrier.unsentSince.IsZero() {
		s.barrier.unsentSince = p.Now
	}
	p.wakeAt(until)
	return upTo
}

// endpointsSent returns the position before the first batch with endpoints that were not sent.
func (s sendOrder) endpointLimit(p *pass) cache.Seq {
	s.removeFinishedBatches(p)
	if len(s.barrier.batches) == 0 || s.subscription(wire.EndpointType) == nil {
		return p.Cut.Seq
	}
	limit := p.Cut.Seq
	for _, b := range s.barrier.batches {
		if b.nonce == "" || s.countSentAssignments(p, b.assignments) < len(b.assignments) {
			p.wakeAt(b.deadline)
			limit = min(limit, b.floor)
		}
	}
	return limit
}

// awaitEndpoints begins a batch: a response of clusters has just left, and the clusters before it were sent up to the
// position floor. A stream without endpoints or dependent types waits for nothing, unless its client returns and is about
// to ask for these. gRPC asks for clusters because of its routes, not the other way around.
func (s sendOrder) startBatch(p *pass, cds *subscription.Subscription, assignments []string, floor cache.Seq) {
	since := s.barrier.unsentSince
	if s.barrier.unsentSince = (time.Time{}); since.IsZero() {
		since = p.Now
	}
	if len(assignments) == 0 || s.agent.GRPC || !s.clientClosedAt.IsZero() {
		return
	}
	dependents := slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool { return sub.Dependent })
	if returns := floor == 0 && cds.Returning(); !returns && (!dependents || s.subscription(wire.EndpointType) == nil) {
		return
	}
	if n := len(s.barrier.batches); n == maxBatches {
		last := &s.barrier.batches[n-1]
		last.assignments = slices.Concat(last.assignments[last.sentCount:], assignments)
		last.sentCount, last.floor, last.nonce = 0, min(last.floor, floor), ""
		return
	}
	s.barrier.batches = append(s.barrier.batches, batch{assignments: assignments, floor: floor,
		deadline: since.Add(s.cfg.AckWait)})
}

// settleBatches ends the batches that nothing needs to wait for any more.
func (s sendOrder) removeFinishedBatches(p *pass) {
	if len(s.barrier.batches) == 0 {
		return
	}
	open := s.barrier.batches[:0]
	for _, b := range s.barrier.batches {
		if !s.batchFinished(p, &b) {
			open = append(open, b)
			p.awaitsAnswer = true // answers and requests end it
		}
	}
	clear(s.barrier.batches[len(open):])
	if s.barrier.batches = open; len(open) == 0 {
		s.barrier.batches = nil
	}
}

// settled reports whether nothing needs to wait for a batch any more.
func (s sendOrder) batchFinished(p *pass, b *batch) bool {
	cds, eds := s.subscription(wire.ClusterType), s.subscription(wire.EndpointType)
	switch {
	case !p.Now.Before(b.deadline), !s.clientClosedAt.IsZero():
		return true
	case eds == nil:
		return !cds.Pending()
	case b.nonce != "":
		return b.nonce != eds.Nonce() || !eds.Blocked(p.Now)
	}
	b.sentCount += s.countSentAssignments(p, b.assignments[b.sentCount:])
	if b.sentCount < len(b.assignments) {
		return false
	}
	b.nonce, b.floor = eds.Nonce(), p.Newest.Seq
	return !eds.Blocked(p.Now)
}

// sentAssignments returns how many of the assignments, from the first on, nothing waits for: those before the first that
// is due to the client.
func (s sendOrder) countSentAssignments(p *pass, assignments []string) int {
	const chunk = 64 // the first of many is often not sent
	for at := 0; at < len(assignments); at += chunk {
		texts := assignments[at:min(at+chunk, len(assignments))]
		for i, n := range s.watch.Find(wire.EndpointType, texts) {
			if s.assignmentDue(p, texts[i], n) {
				return at + i
			}
		}
	}
	return len(assignments)
}

// owesAssignment reports whether the client is to be sent an assignment that it needs for a cluster that it was sent.
// While the client has not answered for the cluster, it may still subscribe to the assignment.
func (s sendOrder) assignmentDue(p *pass, text string, n *cache.Name) bool {
	eds := s.subscription(wire.EndpointType)
	owes, subscribed := eds.At(p.GenerationFor(eds)).ResourceDue(text, n, p.Now)
	if !subscribed {
		return s.subscription(wire.ClusterType).Pending()
	}
	return owes
}
