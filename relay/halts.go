package relay

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// tierHalts tell relays below what rollouts have halted here and above, and rollouts what relays above have told (B.55). Halts go
// down only, on the streams of views: a relay is told of the resources of its node group, and hears of those of the view. Methods
// may be called from any goroutine.
type tierHalts struct {
	rollouts *rollouts // nil without rollouts
	origins  []string  // names
	follow   bool
	instance string
	log      *slog.Logger
	below    haltsBelow

	mu      sync.Mutex
	views   map[heardKey]*heardView
	numbers uint64 // number of views so far
	listed  map[listedHalt]int
}

// A listedHalt is a halt that a target tells on the streams of some number of views. It is logged once.
type listedHalt struct {
	origin int
	target string
	at     int64 // Unix time in ns
}

// A heardKey identifies a view: that of a node group, or the shared one for client features.
type heardKey struct {
	origin int
	name   string // key of the group, or features
	shared bool
}

// A heardView is what the relays above have told on the streams of a view. The mutex of tierHalts guards it.
type heardView struct {
	key      heardKey
	features string // of the shared view of a node group
	number   uint64
	byTarget map[string]*heardHalts
	refused  bool // the last message was refused, and logged
	gone     bool
}

// heardHalts are what a target has told last. They are immutable. Sections have no node group.
type heardHalts struct {
	instance   string
	halted     []rollout.Decision // as ordered in the message
	incomplete bool               // the target has not told all
}

// with returns the halts with those that the same processes have told before, if they have not told all now.
func (h *heardHalts) with(before *heardHalts) *heardHalts {
	if h == nil || before == nil || !h.incomplete || before.instance != h.instance {
		return h
	}
	all := *h
	kept := before.without(h)
	all.halted = slices.Concat(h.halted, kept[:min(len(kept), max(maxHalts-len(h.halted), 0))])
	return &all
}

// newTierHalts returns the tierHalts of the views of g.
func newTierHalts(g *groups, instance string) *tierHalts {
	return &tierHalts{
		rollouts: g.rollouts, origins: g.settings.originNames(), follow: g.settings.followHalts, instance: instance, log: g.log,
		below: haltsBelow{tell: func() {}, encoded: make(map[string][]byte)}, views: make(map[heardKey]*heardView), listed: make(map[listedHalt]int),
	}
}

// hearOn makes a view hear what relays above tell. The caller must call leave with the result when the view ends.
func (h *tierHalts) hearOn(c *upstream.Control, key heardKey, features string) *heardView {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers++
	v := &heardView{key: key, features: features, number: h.numbers, byTarget: make(map[string]*heardHalts)}
	h.views[key] = v
	h.below.forget(key.name)
	c.NotifyHalts(func(target string, told []byte) { h.hear(v, target, told) })
	return v
}

// leave forgets what a view has heard.
func (h *tierHalts) leave(v *heardView) {
	h.mu.Lock()
	if v.gone = true; h.views[v.key] == v {
		delete(h.views, v.key)
		h.below.forget(v.key.name)
	}
	for target, heard := range v.byTarget {
		h.list(v.key.origin, target, heard, nil)
	}
	h.mu.Unlock()
	for target, heard := range v.byTarget {
		if h.below.changed(); len(heard.halted) > 0 {
			h.pass(v.key.origin, target)
		}
	}
}

// hear handles what a target has told on a stream of a view; nil if it tells nothing. An invalid message changes nothing: what
// the target has told before remains in force. So does, after a message with an invalid halt, what that does not have.
func (h *tierHalts) hear(v *heardView, target string, told []byte) {
	var is *heardHalts
	var err error
	if told != nil {
		is, err = decodeHalts(told)
	}
	valid := told == nil || is != nil
	var begun, ended []rollout.Decision
	h.mu.Lock()
	was, refused := v.byTarget[target], v.refused
	is = is.with(was)
	if v.refused = err != nil; valid && !v.gone {
		if v.byTarget[target] = is; is == nil {
			delete(v.byTarget, target)
		}
		begun, ended = h.list(v.key.origin, target, was, is)
	}
	h.mu.Unlock()
	log := h.log.With(slog.String("origin_name", h.origins[v.key.origin]), slog.String("relay", target))
	logRefused(log, v.key, refused, err)
	if !valid || was == nil && is == nil {
		return
	}
	h.logHalts(log, v.key, begun, ended)
	h.pass(v.key.origin, target)
	h.below.changed()
}

