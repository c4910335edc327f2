package relay

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// rollouts distribute the changes of origins in stages (TENDER_ROLLOUT, TENDER_CHECK_ENVOY). If nil, changes reach all clients at once. Its
// methods may be called from any goroutine.
type rollouts struct {
	config      rollout.Config
	router      *router
	controllers []*rollout.Controller // by origin
	log         *slog.Logger

	relayLogged sync.Once // logs once that a client is a relay

	told func() // the controllers have decided something, for peers; set before they run
}

// newRollouts returns the rollouts of all origins, or nil if TENDER_ROLLOUT and TENDER_CHECK_ENVOY are off. rejected has the rejected editions
// of an earlier process by origin.
func newRollouts(g *groups, rejected [][]*rollout.Withdrawn) *rollouts {
	s := g.settings
	if !s.rollout.On() {
		return nil
	}
	r := &rollouts{config: s.rollout, router: g.router, log: g.log, told: func() {}}
	trials := new(rollout.Trials)
	for i, name := range s.originNames() {
		r.controllers = append(r.controllers, rollout.NewController(rollout.ControllerConfig{
			Config: s.rollout, Origin: name, Check: s.check, Judge: g.judge(), Trials: trials, Waits: g.isStagedType,
			Observed: func() iter.Seq[downstream.Observed] { return g.observed() },
			Frozen:   func() bool { _, frozen := g.decisions.freezeOf(i); return frozen },
			Decided:  g.saveDecisions,
			Changed: func(part int, was, is *rollout.Status) {
				if is.Outcomes.Promoted > was.Outcomes.Promoted || is.Outcomes.Undone > was.Outcomes.Undone {
					g.decisions.snapshots.writeSoon() // otherwise a relay that is killed would restore the previous last good state
				}
				g.tracer.Origin(name).Changed(part, was, is)
			},
			Told:   func() { g.rollouts.told(); g.halts.below.changed() },
			Logger: g.log.With(slog.String("origin_name", name)),
		}, rejected[i]))
	}
	return r
}

// start runs the controllers until ctx ends; running counts their goroutines. cold reports that no view was restored.
func (r *rollouts) start(ctx context.Context, cold bool, running *sync.WaitGroup) {
	if r == nil {
		return
	}
	for _, c := range r.controllers {
		running.Go(func() { c.Run(ctx, cold) })
	}
}

// addSections configures cohorts for a new view of a group, and returns the sections of the view by source.
func (r *rollouts) addSections(cfg *cache.Config, group string) (sections []*rollout.Section) {
	if r == nil {
		return nil
	}
	for source := range cfg.Sources {
		key := rollout.SectionKey{Group: group, Shared: source >= len(r.controllers)}
		sections = append(sections, r.controllers[source%len(r.controllers)].NewSection(key))
	}
	cfg.Cohorts = r.config.Views()
	cfg.SettledChanged = func(source int) { sections[source].Poke() }
	return sections
}

// follow tells the two sections of an origin in a group's view what waits for stages.
func (r *rollouts) follow(sections []*rollout.Section, origin int, own, copies *pending.List) {
	if r == nil {
		return
	}
	own.ReportStaged(sections[origin].SetWaiting)
	copies.ReportStaged(sections[r.router.sharedSource(origin)].SetWaiting)
}

// linger returns how long a node group keeps unused shared names. With rollouts it keeps them, so that returning
// clients receive the last good state. Without rollouts, only the shared view keeps them.
func (r *rollouts) linger(s *settings) time.Duration {
	if r == nil {
		return 0
	}
	return s.linger
}

// joinSections adds the two sections of an origin in a group's view to the rollouts of the origin: the resources of the node
// group, and the shared names.
func (r *rollouts) joinSections(sections []*rollout.Section, origin int, view *cache.View, control, sharing *upstream.Control) {
	if r == nil {
		return
	}
	shared := r.router.sharedSource(origin)
	sections[origin].Join(view, origin, control)
	sections[shared].Join(view, shared, sharing)
}

