package relay

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// Bounds of what a relay tells a relay below of one node group. Halts that do not fit are left out, the oldest first.
const (
	maxHaltsBytes     = 512 << 10
	maxHalts          = 100
	maxHaltNames      = 2_000
	maxHaltNamesBytes = 192 << 10
	maxHaltText       = 1 << 10 // bytes of a reason
	maxHaltPart       = 4 << 10 // bytes of the name of a part, which has that of a resource
	maxHaltInstance   = 100
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
	tell     func() // tells relays below; set before a view hears

	mu      sync.Mutex
	views   map[heardKey]*heardView
	numbers uint64            // number of views so far
	changes uint64            // of views, and of what is told
	encoded map[string][]byte // what a relay without a grant is told, by node group, since the last change
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
	instance string
	halted   []rollout.Decision
}

// newTierHalts returns the tierHalts of the views of g.
func newTierHalts(g *groups, instance string) *tierHalts {
	return &tierHalts{
		rollouts: g.rollouts, origins: g.settings.originNames(), follow: g.settings.followHalts, instance: instance, log: g.log,
		tell: func() {}, views: make(map[heardKey]*heardView),
	}
}

// hearOn makes a view hear what relays above tell. The caller must call leave with the result when the view ends.
func (h *tierHalts) hearOn(c *upstream.Control, key heardKey, features string) *heardView {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers++
	v := &heardView{key: key, features: features, number: h.numbers, byTarget: make(map[string]*heardHalts)}
	h.views[key] = v
	c.NotifyHalts(func(target string, told []byte) { h.hear(v, target, told) })
	return v
}

// leave forgets what a view has heard.
func (h *tierHalts) leave(v *heardView) {
	h.mu.Lock()
	if v.gone = true; h.views[v.key] == v {
		delete(h.views, v.key)
	}
	h.mu.Unlock()
	for target, heard := range v.byTarget {
		if h.changed(); len(heard.halted) > 0 {
			h.pass(v.key.origin, target)
		}
	}
}

// changed tells relays below of a change.
func (h *tierHalts) changed() {
	h.mu.Lock()
	h.changes++
	h.encoded = nil
	h.mu.Unlock()
	h.tell()
}

// hear handles what a target has told on a stream of a view; nil if it tells nothing. An invalid message changes nothing: what
// the target has told before remains in force.
func (h *tierHalts) hear(v *heardView, target string, told []byte) {
	var is *heardHalts
	var err error
	if told != nil {
		is, err = decodeHalts(told)
	}
	h.mu.Lock()
	was, refused := v.byTarget[target], v.refused
	if v.refused = err != nil; err == nil && !v.gone {
		if v.byTarget[target] = is; is == nil {
			delete(v.byTarget, target)
		}
	}
	h.mu.Unlock()
	log := h.log.With(slog.String("origin_name", h.origins[v.key.origin]), slog.String("relay", target))
	switch {
	case err != nil:
		if !refused {
			log.Warn("what a relay above has told of halts is refused: what it has told before remains in force",
				slog.String("group", v.key.name), slog.Any("err", err))
		}
		return
	case refused:
		log.Info("what a relay above tells of halts is valid again", slog.String("group", v.key.name))
	case was == nil && is == nil:
		return
	}
	h.logHalts(log, v.key, was, is)
	h.pass(v.key.origin, target)
	h.changed()
}

