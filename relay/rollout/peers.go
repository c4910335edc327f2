package rollout

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// promotedFor is how long a relay tells its peers of the promotion of an operator: they may make the edition later.
const promotedFor = 10 * time.Minute

// A Decision is what a relay has decided about changes that belong together: their rollout is halted, or an operator has
// promoted them. It is immutable. Others know it by its time, which no other decision of the relay has (B.57).
type Decision struct {
	Part    string    // the resource after which they are named, which may be another one for some relays
	At      time.Time // on the clock of the relay
	Reason  string    // of a halt
	By      string    // the operator of a promotion
	Stage   int       // number of stages that are, or were, served the changes; with the rest, one more than there are stages
	Changes Changes

	// Partial is true if it is, or may be, about more than Changes: those that had room in a message, or that this relay has of
	// what another one has halted.
	Partial bool
}

// Decisions are what a relay has decided about the changes of an origin, without what it has followed of others.
type Decisions struct {
	Halted, Promoted []Decision

	// Followed are the halts of others that the relay follows, as they have told them: part and time are theirs. Peers are
	// not told of them, but relays below, which have no other source.
	Followed []Decision

	// Incomplete is true if there are more than those listed. Then none has ended that is not.
	Incomplete bool
}

// A Peer is the decision of a peer that a part follows.
type Peer struct {
	Address  string
	Instance string    // of the process
	Part     string    // the resource after which the peer has named the changes
	At       time.Time // of the decision
}

// A PeerFailure is a peer that does not answer. Its decisions are unknown.
type PeerFailure struct {
	Address string    `json:"address"`
	Since   time.Time `json:"since"` // of the first request in a row without an answer
	Error   string    `json:"error"`
}

// A peer is what is known of a peer.
type peer struct {
	address, instance string
	Decisions         // the last ones
	failure           *PeerFailure
}

// peers is what is known of all peers. Any goroutine may use it.
type peers struct {
	mu        sync.Mutex
	byAddress map[string]*peer // the values are immutable
	changes   uint64
}

// follows returns what a part follows if it follows a decision of the peer.
func (p *peer) follows(d Decision) Peer { return Peer{p.address, p.instance, d.Part, d.At} }

// tells reports whether the peer tells the decision of some time.
func (p *peer) tells(at time.Time) bool {
	is := func(d Decision) bool { return d.At.Equal(at) }
	return slices.ContainsFunc(p.Halted, is) || slices.ContainsFunc(p.Promoted, is)
}

// asTold returns the decision as that of the process that tells it now. It reports whether it has ended: the process that told it
// last does not any longer, and no other one. Another process that does not know of it has not ended it. The process may have
// moved to another address, if that one is of no peer any longer.
func (p Peer) asTold(known []*peer) (is Peer, ended bool) {
	var at, teller, moved *peer
	for _, of := range known {
		if of.address == p.Address {
			at = of
		}
		if of.tells(p.At) && (teller == nil || of == at) {
			teller = of
		}
		if of.instance == p.Instance {
			moved = of
		}
	}
	if teller != nil {
		p.Address, p.Instance = teller.address, teller.instance
		return p, false
	}
	of := cmp.Or(at, moved)
	return p, of != nil && of.instance == p.Instance && !of.Incomplete
}

// edit replaces what is known of a peer; nil forgets it. It reports whether the peer did not answer.
func (p *peers) edit(address string, change func(old peer) *peer) (failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byAddress == nil {
		p.byAddress = make(map[string]*peer)
	}
	old := peer{address: address}
	if known := p.byAddress[address]; known != nil {
		old = *known
	}
	if is := change(old); is != nil {
		p.byAddress[address] = is
	} else {
		delete(p.byAddress, address)
	}
	if is := p.byAddress[address]; is == nil || is.failure == nil { // a failure is no decision
		p.changes++
	}
	return old.failure != nil
}

// all returns what is known of each peer, ordered by address, and a number that tells whether that has changed.
func (p *peers) all() (all []*peer, changes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.byAddress), func(a, b *peer) int { return cmp.Compare(a.address, b.address) }), p.changes
}

// failures returns the peers that do not answer.
func (p *peers) failures() (all []PeerFailure) {
	known, _ := p.all()
	for _, of := range known {
		if of.failure != nil {
			all = append(all, *of.failure)
		}
	}
	return all
}