// leaveSections removes the sections of a removed group from the rollouts.
func (r *rollouts) leaveSections(sections []*rollout.Section) {
	for _, p := range sections {
		p.Leave()
	}
}

// admit assigns a new stream to the view of its cohort, and reports its responses to the controllers.
func (r *rollouts) admit(to *downstream.Group, n *corepb.Node, by downstream.Caller) {
	if r == nil {
		return
	}
	if by.Relay && len(r.config.Stages) > 0 {
		r.relayLogged.Do(func() {
			r.log.Warn("client is a relay; configure rollouts in the tier that proxies connect to",
				slog.String("node", n.GetId()))
		})
	}
	cohort := r.config.Stages.Cohort(n, by.Relay)
	observer := rollout.Observe(rollout.Client{Node: n.GetId(), Peer: by.Peer, Cohort: cohort}, to.Key, r.controllers)
	to.View, to.Observer = to.View.Cohort(r.config.ViewOf(cohort)), observer
	leave := to.Leave
	to.Leave = sync.OnceFunc(func() {
		observer.Ended()
		leave()
	})
}

// selectsBy reports whether a stage selects clients by a top-level field of the Node, or by a part of it.
func (r *rollouts) selectsBy(field string) bool {
	return r != nil && slices.ContainsFunc(r.config.Stages, func(s rollout.Stage) bool {
		topLevel, _, _ := strings.Cut(s.Field, ".")
		return topLevel == field
	})
}

// anyOpen reports whether a rollout is open. Groups without streams are kept while one is.
func (r *rollouts) anyOpen() bool {
	isOpen := func(c *rollout.Controller) bool { return c.Status().Phase != rollout.Current }
	return r != nil && slices.ContainsFunc(r.controllers, isOpen)
}

// statuses returns the states of the rollouts by origin, or nil if rollouts are off.
func (r *rollouts) statuses() (all []*rollout.Status) {
	if r == nil {
		return nil
	}
	for _, c := range r.controllers {
		all = append(all, c.Status())
	}
	return all
}

// freezeChanged notifies the rollout of an origin that a freeze has started or ended.
func (r *rollouts) freezeChanged(origin int) {
	if r != nil {
		r.controllers[origin].Poke()
	}
}

// rejected returns the rejected editions of all origins, for decisions.json.
func (r *rollouts) rejected() (all []snapshot.Rejected) {
	if r == nil {
		return nil
	}
	for _, c := range r.controllers {
		for _, e := range c.Withdrawn() {
			all = append(all, encodeEdition(c.Origin(), e))
		}
	}
	return all
}

// encodeEdition returns a rejected edition in the format of decisions.json.
func encodeEdition(origin string, e *rollout.Withdrawn) snapshot.Rejected {
	saved := snapshot.Rejected{
		Origin: origin, Reason: e.Reason, At: e.At.Round(0), Ended: e.Ended.Round(0), Cohorts: e.Cohorts,
		Sections: encodeChanges(e.Changes), Signaled: e.Signaled.Round(0),
	}
	if e.Peer != nil {
		saved.Peer = &snapshot.PeerHalt{Address: e.Peer.Address, Instance: e.Peer.Instance, Part: e.Peer.Part, At: e.Peer.At}
	}
	if e.Sum != (wire.Digest{}) {
		saved.Sum = hex.EncodeToString(e.Sum[:])
	}
	return saved
}

// encodeChanges returns changes in the format of decisions.json.
func encodeChanges(changes rollout.Changes) (sections []snapshot.RejectedSection) {
	for key, types := range changes {
		section := snapshot.RejectedSection{Group: key.Group, Shared: key.Shared, Resources: make(map[string]map[string]string)}
		for typ, names := range types {
			digests := make(map[string]string, len(names))
			for name, digest := range names {
				if digests[name] = ""; digest != (wire.Digest{}) {
					digests[name] = hex.EncodeToString(digest[:])
				}
			}
			section.Resources[typ] = digests
		}
		sections = append(sections, section)
	}
	slices.SortFunc(sections, func(a, b snapshot.RejectedSection) int {
		return rollout.SectionKey{Group: a.Group, Shared: a.Shared}.Compare(rollout.SectionKey{Group: b.Group, Shared: b.Shared})
	})
	return sections
}