// logHalts logs which halts a view has heard of since, and which have ended.
func (h *tierHalts) logHalts(log *slog.Logger, key heardKey, was, is *heardHalts) {
	log = log.With(slog.String("group", key.name))
	for _, d := range is.without(was) {
		log.Warn("a relay above has halted changes", slog.String("part", d.Part), slog.String("reason", d.Reason),
			slog.Bool("followed", h.follows()))
	}
	for _, d := range was.without(is) {
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

// isSameHalt reports whether two decisions are one, of which a relay may tell different resources in different node groups.
func isSameHalt(a, b rollout.Decision) bool { return a.Part == b.Part && a.At.Equal(b.At) }

// follows reports whether the relay follows halts of relays above.
func (h *tierHalts) follows() bool { return h.follow && h.rollouts != nil }

// pass tells the rollouts of an origin what a target has told on the streams of all views.
func (h *tierHalts) pass(origin int, target string) {
	if !h.follows() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock() // so that the newest is the last
	instance, halted := h.heardOf(origin, target)
	if c := h.rollouts.controllers[origin]; instance == "" {
		c.Forget(target)
	} else {
		c.Hear(target, instance, rollout.Decisions{Halted: halted})
	}
}

// heardOf returns what a target has told, for rollouts: with the node groups of this relay. The instance is that of all processes
// which had a part in it; it is empty if the target has told nothing. mu must be held.
func (h *tierHalts) heardOf(origin int, target string) (instance string, halted []rollout.Decision) {
	var instances []string
	for _, v := range h.views {
		heard := v.byTarget[target]
		if v.key.origin != origin || heard == nil {
			continue
		}
		instances = append(instances, heard.instance)
		for _, d := range heard.halted {
			for _, group := range h.groupsOf(v) {
				halted = addHalt(halted, inGroup(d, group, v.key.shared))
			}
		}
	}
	if len(instances) == 0 {
		return "", nil
	}
	slices.Sort(instances)
	slices.SortFunc(halted, func(a, b rollout.Decision) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Part, b.Part))
	})
	return hashOf(slices.Compact(instances)), halted
}

// groupsOf returns the node groups that a view serves. mu must be held.
func (h *tierHalts) groupsOf(v *heardView) (groups []string) {
	if !v.key.shared {
		return []string{v.key.name}
	}
	for _, o := range h.views {
		if o.key.origin == v.key.origin && !o.key.shared && o.features == v.key.name {
			groups = append(groups, o.key.name)
		}
	}
	return groups
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
		for key, types := range d.Changes {
			if all[i].Changes[key] == nil {
				all[i].Changes[key] = types
			}
		}
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
					Relay: target, Part: d.Part, Stage: d.Stage, Reason: d.Reason, At: d.At, Resources: resources, Followed: h.follows(),
				}
				i := slices.IndexFunc(all, func(o admin.HaltAbove) bool {
					return o.Relay == target && o.Part == d.Part && o.At.Equal(d.At)
				})
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