// Hear records what a peer has decided. It reports whether the peer did not answer before.
func (c *Controller) Hear(address, instance string, decided Decisions) (again bool) {
	defer c.Poke()
	return c.peers.edit(address, func(peer) *peer { return &peer{address: address, instance: instance, Decisions: decided} })
}

// HearFailure records that a peer does not answer, and reports whether it did before. What it has decided remains in force.
func (c *Controller) HearFailure(address string, err error) (first bool) {
	defer c.Poke()
	return !c.peers.edit(address, func(old peer) *peer {
		since := time.Now()
		if old.failure != nil {
			since = old.failure.Since
		}
		old.failure = &PeerFailure{address, since, err.Error()}
		return &old
	})
}

// Forget drops what is known of a relay that is no peer any longer. A part that it has halted remains halted.
func (c *Controller) Forget(address string) {
	c.peers.edit(address, func(peer) *peer { return nil })
	c.Poke()
}

// agree reports whether changes have a resource in common with others, and the same content of all that they have in
// common. The clients of replicas differ, and with them the names and the node groups.
func (c Changes) agree(o Changes) bool {
	common := false
	for key, types := range o {
		for typ, names := range types {
			for name, digest := range names {
				is, has := c[key][typ][name]
				if has && is != digest {
					return false
				}
				common = common || has
			}
		}
	}
	return common
}

// Name returns the resource after which a part with the changes is named.
func (c Changes) Name() string { return summarize(c).name }

// Empty reports whether the changes have no resource.
func (c Changes) Empty() bool {
	for _, types := range c {
		for _, names := range types {
			if len(names) > 0 {
				return false
			}
		}
	}
	return true
}

// With returns the changes with others. If both change a resource, the change of the others counts.
func (c Changes) With(others Changes) Changes {
	all := make(Changes)
	for _, of := range []Changes{c, others} {
		for section, types := range of {
			if all[section] == nil {
				all[section] = make(map[string]map[string]wire.Digest)
			}
			for key, names := range types {
				if all[section][key] == nil {
					all[section][key] = make(map[string]wire.Digest)
				}
				maps.Copy(all[section][key], names)
			}
		}
	}
	return all
}

// A following is what a part has of the decisions of peers.
type following struct {
	halt     *Peer       // the halt that the part follows; nil if it does not
	answered []Peer      // promotions that it has followed, and what an operator of this relay has overruled
	had      []time.Time // of the halts of its edition that came after all clients had it
	compared [2]uint64   // with which decisions, and which of its editions
}

// answer records that the part need not follow a decision any longer. It reports whether it still had to.
func (f *following) answer(of Peer) (first bool) {
	if f.hasAnswered(of) {
		return false
	}
	f.answered = append(f.answered, of)
	return true
}

// hasAnswered reports whether the part need not follow a decision any longer.
func (f *following) hasAnswered(of Peer) bool {
	return slices.ContainsFunc(f.answered, func(other Peer) bool { return other.At.Equal(of.At) })
}

// followPeers halts, promotes and resumes parts as peers have decided (B.54).
func (c *Controller) followPeers(ctx context.Context, now time.Time) {
	known, changes := c.peers.all()
	if c.rejections.heard != changes {
		c.rejections.heard = changes
		if c.rejections.hear(known) {
			c.cfg.Decided(ctx)
		}
	}
	for _, p := range c.parts {
		if p.machine.phase != Halted {
			p.follows.halt = nil
		} else if of := p.follows.halt; of != nil {
			is, ended := of.asTold(known)
			if p.follows.halt, p.machine.halt.Peer = &is, is.Address; ended {
				c.resumeWithPeer(ctx, now, p)
			}
		}
		at := [2]uint64{changes, uint64(p.machine.edition)}
		if p.follows.compared == at {
			continue
		}
		if p.follows.compared[1] != at[1] {
			p.follows.had = nil
		}
		if p.follows.compared = at; p.machine.phase == Gathering {
			c.withdrawWithPeer(p, known)
		} else {
			c.follow(ctx, now, p, known)
		}
	}
}