// logRefused logs that a message is refused, in part at least, or that one is valid again.
func logRefused(log *slog.Logger, key heardKey, was bool, err error) {
	switch {
	case err != nil && !was:
		log.Warn("halts of a relay above refused; its previous halts stay in effect",
			slog.String("group", key.name), slog.Any("err", err))
	case err == nil && was:
		log.Info("halts of a relay above valid again", slog.String("group", key.name))
	}
}

// list records that a target tells other halts on the streams of a view. It returns those that it tells for the first view, and
// those that it tells for none any longer. mu must be held.
func (h *tierHalts) list(origin int, target string, was, is *heardHalts) (begun, ended []rollout.Decision) {
	count := func(all []rollout.Decision, by int) (turned []rollout.Decision) {
		for _, d := range all {
			of := listedHalt{origin, target, d.At.UnixNano()}
			before := h.listed[of]
			if h.listed[of] += by; h.listed[of] == 0 {
				delete(h.listed, of)
			}
			if before == 0 || h.listed[of] == 0 {
				turned = append(turned, d)
			}
		}
		return turned
	}
	return count(is.without(was), 1), count(was.without(is), -1)
}

// logHalts logs which halts have begun and ended, with the view that was told so.
func (h *tierHalts) logHalts(log *slog.Logger, key heardKey, begun, ended []rollout.Decision) {
	log = log.With(slog.String("group", key.name))
	for _, d := range begun {
		log.Warn("a relay above has halted changes", slog.String("part", d.Part), slog.String("reason", d.Reason),
			slog.Bool("follow_halts", h.follows()))
	}
	for _, d := range ended {
		log.Info("a relay above has ended a halt", slog.String("part", d.Part))
	}
}

// without returns the halts that others do not have.
func (h *heardHalts) without(other *heardHalts) (only []rollout.Decision) {
	if h == nil {
		return nil
	}
	for _, d := range h.halted {
		if other == nil || !slices.ContainsFunc(other.halted, func(o rollout.Decision) bool { return isSameHalt(o, d) }) {
			only = append(only, d)
		}
	}
	return only
}

// isSameHalt reports whether two decisions are one, of which a relay may tell different resources in different node groups, and,
// with other rules, another name.
func isSameHalt(a, b rollout.Decision) bool { return a.At.Equal(b.At) }

// follows reports whether the relay follows halts of relays above.
func (h *tierHalts) follows() bool { return h.follow && h.rollouts != nil }

// pass tells the rollouts of an origin what a target has told on the streams of all views.
func (h *tierHalts) pass(origin int, target string) {
	if !h.follows() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock() // so that the newest is the last
	instance, heard := h.heardOf(origin, target)
	if c := h.rollouts.controllers[origin]; instance == "" {
		c.Forget(target)
	} else {
		c.Hear(target, instance, heard)
	}
}

// heardOf returns what a target has told, for rollouts: with the node groups of this relay. The instance is that of all processes
// which had a part in it; it is empty if the target has told nothing. mu must be held.
func (h *tierHalts) heardOf(origin int, target string) (instance string, all rollout.Decisions) {
	var instances []string
	for key, own := range h.views {
		if key.origin != origin || key.shared {
			continue
		}
		for _, v := range h.viewsOf(own) {
			heard := v.byTarget[target]
			if heard == nil {
				continue
			}
			instances = append(instances, heard.instance)
			all.Incomplete = all.Incomplete || heard.incomplete
			for _, d := range heard.halted {
				all.Halted = addHalt(all.Halted, inGroup(d, key.name, v.key.shared))
			}
		}
	}
	if len(instances) == 0 {
		return "", all
	}
	slices.Sort(instances)
	slices.SortFunc(all.Halted, func(a, b rollout.Decision) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Part, b.Part))
	})
	return hashOf(slices.Compact(instances)), all
}

