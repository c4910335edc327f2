package soak

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/ledger"
	"github.com/xdstender/tender/relay/rollout"
)

// stagesText is the TENDER_ROLLOUT of the relays that distribute changes in stages: first to the canaries, then to
// 30% of the other clients.
const stagesText = canaryPrefix + `* 2s, 30% 1s`

// canaryPrefix selects the clients of canaries by the beginning of their node IDs.
const canaryPrefix = "id=canary"

// staged are the types whose changes are distributed in stages.
var staged = []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.RouteType, relaytest.ScopedRouteType}

// A staging holds which relays distribute changes in stages, and which content the canaries reject.
type staging struct {
	stages rollout.Stages
	relays []int // indexes in world.relays; empty with one seed in four

	mu  sync.Mutex
	bad map[relaytest.Digest]bool // guarded by mu; rejected content; true if no other client may receive it
}

// newStaging chooses by the seed which relays distribute changes in stages: none, only the process, or both.
func newStaging(w *world, seed uint64) *staging {
	s := &staging{bad: make(map[relaytest.Digest]bool)}
	switch seed % 4 {
	case 0:
		return s
	case 2:
		s.relays = []int{0}
	default:
		s.relays = []int{0, 1}
	}
	if err := s.stages.UnmarshalText([]byte(stagesText)); err != nil {
		w.t.Fatal(err)
	}
	for _, g := range w.groups {
		g.ledger.Staged(func(typeURL string) bool { return slices.Contains(staged, typeURL) })
	}
	return s
}

// environ returns the environment variables of relay i. If one relay uses content versions, the other must as well,
// because clients switch between them.
func (s *staging) environ(w *world, i int) (env []string) {
	if len(s.relays) > 0 {
		env = append(env, "TENDER_DELTA_VERSIONS=content")
	}
	if !slices.Contains(s.relays, i) {
		return env
	}
	if i == 1 { // newProcess sets the snapshot directory of relay 0
		env = append(env, "TENDER_SNAPSHOT_DIR="+filepath.Join(w.t.TempDir(), "inside"))
	}
	return append(env, "TENDER_ROLLOUT="+stagesText)
}

// cohort returns the index of a client's stage. Clients outside all stages have the index len(s.stages).
func (s *staging) cohort(n *corepb.Node) int { return s.stages.Cohort(n, false) }

// reject makes canaries reject a resource. With strictly, no other client may receive it.
func (s *staging) reject(m proto.Message, strictly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad[relaytest.DigestOf(m)] = strictly
}

// rejects reports whether canaries reject a serialized resource, and whether strictly was set for it.
func (s *staging) rejects(value []byte) (rejected, strictly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	strictly, rejected = s.bad[sha256.Sum256(value)]
	return rejected, strictly
}

// reads returns options that check each resource that a client receives: against the reader, and against its stage.
func (w *world) reads(opts relaytest.LightOptions, reader *ledger.Reader) relaytest.LightOptions {
	cohort := w.staging.cohort(opts.Node)
	if cohort < len(w.staging.stages) {
		reader.InStage()
	}
	opts = reader.Options(opts, func(what string) { w.complain(opts.Node.GetId(), what) })
	judge := opts.OnResource
	opts.OnResource = func(typeURL string, name, value []byte) {
		if _, strictly := w.staging.rejects(value); strictly && cohort > 0 {
			w.complain(opts.Node.GetId(), fmt.Sprintf("%s %q is content that canaries reject", typeURL, name))
		}
		judge(typeURL, name, value)
	}
	return opts
}

// canaries starts two clients for each relay and group: one rejects bad content, and one accepts it, so that the
// relay has evidence for both. They do not switch to the other relay.
func (w *world) canaries() (all []client) {
	for i := range w.relays() {
		for j, g := range w.groups {
			v := relaytest.Variant((i + j) % 2)
			all = append(all, w.canary(i, g, v, true), w.canary(i, g, 1-v, false))
		}
	}
	return all
}

// canary starts a canary of a relay. With rejects, it sends a NACK for bad content.
func (w *world) canary(relay int, g *group, v relaytest.Variant, rejects bool) client {
	c := &stream{canary: true, variant: v, group: g, wants: []relaytest.Subscription{
		{TypeURL: relaytest.ClusterType}, {TypeURL: relaytest.ListenerType}, {TypeURL: relaytest.EndpointType, Names: []string{resource(1), resource(2)}},
		{TypeURL: relaytest.RouteType, Names: []string{resource(1)}},
	}}
	id := fmt.Sprintf("canary-%d-%s-%v", relay, g.name, v)
	opts := relaytest.LightOptions{Node: &corepb.Node{Id: id, Cluster: g.name, UserAgentName: "envoy"}}
	opts = w.reads(opts, g.ledger.Reader(v))
	if rejects {
		opts.Reject = func(_ string, _, value []byte) bool {
			rejected, _ := w.staging.rejects(value)
			if rejected {
				w.seen.add("resources that a canary rejected", 1)
			}
			return rejected
		}
	}
	c.Roaming = relaytest.Roam(w.t, opts, 0, w.dialers(false)[relay:relay+1], c.wants...)
	return c
}

