package relay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/peers"
	"github.com/xdstender/tender/relay/rollout"
)

// Bounds of the resources that the relay tells its peers of, over all decisions. What is told of a decision need not be
// complete: one resource in common is enough.
const (
	maxToldNames = 20_000
	maxToldBytes = 3 << 20 // of their names and digests; package peers reads at most 4 MiB
)

// peerRollouts tell the peers of the relay what its rollouts have decided, and the rollouts what peers have decided (B.54).
// Their methods may be called from any goroutine.
type peerRollouts struct {
	rollouts *rollouts
	tier     *peers.Tier
	instance string
	log      *slog.Logger

	mu     sync.Mutex
	mark   uint64
	answer *admin.PeerRollouts // with the mark; nil until a peer asks
	next   chan struct{}       // closed with the next decision
}

// newPeerRollouts returns the peerRollouts of a relay, or nil without rollouts or peers.
func newPeerRollouts(r *rollouts, tier *peers.Tier, instance string, log *slog.Logger) *peerRollouts {
	if r == nil || tier == nil {
		return nil
	}
	p := &peerRollouts{rollouts: r, tier: tier, instance: instance, log: log, mark: 1, next: make(chan struct{})}
	r.told = p.told
	return p
}

// told records that the rollouts have decided something.
func (p *peerRollouts) told() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark++
	p.answer = nil
	close(p.next)
	p.next = make(chan struct{})
}

// decided returns what the rollouts have decided, and a channel that is closed with the next decision. It encodes each decision
// once, however many peers ask.
func (p *peerRollouts) decided() (*admin.PeerRollouts, <-chan struct{}) {
	p.mu.Lock()
	mark, answer, next := p.mark, p.answer, p.next
	p.mu.Unlock()
	if answer != nil {
		return answer, next
	}
	answer = &admin.PeerRollouts{Instance: p.instance, Mark: fmt.Sprint(p.instance, "-", mark)}
	for _, c := range p.rollouts.controllers {
		d := c.Decisions()
		answer.Halted = append(answer.Halted, encodeDecisions(c.Origin(), d.Halted)...)
		answer.Promoted = append(answer.Promoted, encodeDecisions(c.Origin(), d.Promoted)...)
	}
	shortenDecisions(slices.Concat(answer.Halted, answer.Promoted), maxToldNames, maxToldBytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mark == mark {
		p.answer = answer
	}
	return answer, next
}

// encodeDecisions returns decisions for peers.
func encodeDecisions(origin string, all []rollout.Decision) (encoded []admin.DecidedChanges) {
	for _, d := range all {
		encoded = append(encoded, admin.DecidedChanges{
			Origin: origin, Part: d.Part, At: d.At, Reason: d.Reason, By: d.By, Stage: d.Stage, Sections: encodeChanges(d.Changes),
			Partial: d.Partial,
		})
	}
	return encoded
}

// shortenDecisions removes resources so that the bounds hold. Each decision keeps its share of them, and at least one.
func shortenDecisions(all []admin.DecidedChanges, maxNames, maxBytes int) {
	for i, d := range all {
		names, bytes := maxNames/len(all), maxBytes/len(all)
		kept := 0
		for _, s := range d.Sections {
			for _, typ := range slices.Sorted(maps.Keys(s.Resources)) {
				digests := s.Resources[typ]
				for _, name := range slices.Sorted(maps.Keys(digests)) {
					const overhead = 10 // quotes, and what separates them
					if bytes -= len(name) + len(digests[name]) + overhead; kept > 0 && (kept >= names || bytes < 0) {
						delete(digests, name)
						all[i].Partial = true
						continue
					}
					kept++
				}
			}
		}
	}
}

// decodeDecisions returns those decisions of a peer that are about an origin.
func decodeDecisions(origin string, all []admin.DecidedChanges) (decoded []rollout.Decision) {
	for _, d := range all {
		if d.Origin == origin {
			decoded = append(decoded, rollout.Decision{
				Part: d.Part, At: d.At, Reason: d.Reason, By: d.By, Stage: d.Stage, Changes: decodeChanges(d.Sections),
				Partial: d.Partial,
			})
		}
	}
	return decoded
}

// run watches the peers until ctx ends.
func (p *peerRollouts) run(ctx context.Context) {
	if p != nil {
		p.tier.Watch(ctx, p.instance, p.heard)
	}
}

// heard handles the answer of a peer, or its error; neither means that the address is that of no peer any longer.
func (p *peerRollouts) heard(address string, answer *admin.PeerRollouts, err error) {
	failed, again := false, false // which each origin knows
	for _, c := range p.rollouts.controllers {
		switch {
		case err != nil:
			failed = c.HearFailure(address, err)
		case answer == nil:
			c.Forget(address)
		default:
			origin := c.Origin()
			again = c.Hear(address, answer.Instance, rollout.Decisions{
				Halted: decodeDecisions(origin, answer.Halted), Promoted: decodeDecisions(origin, answer.Promoted),
				Incomplete: answer.Incomplete,
			})
		}
	}
	if failed {
		p.log.Warn("peer does not answer: what its rollouts halt is unknown", slog.String("peer", address), slog.Any("err", err))
	}
	if again {
		p.log.Info("peer answers again", slog.String("peer", address))
	}
}