// viewsOf returns the views that serve a node group, of which one is its own. mu must be held.
func (h *tierHalts) viewsOf(own *heardView) []*heardView {
	if shared := h.views[heardKey{own.key.origin, own.features, true}]; shared != nil {
		return []*heardView{own, shared}
	}
	return []*heardView{own}
}

// inGroup returns a halt with the node group of a section. A shared view has shared names only.
func inGroup(d rollout.Decision, group string, shared bool) rollout.Decision {
	changes := make(rollout.Changes)
	for key, types := range d.Changes {
		if key.Shared || !shared {
			changes[rollout.SectionKey{Group: group, Shared: key.Shared}] = types
		}
	}
	d.Changes = changes
	return d
}

// addHalt adds a halt to others, or its resources to the same one.
func addHalt(all []rollout.Decision, d rollout.Decision) []rollout.Decision {
	if i := slices.IndexFunc(all, func(o rollout.Decision) bool { return isSameHalt(o, d) }); i >= 0 {
		all[i].Changes = all[i].Changes.With(d.Changes)
		all[i].Partial = all[i].Partial || d.Partial
		return all
	}
	return append(all, d)
}

// hashOf returns a short text that differs for different lists.
func hashOf(all []string) string {
	sum := sha256.Sum256([]byte(strings.Join(all, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// shown returns the halts of relays above, for operators.
func (h *tierHalts) shown(origin int) (all []admin.HaltAbove) {
	var followed []rollout.Decision
	if h.follows() {
		followed = h.rollouts.controllers[origin].Decisions().Followed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.views {
		if v.key.origin != origin {
			continue
		}
		for target, heard := range v.byTarget {
			for _, d := range heard.halted {
				resources := 0
				for _, types := range d.Changes {
					for _, names := range types {
						resources += len(names)
					}
				}
				is := admin.HaltAbove{
					Relay: target, Part: d.Part, Stage: d.Stage, Reason: d.Reason, At: d.At, Resources: resources,
					Followed: slices.ContainsFunc(followed, func(o rollout.Decision) bool { return isSameHalt(o, d) }),
				}
				i := slices.IndexFunc(all, func(o admin.HaltAbove) bool { return o.Relay == target && o.At.Equal(d.At) })
				if i < 0 {
					all = append(all, is)
				} else if all[i].Resources < resources {
					all[i] = is
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b admin.HaltAbove) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Relay, b.Relay))
	})
	return all
}

// heardIn returns what a node group has heard, by origin, whether that is not all, and the processes on the way to it. The order
// is that of the messages, each of which begins with what its relay has decided itself.
func (h *tierHalts) heardIn(group string) (path []string, above [][]rollout.Decision, incomplete bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	path, above = []string{h.instance}, make([][]rollout.Decision, len(h.origins))
	for i := range h.origins {
		own := h.views[heardKey{origin: i, name: group}]
		if own == nil {
			continue
		}
		path = append(path, fmt.Sprint(own.number))
		var lists [][]rollout.Decision
		for _, v := range h.viewsOf(own) {
			for _, target := range slices.Sorted(maps.Keys(v.byTarget)) {
				heard := v.byTarget[target]
				path = append(path, heard.instance)
				incomplete = incomplete || heard.incomplete
				var list []rollout.Decision
				for _, d := range heard.halted {
					d = inGroup(d, "", v.key.shared)
					d.Reason = rollout.HaltedAt(target, d.Reason)
					list = append(list, d)
				}
				lists = append(lists, list)
			}
		}
		for _, d := range interleave(lists) {
			above[i] = addHalt(above[i], d)
		}
	}
	return path, above, incomplete
}