// operators resumes and promotes rollouts until all clients agree.
type operators struct {
	hurry   bool                 // promote running rollouts to all clients at once
	resumed map[string]time.Time // when a rollout was first seen halted, by relay and origin
}

// haltedFor is how long operators leave a halted rollout alone, so that the origin can fix the content.
const haltedFor = 4 * time.Second

// operate starts operators that run until stop is called. They resume a halted rollout, promote it to all clients if it
// halts again, and promote a held rollout to its next stage.
func (w *world) operate() (stop func()) {
	if len(w.staging.relays) == 0 {
		return nothing
	}
	o := operators{hurry: w.random.IntN(2) == 0, resumed: make(map[string]time.Time)}
	return w.repeat(250*time.Millisecond, func() {
		for _, i := range w.staging.relays {
			all, _ := w.relays()[i].operator().rollouts() // the relay may not run
			for _, s := range all {
				o.decide(w, i, s)
			}
		}
	})
}

// decide sends the command that a rollout waits for, if any.
func (o *operators) decide(w *world, relay int, s *rollout.Status) {
	do := func(command string, all bool) {
		if w.relays()[relay].operator().do("rollout/"+command, admin.RolloutScope{Origin: s.Origin, All: all}) == nil {
			w.seen.add("operator commands: rollout "+command+map[bool]string{true: " for all"}[all], 1)
		}
	}
	id := fmt.Sprint(relay, s.Origin)
	switch since, looked := o.resumed[id]; {
	case s.Phase == rollout.Halted && !looked:
		o.resumed[id] = time.Now()
	case s.Phase == rollout.Halted && time.Since(since) > 2*haltedFor || o.hurry && s.Phase != rollout.Current && s.Phase != rollout.Halted:
		do("promote", true)
	case s.Phase == rollout.Halted && time.Since(since) > haltedFor:
		do("resume", false)
	case s.Phase == rollout.Held:
		do("promote", false)
	}
}

// rollouts returns the status of each rollout of a relay.
func (o operator) rollouts() ([]*rollout.Status, error) {
	var all admin.Rollouts
	err := o.get("rollouts", &all)
	return all.Rollouts, err
}

// get decodes the answer of the admin API at api/v1/what.
func (o operator) get(what string, into any) error {
	resp, err := overAdmin.Get("http://" + string(o) + "/api/v1/" + what)
	if err != nil {
		return err
	}
	return answer(resp, func(r io.Reader) error { return json.NewDecoder(r).Decode(into) })
}

// awaitRollouts waits until is returns true for the rollouts of all relays. With an origin, it ignores those of others.
func (w *world) awaitRollouts(origin string, what string, is func(*rollout.Status) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, agreeWithin)
	defer cancel()
	for _, i := range w.staging.relays {
		for {
			all, err := w.relays()[i].operator().rollouts()
			if err == nil && !slices.ContainsFunc(all, func(s *rollout.Status) bool { return (origin == "" || s.Origin == origin) && !is(s) }) {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				w.t.Fatalf("rollouts are not %s: %+v, %v", what, all, err)
			}
		}
	}
}

// current waits until all clients agree with the origins, no rollout is under way and all wildcard sets are confirmed.
// Every later change is then distributed in stages.
func (w *world) current(before string) {
	w.t.Helper()
	w.agree(before)
	stop := w.operate()
	defer stop()
	w.awaitRollouts("", "over", func(s *rollout.Status) bool { return s.Phase == rollout.Current })
	ctx, cancel := context.WithTimeout(w.ctx, heldWithin)
	defer cancel()
	for _, i := range w.staging.relays {
		for !w.confirmed(i) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				w.t.Fatalf("before %s, a relay has not confirmed its wildcard sets", before)
			}
		}
	}
}

// confirmed reports whether a relay has confirmed the wildcard sets of all groups. A relay does not stage changes to an
// unconfirmed set.
func (w *world) confirmed(relay int) bool {
	var s admin.Status
	if err := w.relays()[relay].operator().get("status", &s); err != nil {
		w.t.Fatal(err)
	}
	for _, v := range s.Views {
		for _, of := range v.Types {
			if slices.Contains(staged[:2], of.TypeURL) && of.Phase != "confirmed" {
				return false
			}
		}
	}
	return true
}

// spoil gives a resource content that canaries reject. mend gives it good content.
func (w *world) spoil(g *group, typeURL, name string, strictly bool) (mend func()) {
	bad := g.content(typeURL, name)
	w.staging.reject(bad, strictly)
	g.ledger.Put(g.contents, bad)
	return func() { g.ledger.Put(g.contents, g.content(typeURL, name)) }
}

// reject makes canaries reject one change. Other faults may occur in the same round.
func (w *world) reject() (heal func()) {
	g, typeURL := w.groups[w.random.IntN(len(w.groups))], staged[w.random.IntN(2)]
	return w.spoil(g, typeURL, resource(w.random.IntN(sizes[typeURL])), false)
}

