package downstream

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream/subscription"
)

// A pass is one pass of a flush over the subscriptions of a stream.
type pass struct {
	subscription.Turn           // barrier describes the cut
	next              time.Time // when to flush again; zero: only after an event

	// removalsBlocked is set while a type that may refer to clusters has unsent changes. Removals must not overtake them.
	removalsBlocked bool

	// mayBlock is set if the goroutine may wait for the client to read.
	mayBlock bool

	// resendsEarlier is set if a type has to be sent again that precedes the type that refers to it, so that another pass must follow.
	resendsEarlier bool

	// awaitsAnswer is set if something is due that waits for an ACK or NACK.
	awaitsAnswer bool

	// The result of [stream.dependentLimit], once limitKnown is set: the position up to which dependent types may be
	// read, and whether none of them may be sent.
	dependentLimit                cache.Seq
	dependentsBlocked, limitKnown bool
}

// wakeAt schedules another flush at a time. It ignores a zero time.
func (p *pass) wakeAt(t time.Time) { p.next = subscription.Earlier(p.next, t) }

// moreDue records that a type has unsent changes.
func (p *pass) moreDue(sub *subscription.Subscription) {
	p.removalsBlocked = p.removalsBlocked || !sub.LateRemovals()
}

// A barrier keeps a stream from sending dependent types, which refer to clusters, before these clusters and their
// endpoints (B.11). It delays them by at most TENDER_ACK_WAIT for a change of clusters and its endpoints. For the first
// set of clusters it is at most TENDER_COLD_WAIT, and as long again once the origin has answered.
type barrier struct {
	// coldSince is when a dependent type first waited for the first set of clusters, or when the origin answered for
	// that set (originAnswered).
	coldSince      time.Time
	originAnswered bool

	unsentSince time.Time // when dependent types started to wait for unsent clusters; zero if none are unsent

	batches []batch // oldest first

	// A cut is the generation from which clusters and dependent types are read. Once the client was sent clusters of a
	// generation, that generation remains the cut until the client was also sent the dependent types. Later clusters
	// follow after these. Without a cut, types that change together with clusters would wait until the clusters stop
	// changing. cut is nil if the newest generation is used.
	cut         *cache.Generation
	cutDeadline time.Time // when the cut ends, even if not everything was sent
}

// A batch has the EDS clusters of one response, from the time it is sent until the endpoints of these clusters are
// sent.
type batch struct {
	assignments []string  // names of ClusterLoadAssignments; shared between streams
	sentCount   int       // number of assignments at the start of the list that were sent
	floor       cache.Seq // position up to which dependent types may be read while the batch is open
	deadline    time.Time // when the batch ends, even if endpoints are unsent

	// nonce is the nonce of the response with which all assignments were sent. Until its answer, newer endpoints cannot be
	// sent, and resources that refer to them must not be sent either.
	nonce string
}

// maxBatches limits the batches of a stream. Further clusters are added to the newest batch.
const maxBatches = 8

// readLimit returns the position up to which a type may be read, and whether nothing of the type may be sent yet. A
// returning client must not be sent only the resources whose clusters it already holds, because it would take these for
// the complete set. Resources that a client newly subscribed to ignore the position, because the client does not use
// them yet.
func (s *stream) readLimit(p *pass, sub *subscription.Subscription) (limit cache.Seq, waits bool) {
	if sub.Order == schema.Endpoints {
		s.holdEndpoints(p)
	}
	if !sub.Dependent() || !sub.At(p.GenerationFor(sub)).Behind() {
		return p.GenerationFor(sub).Seq, false
	}
	end := p.GenerationFor(sub).Seq
	limit, waits = s.dependentLimit(p)
	limit = min(limit, end, s.earlierLimit(p, sub))
	return limit, waits || limit < end && sub.ReturningUnserved()
}

// earlierLimit returns the lowest position up to which earlier dependent types were sent that have changes which wait for an answer.
func (s *stream) earlierLimit(p *pass, sub *subscription.Subscription) cache.Seq {
	limit := p.Newest.Seq
	for _, earlier := range s.subs {
		if earlier.Rank >= sub.Rank {
			break // they are in the order of sending
		}
		if !earlier.Dependent() || s.waitUntil(p, earlier).IsZero() {
			continue
		}
		if unsent, upTo := earlier.At(p.GenerationFor(earlier)).Unsent(); unsent {
			limit = min(limit, upTo)
		}
	}
	return limit
}

