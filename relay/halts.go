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
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// Bounds of what a relay tells a relay below of one node group. Of halts that do not fit, those are left out first that were
// decided at the relay farthest above, and then the oldest. A message without them says so: it ends none.
const (
	maxHaltsBytes     = 512 << 10
	maxHalts          = 100
	maxHaltNames      = 2_000
	maxHaltNamesBytes = 192 << 10
	maxHaltText       = 1 << 10 // bytes of a reason
	maxHaltPart       = 4 << 10 // bytes of the name of a part, which has that of a resource
	maxHaltInstance   = 100
)

// secretPart begins the name of a part that is named after a Secret.
const secretPart = "sds/"

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
	listed  map[listedHalt]int
}

// A listedHalt is a halt that a target tells on the streams of some number of views. It is logged once.
type listedHalt struct {
	origin       int
	target, part string
	at           int64 // Unix time in ns
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
		tell: func() {}, views: make(map[heardKey]*heardView), listed: make(map[listedHalt]int),
	}
}

// hearOn makes a view hear what relays above tell. The caller must call leave with the result when the view ends.
func (h *tierHalts) hearOn(c *upstream.Control, key heardKey, features string) *heardView {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers++
	v := &heardView{key: key, features: features, number: h.numbers, byTarget: make(map[string]*heardHalts)}
	h.views[key] = v
	h.renew(key)
	c.NotifyHalts(func(target string, told []byte) { h.hear(v, target, told) })
	return v
}

// leave forgets what a view has heard.
func (h *tierHalts) leave(v *heardView) {
	h.mu.Lock()
	if v.gone = true; h.views[v.key] == v {
		delete(h.views, v.key)
		h.renew(v.key)
	}
	for target, heard := range v.byTarget {
		h.list(v.key.origin, target, heard, nil)
	}
	h.mu.Unlock()
	for target, heard := range v.byTarget {
		if h.changed(); len(heard.halted) > 0 {
			h.pass(v.key.origin, target)
		}
	}
}

// renew makes a node group be told anew, since it has another view or none. mu must be held.
func (h *tierHalts) renew(of heardKey) {
	h.changes++
	if !of.shared {
		delete(h.encoded, of.name)
	}
}

// serves reports whether a node group has a view. mu must be held.
func (h *tierHalts) serves(group string) bool {
	for i := range h.origins {
		if h.views[heardKey{origin: i, name: group}] != nil {
			return true
		}
	}
	return false
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
	h.changed()
}

// logRefused logs that a message is refused, in part at least, or that one is valid again.
func logRefused(log *slog.Logger, key heardKey, was bool, err error) {
	switch {
	case err != nil && !was:
		log.Warn("what a relay above has told of halts is refused: what it has told before remains in force",
			slog.String("group", key.name), slog.Any("err", err))
	case err == nil && was:
		log.Info("what a relay above tells of halts is valid again", slog.String("group", key.name))
	}
}

