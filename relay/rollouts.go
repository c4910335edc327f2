package relay

import (
	"context"
	"encoding/hex"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// rollouts are the rollouts of the origins' changes (TENDER_ROLLOUT). A nil one distributes changes to all clients at once. Its
// methods may be called from any goroutine.
type rollouts struct {
	stages      rollout.Stages
	router      *router
	controllers []*rollout.Controller // by origin
	log         *slog.Logger

	relayLogged sync.Once // that a client is a relay is logged
}

// newRollouts returns the rollouts of a relay's origins; nil if they are off.
func newRollouts(g *groups) *rollouts {
	cfg := &g.cfg
	if len(cfg.Rollout) == 0 {
		return nil
	}
	r := &rollouts{stages: cfg.Rollout, router: g.router, log: g.log}
	shape := rollout.Config{Stages: cfg.Rollout, Refusals: cfg.RolloutRefusals, Hold: cfg.MassDeleteHold}
	var check *rollout.Check
	if cfg.RolloutCheck != "" {
		check, shape.Checked = &rollout.Check{URL: cfg.RolloutCheck, Query: cfg.RolloutQuery}, true
	}
	for i, name := range cfg.OriginNames() {
		r.controllers = append(r.controllers, rollout.NewController(rollout.ControllerConfig{
			Config: shape, Origin: name, Check: check, Waits: g.isStagedType,
			Observed: func() iter.Seq[downstream.Observed] { return g.observed() },
			Frozen:   func() bool { _, frozen := g.freezeOf(i); return frozen },
			Decided:  g.saveDecisions,
			Changed: func(was, is *rollout.Status) {
				if is.Outcomes.Promoted > was.Outcomes.Promoted || is.Outcomes.Undone > was.Outcomes.Undone {
					g.decisions.snapshots.writeSoon() // or a relay that is killed would go back to the last good before
				}
				g.tracer.Origin(name).Changed(was, is)
			},
			Logger: g.log.With(slog.String("origin_name", name)),
		}, g.decisions.rejected[i]))
	}
	return r
}

// start distributes changes until ctx ends. Cold says that no view was restored.
func (r *rollouts) start(ctx context.Context, cold bool, running *sync.WaitGroup) {
	if r == nil {
		return
	}
	for _, c := range r.controllers {
		running.Go(func() { c.Run(ctx, cold) })
	}
}

// addParts has a view be made with cohorts, and returns its parts by source.
func (r *rollouts) addParts(cfg *cache.Config, group string) (parts []*rollout.Part) {
	if r == nil {
		return nil
	}
	for source := range cfg.Sources {
		key := rollout.PartKey{Group: group, Shared: source >= len(r.controllers)}
		parts = append(parts, r.controllers[source%len(r.controllers)].NewPart(key))
	}
	cfg.Cohorts = len(r.stages)
	cfg.Waiting = func(source int, now cache.Waiting) { parts[source].SetWaiting(now) }
	return parts
}

// linger returns how long a node group keeps shared names that no client wants any more: with rollouts, clients that return are to
// find the last good. Without, the shared view alone keeps them.
func (r *rollouts) linger(cfg *Config) time.Duration {
	if r == nil {
		return 0
	}
	return cfg.Linger
}

// joinParts has the parts of an origin take part in its rollouts: what it says to a node group, and what groups share of it.
func (r *rollouts) joinParts(parts []*rollout.Part, origin int, view *cache.View, own, sharing *upstream.Control) {
	if r == nil {
		return
	}
	shared := r.router.sharedSource(origin)
	parts[origin].Join(view, origin, own)
	parts[shared].Join(view, shared, sharing)
}

// newControl returns the control of what a group shares with others; nil if rollouts are off.
func (r *rollouts) newControl() *upstream.Control {
	if r == nil {
		return nil
	}
	return upstream.NewControl(false, nil)
}

// leaveParts ends that.
func (r *rollouts) leaveParts(parts []*rollout.Part) {
	for _, p := range parts {
		p.Leave()
	}
}

// admit gives a stream that begins the view of its cohort, and has it observed.
func (r *rollouts) admit(to *downstream.Group, n *corepb.Node, by downstream.Caller) {
	if r == nil {
		return
	}
	if by.Relay {
		r.relayLogged.Do(func() {
			r.log.Warn("a relay is among the clients: rollouts belong into the lowest tier, where the proxies are", slog.String("node", n.GetId()))
		})
	}
	cohort := r.stages.Cohort(n, by.Relay)
	observer := rollout.Observe(rollout.Client{Node: n.GetId(), Peer: by.Peer, Cohort: cohort}, to.Key, r.controllers)
	to.View, to.Observer = to.View.Cohort(cohort), observer
	left := to.Leave
	to.Leave = sync.OnceFunc(func() {
		observer.Ended()
		left()
	})
}

// selectsBy reports whether a stage selects clients by a field of the Node, or by a part of it.
func (r *rollouts) selectsBy(field string) bool {
	return r != nil && slices.ContainsFunc(r.stages, func(s rollout.Stage) bool {
		of, _, _ := strings.Cut(s.Field, ".")
		return of == field
	})
}

// anyOpen reports whether any rollout is under way: then groups that nobody is in are kept.
func (r *rollouts) anyOpen() bool {
	return r != nil && slices.ContainsFunc(r.controllers, func(c *rollout.Controller) bool { return c.Status().Phase != rollout.Current })
}

// statuses returns how the rollouts stand, by origin; nil if they are off.
func (r *rollouts) statuses() (all []*rollout.Status) {
	if r == nil {
		return nil
	}
	for _, c := range r.controllers {
		all = append(all, c.Status())
	}
	return all
}

// freezeChanged has the rollout of an origin look whether it is frozen.
func (r *rollouts) freezeChanged(origin int) {
	if r != nil {
		r.controllers[origin].Poke()
	}
}

// rejected returns what a later process is to know of editions.
func (r *rollouts) rejected() (all []snapshot.Rejected) {
	if r == nil {
		return nil
	}
	for _, c := range r.controllers {
		for _, e := range c.Rejected() {
			all = append(all, encodeEdition(c.Status().Origin, e))
		}
	}
	return all
}

// encodeEdition returns a rejected edition as it is stored.
func encodeEdition(origin string, e *rollout.Rejected) snapshot.Rejected {
	saved := snapshot.Rejected{Origin: origin, Reason: e.Reason, At: e.At.Round(0), Ended: e.Ended.Round(0), Cohorts: e.Cohorts}
	for key, types := range e.Changes {
		part := snapshot.RejectedPart{Group: key.Group, Shared: key.Shared, Resources: make(map[string]map[string]string)}
		for typ, names := range types {
			digests := make(map[string]string, len(names))
			for name, digest := range names {
				if digests[name] = ""; digest != (wire.Digest{}) {
					digests[name] = hex.EncodeToString(digest[:])
				}
			}
			part.Resources[typ] = digests
		}
		saved.Parts = append(saved.Parts, part)
	}
	if e.Sum != (wire.Digest{}) {
		saved.Sum = hex.EncodeToString(e.Sum[:])
	}
	slices.SortFunc(saved.Parts, func(a, b snapshot.RejectedPart) int {
		return rollout.PartKey{Group: a.Group, Shared: a.Shared}.Compare(rollout.PartKey{Group: b.Group, Shared: b.Shared})
	})
	return saved
}

// decodeEdition returns a rejected edition that was stored. A digest that cannot be read is that of content that no
// resource has.
func decodeEdition(saved snapshot.Rejected) *rollout.Rejected {
	e := &rollout.Rejected{Reason: saved.Reason, At: saved.At, Ended: saved.Ended, Cohorts: saved.Cohorts, Changes: make(rollout.Changes)}
	if sum, err := hex.DecodeString(saved.Sum); err == nil && len(sum) == len(e.Sum) {
		copy(e.Sum[:], sum)
	}
	for _, part := range saved.Parts {
		types := make(map[string]map[string]wire.Digest)
		for typ, digests := range part.Resources {
			names := make(map[string]wire.Digest, len(digests))
			for name, text := range digests {
				var digest wire.Digest
				if n, err := hex.Decode(digest[:], []byte(text[:min(len(text), 2*len(digest))])); err != nil || n != len(digest) && n != 0 {
					digest = wire.Digest{0: 1}
				}
				names[name] = digest
			}
			types[typ] = names
		}
		e.Changes[rollout.PartKey{Group: part.Group, Shared: part.Shared}] = types
	}
	return e
}
