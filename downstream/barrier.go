package downstream

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A barrier keeps a stream from sending dependent types, which refer to clusters,
// before the clusters and the endpoints that these need (B.11). Nothing waits longer
// than TENDER_ACK_WAIT for a change of clusters and its endpoints, or longer than
// TENDER_COLD_WAIT for the first set of clusters, and as long again if the origin answers for it.
type barrier struct {
	coldSince   time.Time // when a dependent type first waited for the first set of clusters, or then the origin answered for it
	answered    bool      // it did
	unsentSince time.Time // since when dependent types wait for changed clusters to be sent; zero if they do not

	batches []batch // oldest first

	// The client is told of one cut at a time: once it was sent clusters of a head, the
	// dependent types follow from that head too, however often they change meanwhile, and
	// further clusters follow after these. Otherwise types that change with every change of
	// clusters would wait until these pause. The cut is nil while there is none to finish.
	cut   *cache.Generation
	until time.Time // when the wait for the cut ends
}

// A batch is the EDS clusters of one response, from when that is sent until their
// endpoints are.
type batch struct {
	assignments []string  // names of the ClusterLoadAssignments; shared between streams
	sent        int       // of the assignments, how many were sent, in order
	floor       cache.Seq // position up to which dependent types may be read meanwhile
	until       time.Time // when the wait for the batch ends

	// nonce is that of the response after which all assignments were sent. Until that
	// is answered, newer endpoints cannot leave, and what is newer still must not
	// overtake them.
	nonce string
}

// maxBatches bounds the batches of a stream. Further clusters join the newest batch.
const maxBatches = 8

// limit returns the position up to which a type may be read, and whether nothing of it
// may be sent yet: the client returns, and would take what refers to clusters that it
// was not sent for all that is new. What a client newly asks for is exempt from the
// position: it does not use that yet.
func (s *stream) limit(p *pass, sub *subscription, t *cache.Type) (limit cache.Seq, waits bool) {
	if !sub.Dependent || !sub.behind(t) {
		return p.of(sub).Seq, false
	}
	limit, shut := s.dependentLimit(p)
	return limit, shut || limit < p.cut.Seq && sub.firstLook()
}

// dependentLimit returns the position up to which dependent types may be read, and
// whether nothing of them may be sent yet. Clusters and endpoints have had their turn
// in this pass.
func (s *stream) dependentLimit(p *pass) (limit cache.Seq, shut bool) {
	if p.limitKnown {
		return p.limit, p.shut
	}
	p.limit, p.limitKnown = p.cut.Seq, true
	if cds := s.of(wire.ClusterType); cds != nil {
		p.shut = s.clustersUnknown(p, cds)
		p.limit = min(p.limit, s.clustersSent(p, cds), s.endpointsSent(p))
	}
	return p.limit, p.shut
}

// cut returns the head that a pass reads clusters and dependent types from.
func (s *stream) cut(p *pass) *cache.Generation {
	if s.barrier.cut == nil || !p.now.Before(s.barrier.until) {
		s.barrier.cut = nil
		return p.head
	}
	return s.barrier.cut
}

// keepCut has dependent types follow the clusters that were just sent, from the same head.
// A client that still waits for its first answer of one is told what is newest: a set may
// not have been known in that head.
func (s *stream) keepCut(p *pass) {
	dependents := false
	for _, sub := range s.subs {
		if sub.Dependent && !sub.sentAny {
			return
		}
		dependents = dependents || sub.Dependent
	}
	if dependents && s.barrier.cut == nil {
		s.barrier.cut, s.barrier.until = p.cut, p.now.Add(s.cfg.AckWait)
	}
}

// holdCut ends the cut if the client was sent all of it.
func (s *stream) holdCut(p *pass) {
	switch {
	case s.barrier.cut == nil:
	case !slices.ContainsFunc(s.barrier.batches, func(b batch) bool { return b.nonce == "" }) &&
		!slices.ContainsFunc(s.subs, func(sub *subscription) bool { return sub.behindCut(p.cut) }):
		s.barrier.cut = nil
	default:
		p.held = true
		p.at(s.barrier.until)
	}
}

// uncut reports whether a cut has ended in a pass, and there is a newer head.
func (s *stream) uncut(p *pass) bool { return s.barrier.cut == nil && p.cut != p.head }