// decodeEdition returns a rejected edition of decisions.json.
func decodeEdition(saved snapshot.Rejected) *rollout.Withdrawn {
	e := &rollout.Withdrawn{
		Reason: saved.Reason, At: saved.At, Ended: saved.Ended, Cohorts: saved.Cohorts,
		Changes: decodeChanges(saved.Sections), Signaled: saved.Signaled,
	}
	if by := saved.Peer; by != nil {
		e.Peer = &rollout.Peer{Address: by.Address, Instance: by.Instance, Part: by.Part, At: by.At}
	}
	if sum, err := hex.DecodeString(saved.Sum); err == nil && len(sum) == len(e.Sum) {
		copy(e.Sum[:], sum)
	}
	return e
}

// decodeChanges returns the changes in some sections. It replaces an invalid digest by one that no resource has.
func decodeChanges(sections []snapshot.RejectedSection) rollout.Changes {
	changes := make(rollout.Changes)
	for _, section := range sections {
		types := make(map[string]map[string]wire.Digest)
		for typ, digests := range section.Resources {
			names := make(map[string]wire.Digest, len(digests))
			for name, text := range digests {
				var digest wire.Digest
				n, err := hex.Decode(digest[:], []byte(text[:min(len(text), 2*len(digest))]))
				if err != nil || n != len(digest) && n != 0 {
					digest = wire.Digest{0: 1}
				}
				names[name] = digest
			}
			types[typ] = names
		}
		changes[rollout.SectionKey{Group: section.Group, Shared: section.Shared}] = types
	}
	return changes
}

// status returns the state of the rollout of an origin, or nil if rollouts are off.
func (r *rollouts) status(origin int) *rollout.Status {
	if r == nil {
		return nil
	}
	return r.controllers[origin].Status()
}

// chosenRollouts returns the controller of an origin, or those of all origins if the name is empty.
func (op *operations) chosenRollouts(origin string) ([]*rollout.Controller, error) {
	if op.groups.rollouts == nil {
		return nil, admin.ErrRolloutOff
	}
	all := op.groups.rollouts.controllers
	i, err := op.findOrigin(origin)
	if err != nil || i < 0 {
		return all, err
	}
	return all[i : i+1], nil
}

// rolloutStatus returns the states of the rollouts of one origin, or of all origins.
func (op *operations) rolloutStatus(origin string) (admin.Rollouts, error) {
	chosen, err := op.chosenRollouts(origin)
	if err != nil {
		return admin.Rollouts{}, err
	}
	var answer admin.Rollouts
	for _, c := range chosen {
		answer.Rollouts = append(answer.Rollouts, c.Status())
	}
	for i, name := range op.settings.originNames() {
		if halts := op.groups.halts.shown(i); len(halts) > 0 && (origin == "" || origin == name) {
			if answer.HaltedAbove == nil {
				answer.HaltedAbove = make(map[string][]admin.HaltAbove)
			}
			answer.HaltedAbove[name] = halts
		}
	}
	return answer, nil
}