// waitUntil returns until when changes of a type wait for an answer, if none is received before; zero if they do not wait. They wait
// for the answer to the newest response of the type. Clusters also wait for that to endpoints, if those of the clusters have to
// follow at once (B.16): sent later, they could belong to clusters that the client was not sent. A client that has half-closed the
// stream sends no answers.
func (s *stream) waitUntil(p *pass, sub *subscription.Subscription) (until time.Time) {
	if !s.clientClosedAt.IsZero() {
		return until
	}
	if sub.Blocked(p.Now) {
		until = sub.Deadline()
	}
	if sub.Order != schema.Clusters || !sub.SentAny() || !s.resends() {
		return until
	}
	eds := s.subscription(wire.EndpointType)
	if eds == nil || !eds.Blocked(p.Now) || !eds.Deadline().After(until) {
		return until
	}
	if clusters := p.UnsentReferrers(sub); eds.At(p.GenerationFor(eds)).HasEndpointsOf(clusters) {
		return eds.Deadline()
	}
	return until
}

// holdEndpoints makes endpoints wait for the clusters that refer to them, while changes of these wait for an answer or for the cut to
// end. Other endpoints are sent meanwhile.
func (s *stream) holdEndpoints(p *pass) {
	cds := s.subscription(wire.ClusterType)
	if cds == nil {
		return
	}
	until := s.clustersWaitUntil(p, cds)
	if p.Cut != p.Newest && s.barrier.cutDeadline.After(until) {
		until = s.barrier.cutDeadline
	}
	if until.IsZero() {
		return
	}
	if p.Awaited = p.UnsentReferrers(cds); len(p.Awaited) > 0 {
		p.awaitsAnswer = true
		p.wakeAt(until)
	}
}

// clustersWaitUntil returns until when unsent clusters wait for an answer or for content; zero if they do not wait.
func (s *stream) clustersWaitUntil(p *pass, cds *subscription.Subscription) time.Time {
	until := cds.DependentsUnblockedAt(p.Now)
	if answer := s.waitUntil(p, cds); answer.After(until) {
		return answer
	}
	return until
}

// dependentLimit returns the position up to which dependent types may be read, and whether none of them may be sent
// yet. It must be called after clusters and endpoints were sent in this pass, and computes the result once per pass.
func (s *stream) dependentLimit(p *pass) (limit cache.Seq, blocked bool) {
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

// currentCut returns the generation from which a pass reads clusters and dependent types.
func (s *stream) currentCut(p *pass) *cache.Generation {
	if s.barrier.cut == nil || !p.Now.Before(s.barrier.cutDeadline) {
		s.barrier.cut = nil
		return p.Newest
	}
	return s.barrier.cut
}

// startCut keeps the cut after clusters were sent, so that dependent types follow from the same generation. It starts
// no cut while the client waits for its first response of a dependent type: that must be from the newest generation,
// because the cut may lack a complete set.
func (s *stream) startCut(p *pass) {
	dependents := false
	for _, sub := range s.subs {
		if sub.Dependent() && !sub.SentAny() {
			return
		}
		dependents = dependents || sub.Dependent()
	}
	if dependents && s.barrier.cut == nil {
		s.barrier.cut, s.barrier.cutDeadline = p.Cut, p.Now.Add(s.cfg.AckWait)
	}
}

// finishCut ends the cut if the client was sent all of it. Otherwise it schedules another flush.
func (s *stream) finishCut(p *pass) {
	switch {
	case s.barrier.cut == nil:
	case !slices.ContainsFunc(s.barrier.batches, func(b batch) bool { return b.nonce == "" }) && !s.behindCut(p):
		s.barrier.cut = nil
	default:
		p.awaitsAnswer = true
		p.wakeAt(s.barrier.cutDeadline)
	}
}

// behindCut reports whether the client was not sent all clusters and dependent types of the cut.
func (s *stream) behindCut(p *pass) bool {
	return slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool {
		return sub.At(p.GenerationFor(sub)).BehindCut()
	})
}