// withdrawWithPeer withdraws the superseded edition of a part from the first cohort if a peer has halted it.
func (c *Controller) withdrawWithPeer(p *part, known []*peer) {
	if p.machine.retained == nil {
		return
	}
	superseded := c.changesOf(p, *p.machine.retained)
	for _, of := range known {
		for _, d := range of.Halted {
			if superseded.agree(d.Changes) && !p.follows.hasAnswered(of.follows(d)) {
				p.machine.retained = nil
				return
			}
		}
	}
}

// resumeWithPeer starts the rollout of a part again that a peer had halted.
func (c *Controller) resumeWithPeer(ctx context.Context, now time.Time, p *part) {
	if err := p.machine.Resume(now); err != nil {
		return
	}
	c.allowRejected(ctx, p)
	c.cfg.Logger.Info("rollout resumed with a peer", slog.String("part", p.edition.name), slog.String("peer", p.follows.halt.Address))
	p.follows.halt = nil
}

// follow follows the decisions of peers about the changes of a part. Promotions come first: an operator may have promoted
// what was halted.
func (c *Controller) follow(ctx context.Context, now time.Time, p *part, known []*peer) {
	mine := c.changesOf(p, p.machine.edition)
	for _, of := range known {
		for _, d := range of.Promoted {
			if p.machine.phase.hasEdition() && mine.agree(d.Changes) && p.follows.answer(of.follows(d)) {
				c.promoteWithPeer(ctx, now, p, of, d)
			}
		}
	}
	for _, of := range known {
		for _, d := range of.Halted {
			if mine.agree(d.Changes) {
				c.haltWithPeer(now, p, of, d)
			}
		}
	}
	p.follows.forget(known)
}

// forget drops the decisions that have ended.
func (f *following) forget(known []*peer) {
	told := f.answered[:0]
	for _, a := range f.answered {
		if is, ended := a.asTold(known); !ended {
			told = append(told, is)
		}
	}
	f.answered = told
	f.had = slices.DeleteFunc(f.had, func(at time.Time) bool {
		return !slices.ContainsFunc(known, func(of *peer) bool { return of.tells(at) })
	})
}

// haltWithPeer halts a part that a peer has halted, unless all clients have its changes.
func (c *Controller) haltWithPeer(now time.Time, p *part, of *peer, d Decision) {
	m := p.machine
	switch from := of.follows(d); {
	case m.phase.inProgress() && !p.follows.hasAnswered(from):
		p.haltWith(now, from, HaltedAt(of.address, d.Reason))
	case m.phase == Current && m.previous != nil && m.lastGood == m.edition && !slices.ContainsFunc(p.follows.had, d.At.Equal):
		p.follows.had = append(p.follows.had, d.At) // which halts the changes if they come again
		c.cfg.Logger.Warn("a peer has halted changes that all clients of this relay have: consider tender rollout undo",
			slog.String("part", p.edition.name), slog.String("peer", of.address), slog.String("reason", d.Reason))
	}
}

// HaltedAt returns the reason of a halt that another relay has told. Its own reason is empty if not all of it may be known here.
func HaltedAt(address, reason string) string {
	return strings.TrimSuffix(fmt.Sprintf("halted at %s: %s", address, reason), ": ")
}

// haltWith halts a part because of the halt of a peer, which it follows.
func (p *part) haltWith(now time.Time, of Peer, reason string) {
	p.follows.halt = &of
	p.machine.reject(now, reason)
	p.machine.halt.Peer = of.Address
}

// promoteWithPeer promotes a part as far as an operator has promoted it at a peer. What is halted here is promoted only if all
// clients of the peer have it: then the operator has overruled halts.
func (c *Controller) promoteWithPeer(ctx context.Context, now time.Time, p *part, of *peer, d Decision) {
	switch all := d.Stage > len(c.cfg.Stages); {
	case all && (p.machine.phase != Halted || c.hasContent(p)):
		p.machine.finishPromotion(now, p.facts.Behind)
	case all: // what is pinned next is promoted, since this edition cannot be served
		p.follows.answered = slices.DeleteFunc(p.follows.answered, func(other Peer) bool { return other.At.Equal(d.At) })
		if p.machine.Resume(now) == nil {
			c.allowRejected(ctx, p)
		}
		return
	case p.machine.phase == Halted:
		return
	default:
		for p.machine.phase.inProgress() && p.machine.State().Stage < d.Stage {
			if err := p.machine.Promote(now, p.facts); err != nil {
				return
			}
		}
	}
	c.allowRejected(ctx, p)
	c.logCommand(p, "promote", d.By, slog.String("peer", of.address))
}