// of returns the head that a type is read from.
func (p *pass) of(sub *subscription) *cache.Generation {
	if sub.Dependent || sub.TypeURL == wire.ClusterType {
		return p.cut
	}
	return p.head
}

// owes reports whether clusters or a dependent type changed in a head after what the
// client was sent of them.
func (s *subscription) behindCut(g *cache.Generation) bool {
	if !s.Dependent && s.TypeURL != wire.ClusterType {
		return false
	}
	for glob := range s.followed() {
		if t := g.Type(glob.key); t.Phase >= cache.Settled && t.Wildcard.Last() > glob.sentUpTo {
			return true
		}
	}
	return len(s.names) > 0 && g.Type(s.key).Last() > s.scannedUpTo
}

// takeAsked takes the names from those that are owed an answer that the client does not
// use yet. The newest head answers for them, since no hint tells of what changed before the
// client asked.
func (s *subscription) takeNewNames() (names []*cache.Name) {
	s.pendingNames = slices.DeleteFunc(s.pendingNames, func(n *cache.Name) bool {
		at, ok := s.find(n)
		if ok = ok && s.names[at].sent == 0; ok {
			names = append(names, n)
		}
		return ok
	})
	return names
}

// clustersUnknown reports whether the client asked for all clusters and the set is not
// known well enough to be sent (B.7).
func (s *stream) clustersUnknown(p *pass, cds *subscription) bool {
	if cds.wildcard == nil || cds.wildcardStarted || cds.holdsSet {
		return false
	}
	if s.barrier.coldSince.IsZero() {
		s.barrier.coldSince = p.now
	}
	until := s.barrier.coldSince.Add(s.cfg.ColdWait)
	if !p.now.Before(until) {
		return false
	}
	if !s.barrier.answered && p.of(cds).Type(cds.key).Phase >= cache.Settled {
		// From now on it takes that long until the set is confirmed.
		s.barrier.answered, s.barrier.coldSince = true, p.now
		until = p.now.Add(s.cfg.ColdWait)
	}
	p.at(until)
	return true
}

// clustersSent returns the position up to which clusters were sent, while those that
// were not wait for an answer or for content.
func (s *stream) clustersSent(p *pass, cds *subscription) cache.Seq {
	until := cds.overtakenAt(p.now)
	if until.IsZero() {
		s.barrier.unsentSince = time.Time{}
		return p.cut.Seq
	}
	unsent, upTo := cds.unsentAdditions(p.cut.Type(wire.ClusterType))
	for _, glob := range cds.globs {
		if glob.idle {
			continue
		}
		some, sent := glob.unsentAdditions(p.cut.Type(glob.key))
		unsent, upTo = unsent || some, min(upTo, sent)
	}
	if !unsent {
		s.barrier.unsentSince = time.Time{}
		return p.cut.Seq
	}
	if s.barrier.unsentSince.IsZero() {
		s.barrier.unsentSince = p.now
	}
	p.at(until)
	return upTo
}

// endpointsSent returns the position before the first batch whose endpoints were not
// all sent.
func (s *stream) endpointsSent(p *pass) cache.Seq {
	s.settleBatches(p)
	if len(s.barrier.batches) == 0 || s.of(wire.EndpointType) == nil {
		return p.cut.Seq
	}
	limit := p.cut.Seq
	for _, b := range s.barrier.batches {
		if b.nonce == "" || s.sentAssignments(p, b.assignments) < len(b.assignments) {
			p.at(b.until)
			limit = min(limit, b.floor)
		}
	}
	return limit
}