// cutEnded reports whether the cut ended in a pass that did not read the newest generation, so that another pass must
// follow.
func (s *stream) cutEnded(p *pass) bool { return s.barrier.cut == nil && p.Cut != p.Newest }

// awaitsClusters reports whether the client subscribed to all clusters and the relay cannot send the set yet, because
// the origin has not answered (B.7) or the client may hold clusters that the set would delete.
func (s *stream) awaitsClusters(p *pass, cds *subscription.Subscription) bool {
	if !cds.AwaitsWildcard() {
		return false
	}
	if s.barrier.coldSince.IsZero() {
		s.barrier.coldSince = p.Now
	}
	if !s.barrier.originAnswered && clustersAnswered(p.GenerationFor(cds), cds.Key) {
		// The set is confirmed within ColdWait after this response.
		s.barrier.originAnswered, s.barrier.coldSince = true, p.Now.Add(confirmMargin)
	}
	until := s.barrier.coldSince.Add(s.cfg.ColdWait)
	if !p.Now.Before(until) {
		return false
	}
	p.wakeAt(until)
	return true
}

// confirmMargin is how much longer dependent types wait than the set of clusters takes to be confirmed. Both waits
// start at the same response, and the set must be sent first.
const confirmMargin = time.Second

// clustersAnswered reports whether the origin has answered for the set of clusters. A set restored from a snapshot is
// settled without an answer.
func clustersAnswered(g *cache.Generation, key string) bool {
	t := g.Type(key)
	return t.Phase >= cache.Settled && (!t.Restored || g.WildcardSource(key).Responded)
}

// clusterLimit returns the position up to which clusters were sent, if further clusters wait for an answer or for
// content. Otherwise it returns the position of the cut.
func (s *stream) clusterLimit(p *pass, cds *subscription.Subscription) cache.Seq {
	until := s.clustersWaitUntil(p, cds)
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

// endpointLimit returns the lowest floor of the batches with unsent endpoints; without such a batch, the position of
// the cut.
func (s *stream) endpointLimit(p *pass) cache.Seq {
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

// startBatch starts a batch after a response with EDS clusters was sent. floor is the position up to which clusters
// were sent before that response. A stream without endpoints or dependent types needs no batch, unless its client is
// returning and will subscribe to these types. gRPC clients need none either: they subscribe to clusters because their
// routes refer to them, so routes do not wait for clusters.
func (s *stream) startBatch(p *pass, cds *subscription.Subscription, assignments []string, floor cache.Seq) {
	since := s.barrier.unsentSince
	if s.barrier.unsentSince = (time.Time{}); since.IsZero() {
		since = p.Now
	}
	if len(assignments) == 0 || s.agent.GRPC || !s.clientClosedAt.IsZero() {
		return
	}
	dependents := slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool { return sub.Dependent() })
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

// removeFinishedBatches removes the batches that dependent types no longer wait for.
func (s *stream) removeFinishedBatches(p *pass) {
	if len(s.barrier.batches) == 0 {
		return
	}
	open := s.barrier.batches[:0]
	for _, b := range s.barrier.batches {
		if !s.batchFinished(p, &b) {
			open = append(open, b)
			p.awaitsAnswer = true // answers and requests finish a batch
		}
	}
	clear(s.barrier.batches[len(open):])
	if s.barrier.batches = open; len(open) == 0 {
		s.barrier.batches = nil
	}
}

// batchFinished reports whether dependent types no longer wait for a batch.
func (s *stream) batchFinished(p *pass, b *batch) bool {
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

// countSentAssignments returns the number of assignments before the first one that is due to the client.
func (s *stream) countSentAssignments(p *pass, assignments []string) int {
	const chunk = 64 // the first of many is often unsent
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

// assignmentDue reports whether an assignment is due for a cluster that the client was sent. While the client has not
// answered for the cluster, it may still subscribe to the assignment, so the assignment counts as due.
func (s *stream) assignmentDue(p *pass, text string, n *cache.Name) bool {
	eds := s.subscription(wire.EndpointType)
	due, subscribed := eds.At(p.GenerationFor(eds)).ResourceDue(text, n, p.Awaited, p.Now)
	if !subscribed {
		return s.subscription(wire.ClusterType).Pending()
	}
	return due
}