// halt makes canaries reject one of several changes. Both relays must halt the rollout, stay halted across restarts,
// and roll the canaries back. No other client may receive any of the changes, and endpoints must go on changing.
func (w *world) halt() (heal func()) {
	if len(w.staging.relays) < len(w.relays()) {
		return nothing // clients of a relay without stages receive the change
	}
	w.current("a change that canaries reject")
	g := w.groups[w.random.IntN(len(w.groups))]
	typeURL, origin := relaytest.ClusterType, "default"
	if w.random.IntN(3) == 0 {
		typeURL, origin = relaytest.ListenerType, "lists"
	}
	was := w.canaryOf(g).State()[typeURL]
	_, present := g.names(typeURL)
	w.random.Shuffle(len(present), func(i, j int) { present[i], present[j] = present[j], present[i] })
	if len(present) < 4 {
		return nothing
	}
	mend := w.spoil(g, typeURL, present[0], true)
	g.ledger.Put(g.contents, g.content(typeURL, present[1]))
	g.ledger.Remove(g.contents, typeURL, present[2])
	halted := func(s *rollout.Status) bool { return s.Phase == rollout.Halted }
	w.awaitRollouts(origin, "halted", halted)
	for _, r := range w.relays() {
		switch w.random.IntN(3) {
		case 0:
			r.drain()()
			r.start()
		case 1:
			w.process.kill()
			w.process.start()
		}
		w.churnEndpoints(3)
	}
	w.awaitRollouts(origin, "halted after a restart", halted)
	w.haveLastGood(g, typeURL, was)
	w.agreeOnEndpoints()
	w.seen.add("editions that canaries rejected", len(w.staging.relays))
	return func() {
		mend()
		w.awaitRollouts(origin, "running after the fix", func(s *rollout.Status) bool { return s.Phase != rollout.Halted })
	}
}

// canaryOf returns a canary of a group.
func (w *world) canaryOf(g *group) *stream {
	i := slices.IndexFunc(w.clients, func(c client) bool {
		s, is := c.(*stream)
		return is && s.group == g && s.canary
	})
	return w.clients[i].(*stream)
}

// haveLastGood waits until all streams of a group with a wildcard subscription to a type have the content of want.
func (w *world) haveLastGood(g *group, typeURL string, want map[string]relaytest.Entry) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, agreeWithin)
	defer cancel()
	for _, c := range w.clients {
		s, is := c.(*stream)
		if !is || s.group != g || !slices.ContainsFunc(s.wants, func(sub relaytest.Subscription) bool { return sub.TypeURL == typeURL && len(sub.Names) == 0 }) {
			continue
		}
		if !s.Await(ctx, func(state relaytest.State) bool { return sameContent(state[typeURL], want) }) {
			w.t.Errorf("after an edition was rejected, %v lacks the last good %s: %d resources, want %d", s, typeURL, len(s.State()[typeURL]), len(want))
		}
	}
}

// sameContent reports whether two states have the same names and content, regardless of versions.
func sameContent(got, want map[string]relaytest.Entry) bool {
	if len(got) != len(want) {
		return false
	}
	for name, e := range want {
		if got[name].Digest != e.Digest {
			return false
		}
	}
	return true
}

// agreeOnEndpoints waits until all streams have the endpoints of the origin, which rollouts do not delay.
func (w *world) agreeOnEndpoints() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, agreeWithin)
	defer cancel()
	for _, c := range w.clients {
		s, is := c.(*stream)
		if !is {
			continue
		}
		var wants []relaytest.Subscription
		for _, sub := range s.wants {
			if sub.TypeURL == relaytest.EndpointType {
				wants = append(wants, sub)
			}
		}
		if !s.Await(ctx, func(state relaytest.State) bool { return s.group.ledger.Differs(state, s.variant, wants) == "" }) {
			w.t.Errorf("endpoints of %v differ from the origin during a rollout: %s", s, s.group.ledger.Differs(s.State(), s.variant, wants))
		}
	}
}

// restartAmid restarts a relay or an origin, or changes the content again, while an edition is being distributed.
func (w *world) restartAmid() (heal func()) {
	if len(w.staging.relays) == 0 {
		return nothing
	}
	w.current("a change during which relays or origins restart")
	for _, g := range w.groups {
		_, present := g.names(relaytest.ClusterType)
		for _, name := range present[:len(present)/2] {
			g.ledger.Put(g.contents, g.content(relaytest.ClusterType, name))
		}
	}
	w.awaitRollouts("default", "beyond gathering", func(s *rollout.Status) bool { return s.Phase != rollout.Gathering })
	w.seen.add("editions during a restart", len(w.staging.relays))
	switch w.random.IntN(4) {
	case 0:
		w.process.kill()
		w.process.start()
	case 1:
		r := w.relay()
		r.drain()()
		r.start()
	case 2:
		o := w.origins[w.random.IntN(2)]
		o.Stop()
		o.Restart()
	default:
		w.churn(10)
	}
	w.churnEndpoints(3)
	w.agreeOnEndpoints()
	return nothing
}
