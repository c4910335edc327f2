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

// stagesText is TENDER_ROLLOUT of relays that distribute changes in stages: first those clients that refuse what is bad, then a third of
// the others.
const stagesText = canaryPrefix + `* 2s, 30% 1s`

const canaryPrefix = "id=canary"

// staged are the types whose changes wait there.
var staged = []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.RouteType, relaytest.ScopedRouteType}

// A staging is which relays distribute changes in stages, and what their canaries refuse.
type staging struct {
	stages rollout.Stages
	relays []int // of them, none for most of one seed in four

	mu  sync.Mutex
	bad map[relaytest.Digest]bool // guarded by mu; content that canaries refuse: whether no other client may have it
}

// newStaging has the seed decide which relays distribute changes in stages: none, the process alone, or both.
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

// environ returns what the environment of relay i has of it, and of the other one, as clients change between them.
func (s *staging) environ(w *world, i int) (env []string) {
	if len(s.relays) > 0 {
		env = append(env, "TENDER_DELTA_VERSIONS=content")
	}
	if !slices.Contains(s.relays, i) {
		return env
	}
	if i == 1 { // the process has snapshots in any case
		env = append(env, "TENDER_SNAPSHOT_DIR="+filepath.Join(w.t.TempDir(), "inside"))
	}
	return append(env, "TENDER_ROLLOUT="+stagesText)
}

// cohort returns the stage of a client, from 0 on; the rest is of the last one.
func (s *staging) cohort(n *corepb.Node) int { return s.stages.Cohort(n, false) }

// refuse has canaries refuse a resource. With strictly, nobody else may be told of it.
func (s *staging) refuse(m proto.Message, strictly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad[relaytest.DigestOf(m)] = strictly
}

func (s *staging) refuses(value []byte) (refused, strictly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	strictly, refused = s.bad[sha256.Sum256(value)]
	return refused, strictly
}

// reads has a client be held to what its stage may be told.
func (w *world) reads(opts relaytest.LightOptions, reader *ledger.Reader) relaytest.LightOptions {
	cohort := w.staging.cohort(opts.Node)
	if cohort < len(w.staging.stages) {
		reader.InStage()
	}
	opts = reader.Options(opts, func(what string) { w.complain(opts.Node.GetId(), what) })
	judge := opts.OnResource
	opts.OnResource = func(typeURL string, name, value []byte) {
		if _, strictly := w.staging.refuses(value); strictly && cohort > 0 {
			w.complain(opts.Node.GetId(), fmt.Sprintf("%s %q is what canaries refuse", typeURL, name))
		}
		judge(typeURL, name, value)
	}
	return opts
}

// canaries returns two clients of each relay and group, which stay with their relay: one that refuses what is bad, and one that accepts
// it, so there is also evidence for it.
func (w *world) canaries() (all []client) {
	for i := range w.relays() {
		for j, g := range w.groups {
			v := relaytest.Variant((i + j) % 2)
			all = append(all, w.canary(i, g, v, true), w.canary(i, g, 1-v, false))
		}
	}
	return all
}

func (w *world) canary(relay int, g *group, v relaytest.Variant, refuses bool) client {
	c := &stream{canary: true, variant: v, group: g, wants: []relaytest.Subscription{
		{TypeURL: relaytest.ClusterType}, {TypeURL: relaytest.ListenerType}, {TypeURL: relaytest.EndpointType, Names: []string{resource(1), resource(2)}},
		{TypeURL: relaytest.RouteType, Names: []string{resource(1)}},
	}}
	id := fmt.Sprintf("canary-%d-%s-%v", relay, g.name, v)
	opts := relaytest.LightOptions{Node: &corepb.Node{Id: id, Cluster: g.name, UserAgentName: "envoy"}}
	opts = w.reads(opts, g.ledger.Reader(v))
	if refuses {
		opts.Reject = func(_ string, _, value []byte) bool {
			refused, _ := w.staging.refuses(value)
			if refused {
				w.seen.add("resources that a canary refused", 1)
			}
			return refused
		}
	}
	c.Roaming = relaytest.Roam(w.t, opts, 0, w.dialers(false)[relay:relay+1], c.wants...)
	return c
}

// operators looks after the rollouts of a relay until everybody agrees.
type operators struct {
	hurry   bool                 // they wait for nothing
	resumed map[string]time.Time // by relay and origin: since when a rollout is looked at that was halted
}

// haltedFor is how long they leave a rollout as it is that was halted: the origin may have mended it.
const haltedFor = 4 * time.Second