// told returns what a relay below with a grant is told of the resources of a node group (downstream.Config.Halts).
func (h *tierHalts) told(group string, grant downstream.Grant) []byte {
	h.mu.Lock()
	changes, encoded := h.changes, h.encoded[group]
	path, above := h.heardIn(group)
	h.mu.Unlock()
	if encoded != nil && grant == nil {
		return encoded
	}
	answer := admin.PeerRollouts{Instance: hashOf(path)}
	for i, name := range h.origins {
		var halted []rollout.Decision
		if h.rollouts != nil {
			d := h.rollouts.controllers[i].Decisions()
			for _, d := range slices.Concat(d.Halted, d.Followed) {
				halted = appendPermitted(halted, ofGroup(d, group), grant)
			}
		}
		for _, d := range above[i] {
			halted = appendPermitted(halted, d, grant)
		}
		answer.Halted = append(answer.Halted, encodeDecisions(name, halted)...)
	}
	encoded = encodeHalts(answer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == changes && grant == nil {
		if h.encoded == nil {
			h.encoded = make(map[string][]byte)
		}
		h.encoded[group] = encoded
	}
	return encoded
}

// heardIn returns what a node group has heard, by origin, and the processes on the way to it. mu must be held.
func (h *tierHalts) heardIn(group string) (path []string, above [][]rollout.Decision) {
	path, above = []string{h.instance}, make([][]rollout.Decision, len(h.origins))
	for i := range h.origins {
		own := h.views[heardKey{origin: i, name: group}]
		if own == nil {
			continue
		}
		path = append(path, fmt.Sprint(own.number))
		for _, v := range []*heardView{own, h.views[heardKey{origin: i, name: own.features, shared: true}]} {
			if v == nil {
				continue
			}
			for _, target := range slices.Sorted(maps.Keys(v.byTarget)) {
				heard := v.byTarget[target]
				path = append(path, heard.instance)
				for _, d := range heard.halted {
					d = inGroup(d, "", v.key.shared)
					d.Reason = "halted at " + target + ": " + d.Reason
					above[i] = addHalt(above[i], d)
				}
			}
		}
	}
	return path, above
}

// ofGroup returns the resources of a node group in a halt, without the group.
func ofGroup(d rollout.Decision, group string) rollout.Decision {
	changes := make(rollout.Changes)
	for key, types := range d.Changes {
		if key.Group == group {
			changes[rollout.SectionKey{Shared: key.Shared}] = types
		}
	}
	d.Changes = changes
	return d
}

// appendPermitted appends a halt with those of its resources that a client may request, unless it has the halt or may request
// none. If the client may not request all, it is not told the reason, which may be about the others, nor their names.
func appendPermitted(all []rollout.Decision, d rollout.Decision, grant downstream.Grant) []rollout.Decision {
	permitted, complete := make(rollout.Changes), true
	for key, types := range d.Changes {
		for typ, names := range types {
			typeURL, _, _ := cache.SplitCollection(typ)
			is := names
			if grant != nil || wire.IsSecret(typeURL) {
				is = maps.Clone(names)
				maps.DeleteFunc(is, func(name string, _ wire.Digest) bool { return !permits(grant, typeURL, name) })
			}
			if complete = complete && len(is) == len(names); len(is) == 0 {
				continue
			}
			if permitted[key] == nil {
				permitted[key] = make(map[string]map[string]wire.Digest)
			}
			permitted[key][typ] = is
		}
	}
	if len(permitted) == 0 {
		return all
	}
	if d.Changes = permitted; !complete {
		d.Part, d.Reason = permitted.Name(), ""
	}
	if slices.ContainsFunc(all, func(o rollout.Decision) bool { return isSameHalt(o, d) }) {
		return all // the relay follows what it has heard
	}
	return append(all, d)
}

// permits reports whether a relay with a grant may be told of a name: it may request it, and it is not that of a Secret.
func permits(grant downstream.Grant, typeURL, name string) bool {
	return !wire.IsSecret(typeURL) && (grant == nil || grant.Type(typeURL) == nil &&
		(!grant.RestrictsNames(typeURL) || grant.Name(typeURL, name) == nil))
}

// encodeHalts returns halts within their bounds. Peers are told the same format.
func encodeHalts(answer admin.PeerRollouts) []byte {
	slices.SortStableFunc(answer.Halted, func(a, b admin.DecidedChanges) int { return b.At.Compare(a.At) })
	answer.Halted = answer.Halted[:min(len(answer.Halted), maxHalts)]
	for i := range answer.Halted {
		d := &answer.Halted[i]
		d.Reason = cutText(d.Reason, maxHaltText)
	}
	shortenDecisions(answer.Halted, maxHaltNames, maxHaltNamesBytes)
	for {
		encoded, err := json.Marshal(answer)
		if err == nil && (len(encoded) <= maxHaltsBytes || len(answer.Halted) == 0) {
			return encoded
		}
		answer.Halted = answer.Halted[:len(answer.Halted)/2]
	}
}

// decodeHalts returns what a relay above has told.
func decodeHalts(told []byte) (*heardHalts, error) {
	if len(told) > maxHaltsBytes {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(told), maxHaltsBytes)
	}
	var answer admin.PeerRollouts
	if err := json.Unmarshal(told, &answer); err != nil {
		return nil, err
	}
	switch {
	case answer.Instance == "" || len(answer.Instance) > maxHaltInstance:
		return nil, errors.New("it has no valid instance")
	case len(answer.Halted) > maxHalts:
		return nil, fmt.Errorf("%d halts: want at most %d", len(answer.Halted), maxHalts)
	}
	heard := &heardHalts{instance: answer.Instance}
	for _, d := range answer.Halted {
		if d.Part == "" || len(d.Part) > maxHaltPart || d.At.IsZero() {
			return nil, errors.New("a halt has no valid part or time")
		}
		if slices.ContainsFunc(d.Sections, func(s snapshot.RejectedSection) bool { return s.Group != "" }) {
			return nil, errors.New("a halt is about a node group")
		}
		is := rollout.Decision{
			Part: d.Part, At: d.At, Reason: cutText(d.Reason, maxHaltText), Stage: min(max(d.Stage, 0), maxHalts), Changes: decodeChanges(d.Sections),
		}
		if is.Changes.Empty() {
			return nil, errors.New("a halt has no resource")
		}
		heard.halted = addHalt(heard.halted, is)
	}
	return heard, nil
}

// cutText limits a text to so many bytes of UTF-8.
func cutText(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