// awaitEndpoints begins a batch: a response of clusters has just left, and the clusters
// before it were sent up to the position floor. A stream without endpoints or dependent
// types waits for nothing, unless its client returns and is about to ask for these.
// gRPC asks for clusters because of its routes, not the other way around.
func (s *stream) awaitEndpoints(p *pass, cds *subscription, assignments []string, floor cache.Seq) {
	since := s.barrier.unsentSince
	if s.barrier.unsentSince = (time.Time{}); since.IsZero() {
		since = p.now
	}
	if len(assignments) == 0 || s.agent.GRPC || !s.closed.IsZero() {
		return
	}
	dependents := slices.ContainsFunc(s.subs, func(sub *subscription) bool { return sub.Dependent })
	if returns := floor == 0 && cds.returns(); !returns && (!dependents || s.of(wire.EndpointType) == nil) {
		return
	}
	if n := len(s.barrier.batches); n == maxBatches {
		last := &s.barrier.batches[n-1]
		last.assignments = slices.Concat(last.assignments[last.sent:], assignments)
		last.sent, last.floor, last.nonce = 0, min(last.floor, floor), ""
		return
	}
	s.barrier.batches = append(s.barrier.batches, batch{assignments: assignments, floor: floor, until: since.Add(s.cfg.AckWait)})
}

// settleBatches ends the batches that nothing needs to wait for any more.
func (s *stream) settleBatches(p *pass) {
	if len(s.barrier.batches) == 0 {
		return
	}
	open := s.barrier.batches[:0]
	for _, b := range s.barrier.batches {
		if !s.settled(p, &b) {
			open = append(open, b)
			p.held = true // answers and requests end it
		}
	}
	clear(s.barrier.batches[len(open):])
	if s.barrier.batches = open; len(open) == 0 {
		s.barrier.batches = nil
	}
}

// settled reports whether nothing needs to wait for a batch any more.
func (s *stream) settled(p *pass, b *batch) bool {
	cds, eds := s.of(wire.ClusterType), s.of(wire.EndpointType)
	switch {
	case !p.now.Before(b.until), !s.closed.IsZero():
		return true
	case eds == nil:
		return !cds.pending
	case b.nonce != "":
		return b.nonce != eds.nonce || !eds.blocked(p.now)
	}
	b.sent += s.sentAssignments(p, b.assignments[b.sent:])
	if b.sent < len(b.assignments) {
		return false
	}
	b.nonce, b.floor = eds.nonce, p.head.Seq
	return !eds.blocked(p.now)
}

// sentAssignments returns how many of the assignments, from the first on, need not be
// waited for: up to the first that the client is to be sent.
func (s *stream) sentAssignments(p *pass, assignments []string) int {
	const chunk = 64 // the first of many is often not sent
	for at := 0; at < len(assignments); at += chunk {
		texts := assignments[at:min(at+chunk, len(assignments))]
		for i, n := range s.watch.Find(wire.EndpointType, texts) {
			if s.owesAssignment(p, texts[i], n) {
				return at + i
			}
		}
	}
	return len(assignments)
}

// owesAssignment reports whether the client is to be sent an assignment that it needs
// for a cluster that it was sent: the view holds it, or the origin was asked for it a
// moment ago. While the client has not answered for the cluster, it may still ask.
func (s *stream) owesAssignment(p *pass, text string, n *cache.Name) bool {
	eds := s.of(wire.EndpointType)
	if at, named := eds.find(n); named {
		return s.owesNamed(p, eds, eds.names[at])
	}
	by := eds.memberOf(text)
	if by == nil {
		return s.of(wire.ClusterType).pending
	}
	if n == nil {
		return false
	}
	e := p.head.Type(by.key).Wildcard.Get(n)
	return e.Present() && !e.Resource.Released() && (e.Seq > by.sentUpTo || slices.Contains(by.resend, text))
}

// owesNamed is owesAssignment for a name that the client subscribed to.
func (s *stream) owesNamed(p *pass, eds *subscription, n subscribed) bool {
	e, seq := p.head.Type(wire.EndpointType).Lookup(n.name)
	if e != nil {
		return e.Present() && !e.Resource.Released() && seq > n.sent
	}
	asked := n.name.Asked()
	if asked.IsZero() {
		asked = eds.namesSince // the origin is about to be asked
	}
	return p.head.From(n.name).Connected && p.now.Before(asked.Add(s.cfg.AckWait))
}

// saidState reports whether the client said in its first request that it holds
// resources of the type.
func (s *subscription) returns() bool {
	return cmp.Or(s.parent, s).initialVersion != "" || s.initialCount > 0
}

// opening reports whether the client returns with resources of the type and was told
// nothing of it yet on this stream.
func (s *subscription) firstLook() bool { return s.scannedUpTo == 0 && s.returns() }