// operate has operators end what rollouts wait for, until it is stopped: what was halted begins again, and goes to all if it
// is halted again; what is held goes on.
func (w *world) operate() (stop func()) {
	if len(w.staging.relays) == 0 {
		return nothing
	}
	o := operators{hurry: w.random.IntN(2) == 0, resumed: make(map[string]time.Time)}
	return w.repeat(250*time.Millisecond, func() {
		for _, i := range w.staging.relays {
			all, _ := w.relays()[i].operator().rollouts() // it may not run
			for _, s := range all {
				o.decide(w, i, s)
			}
		}
	})
}

// decide does what a rollout waits for.
func (o *operators) decide(w *world, relay int, s *rollout.Status) {
	do := func(command string, all bool) {
		if w.relays()[relay].operator().do("rollout/"+command, admin.RolloutScope{Origin: s.Origin, All: all}) == nil {
			w.seen.add("rollouts that an operator had "+command+map[bool]string{true: " for all"}[all], 1)
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

// rollouts returns how the rollouts of a relay stand.
func (o operator) rollouts() ([]*rollout.Status, error) {
	var all admin.Rollouts
	err := o.get("rollouts", &all)
	return all.Rollouts, err
}

// get has a relay answer what is asked for.
func (o operator) get(what string, into any) error {
	resp, err := overAdmin.Get("http://" + string(o) + "/api/v1/" + what)
	if err != nil {
		return err
	}
	return answer(resp, func(r io.Reader) error { return json.NewDecoder(r).Decode(into) })
}

// awaitRollouts waits until all rollouts of all relays, or those of one origin, are in a state.
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

// current waits until all clients have what origins have, and nothing is on its way: from then on, what changes waits.
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
				w.t.Fatalf("before %s, a relay has not confirmed its sets", before)
			}
		}
	}
}

// confirmed reports whether a relay has confirmed the sets of all groups: what it is told before does not wait.
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

// spoil has a resource of a type get content that canaries refuse, and returns what mends it.
func (w *world) spoil(g *group, typeURL, name string, strictly bool) (mend func()) {
	bad := g.content(typeURL, name)
	w.staging.refuse(bad, strictly)
	g.ledger.Put(g.contents, bad)
	return func() { g.ledger.Put(g.contents, g.content(typeURL, name)) }
}

// refuse has canaries refuse a change among others while anything else may fail.
func (w *world) refuse() (heal func()) {
	g, typeURL := w.groups[w.random.IntN(len(w.groups))], staged[w.random.IntN(2)]
	return w.spoil(g, typeURL, resource(w.random.IntN(sizes[typeURL])), false)
}

// halt has canaries refuse a change among others: all relays halt it, also once they have been started again, nobody else ever has
// any of it, the canaries lose it again, and endpoints go on changing.
func (w *world) halt() (heal func()) {
	if len(w.staging.relays) < len(w.relays()) {
		return nothing // a client of the other one would be told
	}
	w.current("a change that canaries refuse")
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
	w.awaitRollouts(origin, "halted, as before relays were started again", halted)
	w.haveLastGood(g, typeURL, was)
	w.agreeOnEndpoints()
	w.seen.add("editions that canaries refused", len(w.staging.relays))
	return func() {
		mend()
		w.awaitRollouts(origin, "mended", func(s *rollout.Status) bool { return s.Phase != rollout.Halted })
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

// haveLastGood waits until all streams of a group that want all of a type have what there was.
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
			w.t.Errorf("after an edition was refused, %v has not the last good of %s: it has %d, want %d", s, typeURL, len(s.State()[typeURL]), len(want))
		}
	}
}

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

// agreeOnEndpoints waits until all streams have the endpoints that the origin has: these wait for no rollout.
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
			w.t.Errorf("while a rollout is halted, %v has other endpoints: %s", s, s.group.ledger.Differs(s.State(), s.variant, wants))
		}
	}
}

// restartAmid has relays or origins start again while an edition is with its first clients, and change what it changes.
func (w *world) restartAmid() (heal func()) {
	if len(w.staging.relays) == 0 {
		return nothing
	}
	w.current("a change amid which relays or origins start again")
	for _, g := range w.groups {
		_, present := g.names(relaytest.ClusterType)
		for _, name := range present[:len(present)/2] {
			g.ledger.Put(g.contents, g.content(relaytest.ClusterType, name))
		}
	}
	w.awaitRollouts("default", "with some clients", func(s *rollout.Status) bool { return s.Phase != rollout.Gathering })
	w.seen.add("editions amid which something was started again", len(w.staging.relays))
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