// list records that a target tells other halts on the streams of a view. It returns those that it tells for the first view, and
// those that it tells for none any longer. mu must be held.
func (h *tierHalts) list(origin int, target string, was, is *heardHalts) (begun, ended []rollout.Decision) {
	for _, d := range is.without(was) {
		of := listedHalt{origin, target, d.Part, d.At.UnixNano()}
		if h.listed[of]++; h.listed[of] == 1 {
			begun = append(begun, d)
		}
	}
	for _, d := range was.without(is) {
		of := listedHalt{origin, target, d.Part, d.At.UnixNano()}
		if h.listed[of]--; h.listed[of] == 0 {
			delete(h.listed, of)
			ended = append(ended, d)
		}
	}
	return begun, ended
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
	for _, v := range h.views {
		heard := v.byTarget[target]
		if v.key.origin != origin || heard == nil {
			continue
		}
		instances = append(instances, heard.instance)
		all.Incomplete = all.Incomplete || heard.incomplete
		for _, d := range heard.halted {
			for _, group := range h.groupsOf(v) {
				all.Halted = addHalt(all.Halted, inGroup(d, group, v.key.shared))
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
	path, above, incomplete := h.heardIn(group)
	h.mu.Unlock()
	if encoded != nil && grant == nil {
		return encoded
	}
	var own []admin.DecidedChanges
	heard := make([][]admin.DecidedChanges, len(h.origins))
	for i, name := range h.origins {
		var halted []rollout.Decision
		if h.rollouts != nil {
			d := h.rollouts.controllers[i].Decisions()
			for _, d := range slices.Concat(d.Halted, d.Followed) {
				halted = appendPermitted(halted, d, group, grant)
			}
		}
		here := len(halted)
		for _, d := range above[i] {
			halted = appendPermitted(halted, d, "", grant)
		}
		own = append(own, encodeDecisions(name, halted[:here])...)
		heard[i] = encodeDecisions(name, halted[here:])
	}
	sortNewest(own, time.Now())
	answer := admin.PeerRollouts{Instance: hashOf(path), Incomplete: incomplete, Halted: append(own, interleave(heard)...)}
	encoded = encodeHalts(answer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == changes && grant == nil && h.serves(group) {
		if h.encoded == nil {
			h.encoded = make(map[string][]byte)
		}
		h.encoded[group] = encoded
	}
	return encoded
}

// sortNewest sorts halts by their time, the newest first. Those of the future, on the clock of another relay, are as new as can be.
func sortNewest(halts []admin.DecidedChanges, now time.Time) {
	age := func(d admin.DecidedChanges) time.Duration { return max(now.Sub(d.At), 0) }
	slices.SortStableFunc(halts, func(a, b admin.DecidedChanges) int { return cmp.Compare(age(a), age(b)) })
}

// interleave returns the first of each list, then the second of each, and so on: no list keeps out another one.
func interleave[T any](lists [][]T) (all []T) {
	for i := 0; ; i++ {
		before := len(all)
		for _, list := range lists {
			if i < len(list) {
				all = append(all, list[i])
			}
		}
		if len(all) == before {
			return all
		}
	}
}

// heardIn returns what a node group has heard, by origin, whether that is not all, and the processes on the way to it. The order
// is that of the messages, each of which begins with what its relay has decided itself. mu must be held.
func (h *tierHalts) heardIn(group string) (path []string, above [][]rollout.Decision, incomplete bool) {
	path, above = []string{h.instance}, make([][]rollout.Decision, len(h.origins))
	for i := range h.origins {
		own := h.views[heardKey{origin: i, name: group}]
		if own == nil {
			continue
		}
		path = append(path, fmt.Sprint(own.number))
		var lists [][]rollout.Decision
		for _, v := range []*heardView{own, h.views[heardKey{origin: i, name: own.features, shared: true}]} {
			if v == nil {
				continue
			}
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

// appendPermitted appends a halt with those resources of a node group that a client may request, unless it has the halt or there
// are none. A client that may not request all, of all node groups, is not told the reason, which may be about the others, nor
// their names.
func appendPermitted(all []rollout.Decision, d rollout.Decision, group string, grant downstream.Grant) []rollout.Decision {
	told, permitted, others := permittedIn(d.Changes, group, grant)
	if told.Empty() {
		return all
	}
	if d.Partial && grant != nil || strings.HasPrefix(d.Part, secretPart) {
		permitted = false
	}
	if d.Changes = told; !permitted {
		d.Reason = ""
	}
	if !permitted || others && grant != nil {
		d.Part = told.Name()
	}
	if slices.ContainsFunc(all, func(o rollout.Decision) bool { return isSameHalt(o, d) }) {
		return all // the relay follows what it has heard
	}
	return append(all, d)
}

// permittedIn returns the changes of a node group that a client may request, without the group. It reports whether the client may
// request all, of all groups, and whether there are others than those of the group.
func permittedIn(changes rollout.Changes, group string, grant downstream.Grant) (of rollout.Changes, all, others bool) {
	of, all = make(rollout.Changes), true
	for key, types := range changes {
		if key.Group != group {
			others, all = true, all && permitsAll(types, grant)
			continue
		}
		for typ, names := range types {
			is := permittedNames(typ, names, grant)
			if all = all && len(is) == len(names); len(is) == 0 {
				continue
			}
			to := rollout.SectionKey{Shared: key.Shared}
			if of[to] == nil {
				of[to] = make(map[string]map[string]wire.Digest)
			}
			of[to][typ] = is
		}
	}
	return of, all, others
}

// permittedNames returns those of some names that a client may request.
func permittedNames(typ string, names map[string]wire.Digest, grant downstream.Grant) map[string]wire.Digest {
	typeURL, _, _ := cache.SplitCollection(typ)
	if grant == nil && !wire.IsSecret(typeURL) {
		return names
	}
	is := maps.Clone(names)
	maps.DeleteFunc(is, func(name string, _ wire.Digest) bool { return !permits(grant, typeURL, name) })
	return is
}

// permitsAll reports whether a client may request all of some names.
func permitsAll(types map[string]map[string]wire.Digest, grant downstream.Grant) bool {
	for typ, names := range types {
		typeURL, _, _ := cache.SplitCollection(typ)
		if grant == nil && !wire.IsSecret(typeURL) {
			continue
		}
		for name := range names {
			if !permits(grant, typeURL, name) {
				return false
			}
		}
	}
	return true
}

// permits reports whether a relay with a grant may be told of a name: it may request it, and it is not that of a Secret.
func permits(grant downstream.Grant, typeURL, name string) bool {
	return !wire.IsSecret(typeURL) && (grant == nil || grant.Type(typeURL) == nil &&
		(!grant.RestrictsNames(typeURL) || grant.Name(typeURL, name) == nil))
}

// encodeHalts returns the first of some halts, within the bounds of a message. Peers are told the same format.
func encodeHalts(answer admin.PeerRollouts) []byte {
	if len(answer.Halted) > maxHalts {
		answer.Halted, answer.Incomplete = answer.Halted[:maxHalts], true
	}
	for i := range answer.Halted {
		d := &answer.Halted[i]
		d.Reason, d.Part = cutText(d.Reason, maxHaltText), cutPart(d.Part)
	}
	shortenDecisions(answer.Halted, maxHaltNames, maxHaltNamesBytes)
	halted, size := answer.Halted[:0], 1<<10 // of all that is no halt
	for _, d := range answer.Halted {
		encoded, err := json.Marshal(d)
		if err != nil || size+len(encoded)+1 > maxHaltsBytes {
			answer.Incomplete = true
			continue
		}
		size += len(encoded) + 1 // with a comma
		halted = append(halted, d)
	}
	answer.Halted = halted
	encoded, _ := json.Marshal(answer) // its halts can be encoded
	return encoded
}

// decodeHalts returns what a relay above has told. With an error, that is nil, or does not have the halts which are invalid.
func decodeHalts(told []byte) (*heardHalts, error) {
	if len(told) > maxHaltsBytes {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(told), maxHaltsBytes)
	}
	var answer struct {
		Instance   string            `json:"instance"`
		Incomplete bool              `json:"incomplete"`
		Halted     []json.RawMessage `json:"halted"`
	}
	if err := json.Unmarshal(told, &answer); err != nil {
		return nil, err
	}
	switch {
	case answer.Instance == "" || len(answer.Instance) > maxHaltInstance:
		return nil, errors.New("it has no valid instance")
	case len(answer.Halted) > maxHalts:
		return nil, fmt.Errorf("%d halts: want at most %d", len(answer.Halted), maxHalts)
	}
	heard := &heardHalts{instance: answer.Instance, incomplete: answer.Incomplete}
	var invalid error
	for _, encoded := range answer.Halted {
		d, err := decodeHalt(encoded)
		if err != nil {
			heard.incomplete, invalid = true, cmp.Or(invalid, err)
			continue
		}
		heard.halted = addHalt(heard.halted, d)
	}
	return heard, invalid
}

// decodeHalt returns one halt of a message.
func decodeHalt(encoded []byte) (is rollout.Decision, err error) {
	var d admin.DecidedChanges
	if err := json.Unmarshal(encoded, &d); err != nil {
		return is, err
	}
	is = rollout.Decision{
		Part: d.Part, At: d.At, Reason: cutText(d.Reason, maxHaltText), Stage: min(max(d.Stage, 0), maxHalts), Changes: decodeChanges(d.Sections),
		Partial: d.Partial,
	}
	switch {
	case d.Part == "" || len(d.Part) > maxHaltPart || d.At.IsZero():
		return is, errors.New("a halt has no valid part or time")
	case slices.ContainsFunc(d.Sections, func(s snapshot.RejectedSection) bool { return s.Group != "" }):
		return is, errors.New("a halt is about a node group")
	case is.Changes.Empty():
		return is, errors.New("a halt has no resource")
	}
	return is, nil
}

// cutPart limits the name of a part, which has up to 4 KiB of a resource and its type. Different names remain different.
func cutPart(part string) string {
	if len(part) <= maxHaltPart {
		return part
	}
	hash := hashOf([]string{part})
	return cutText(part, maxHaltPart-len(hash)) + hash
}

// cutText limits a text to so many bytes of UTF-8.
func cutText(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