// hasContent reports whether the edition of a part has content. The relay has none of what an earlier process halted, and of
// what was undone.
func (c *Controller) hasContent(p *part) bool {
	return slices.ContainsFunc(c.tracker.joined(), func(s *Section) bool { return s.edition(p, p.machine.edition).Shows() })
}

// overrulePeers makes a part ignore what peers have promoted of its changes so far, and with halts, also what they have halted:
// an operator of this relay decides.
func (c *Controller) overrulePeers(p *part, halts bool) {
	known, _ := c.peers.all()
	mine := c.changesOf(p, p.machine.edition)
	for _, of := range known {
		overruled := of.Promoted
		if halts {
			overruled = slices.Concat(of.Halted, overruled)
		}
		for _, d := range overruled {
			if mine.agree(d.Changes) {
				p.follows.answer(of.follows(d))
			}
		}
	}
	if of := p.follows.halt; of != nil && halts {
		p.follows.answer(*of) // the peer may not have been heard since the start
	}
	p.follows.halt = nil
}

// recordPromotion records that an operator of this relay has promoted a part, for peers.
func (c *Controller) recordPromotion(p *part, now time.Time, by string) {
	stage := p.machine.State().Stage
	if !p.machine.phase.inProgress() {
		stage = len(c.cfg.Stages) + 1
	}
	c.promotedHere = append(c.promotedHere, Decision{
		Part: p.edition.name, At: c.distinct(now), By: by, Stage: stage, Changes: c.changesOf(p, p.machine.edition),
	})
}

// distinct returns a time, or the first one after it that is of no decision.
func (c *Controller) distinct(at time.Time) time.Time {
	for slices.ContainsFunc(c.rejections.withdrawn, func(e *Withdrawn) bool { return e.At.Equal(at) }) ||
		slices.ContainsFunc(c.promotedHere, func(d Decision) bool { return d.At.Equal(at) }) {
		at = at.Add(1)
	}
	return at
}

// Decisions returns what the relay has decided itself. Any goroutine may call it.
func (c *Controller) Decisions() Decisions {
	if told := c.told.Load(); told != nil {
		return *told
	}
	return Decisions{}
}

// halts returns the halts that are active, as decisions.
func (r *rejections) halts() (is Decisions) {
	for _, e := range r.withdrawn {
		switch d := (Decision{At: e.At, Reason: e.Reason, Stage: e.Cohorts, Changes: e.Changes}); {
		case e.part == nil || !e.Ended.IsZero():
		case e.Peer == nil:
			d.Part = e.part.edition.name
			is.Halted = append(is.Halted, d)
		default:
			d.Part, d.At, d.Partial = e.Peer.Part, e.Peer.At, true
			is.Followed = append(is.Followed, d)
		}
	}
	return is
}

// tell publishes what the relay has decided itself, for peers. It returns when to call it again; zero if only a decision is a
// reason.
func (c *Controller) tell(now time.Time) (next time.Time) {
	c.promotedHere = slices.DeleteFunc(c.promotedHere, func(d Decision) bool { return now.Sub(d.At) >= promotedFor })
	was, is := c.Decisions(), c.rejections.halts()
	same := func(a, b Decision) bool { return a.At.Equal(b.At) && a.Part == b.Part && a.Stage == b.Stage }
	if !slices.EqualFunc(was.Halted, is.Halted, same) {
		c.promotedHere = slices.DeleteFunc(c.promotedHere, func(d Decision) bool { // halted since: undone, for example
			return slices.ContainsFunc(is.Halted, func(h Decision) bool { return h.At.After(d.At) && h.Changes.agree(d.Changes) })
		})
	}
	is.Promoted = slices.Clone(c.promotedHere)
	if !slices.EqualFunc(was.Halted, is.Halted, same) || !slices.EqualFunc(was.Promoted, is.Promoted, same) ||
		!slices.EqualFunc(was.Followed, is.Followed, same) {
		c.told.Store(&is)
		c.cfg.Told()
	}
	if len(c.promotedHere) > 0 {
		next = c.promotedHere[0].At.Add(promotedFor)
	}
	return next
}