// rolloutDiff returns the changes of the open editions.
func (op *operations) rolloutDiff(ctx context.Context, of admin.RolloutChoice) (admin.RolloutDiff, error) {
	chosen, err := op.chosenRollouts(of.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	done, err := op.lockCommands(ctx) // also waits until the controllers run
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	var all []operator.Edited
	for _, c := range chosen {
		differences, err := c.Diff(ctx)
		if err != nil {
			return admin.RolloutDiff{}, unavailableIfEnded(err)
		}
		for _, d := range differences {
			all = append(all, operator.Edited{Origin: c.Origin(), Difference: d})
		}
	}
	return operator.RolloutDiff(all, of)
}

// A rolloutCommand is an operator command on rollouts.
type rolloutCommand struct {
	name        string
	all, reason bool // whether the command has these arguments
	do          func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error
}

var rolloutCommands = []rolloutCommand{
	{
		name: "promote", all: true,
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			if of.All {
				return c.PromoteAll(ctx, by)
			}
			return c.Promote(ctx, of.Part, by)
		},
	},
	{
		name: "abort", reason: true,
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			return c.Abort(ctx, of.Part, of.Reason, by)
		},
	},
	{
		name: "resume",
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			return c.Resume(ctx, of.Part, by)
		},
	},
	{
		name: "undo", reason: true,
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			return c.Undo(ctx, of.Part, of.Reason, by)
		},
	},
}

// rolloutCommands returns the operator commands on rollouts. Each returns an error if rollouts are off.
func (op *operations) rolloutCommands() (all []admin.Command) {
	for _, command := range rolloutCommands {
		all = append(all, admin.NewCommand("rollout/"+command.name,
			func(ctx context.Context, of admin.RolloutScope) (admin.Rollouts, error) {
				return op.commandRollouts(ctx, command, of)
			}))
	}
	return all
}

// commandRollouts runs a command for one origin, or for all. With all origins, it skips those whose state does not
// permit the command, and fails only if no state does.
func (op *operations) commandRollouts(
	ctx context.Context, command rolloutCommand, of admin.RolloutScope,
) (admin.Rollouts, error) {
	if err := command.check(of); err != nil {
		return admin.Rollouts{}, err
	}
	chosen, err := op.chosenRollouts(of.Origin)
	if err != nil {
		return admin.Rollouts{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	done, err := op.lockCommands(ctx)
	if err != nil {
		return admin.Rollouts{}, err
	}
	defer done()
	ctx = context.WithoutCancel(ctx) // all origins, or none
	var (
		answer admin.Rollouts
		cannot []error
	)
	for _, c := range chosen {
		switch err := command.do(ctx, c, of, by); {
		case err == nil:
			answer.Rollouts = append(answer.Rollouts, c.Status())
		case !isStateError(err):
			return answer, unavailableIfEnded(err)
		case len(chosen) > 1:
			cannot = append(cannot, fmt.Errorf("origin %q: %w", c.Origin(), err))
		default:
			cannot = append(cannot, err)
		}
	}
	if len(answer.Rollouts) == 0 {
		return answer, admin.Refuse(http.StatusConflict, errors.Join(cannot...))
	}
	return answer, nil
}

// check returns an error if the arguments are invalid for the command.
func (c *rolloutCommand) check(of admin.RolloutScope) error {
	switch {
	case of.All && !c.all:
		return admin.Refuse(http.StatusBadRequest, errors.New("all: only promote accepts it"))
	case of.All && of.Part != "":
		return admin.Refuse(http.StatusBadRequest, fmt.Errorf("part: %.256q and all exclude one another", of.Part))
	case of.Reason != "" && !c.reason:
		return admin.Refuse(http.StatusBadRequest, errors.New("reason: only abort and undo accept it"))
	default:
		return of.Check()
	}
}

// unavailableIfEnded gives the error of a relay that shuts down the status 503, so that the caller retries at another
// replica.
func unavailableIfEnded(err error) error {
	if errors.Is(err, rollout.ErrEnded) {
		return admin.Refuse(http.StatusServiceUnavailable, err)
	}
	return err
}

// isStateError reports whether a command failed because the state of the rollout does not permit it.
func isStateError(err error) bool {
	return errors.Is(err, rollout.ErrNothingOpen) || errors.Is(err, rollout.ErrNotHalted) ||
		errors.Is(err, rollout.ErrNothingToUndo)
}
