package main

import (
	"strings"
	"time"

	"github.com/xdstender/tender/bench/attack"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
)

// joins is the number of clients that connect one after the other before the attack, and again during it.
const joins = 10

// attackers is the number of connections of an attack.
const attackers = 10

// peerMiB is the maximum memory in MiB that one peer may make a relay with default limits use. Buffered requests take
// a fourth of the limit of buffered requests (1 GiB without a limit of memory), and as much again until they are garbage-collected. Connections,
// streams and names take less than the rest.
const peerMiB = 600

// mostOfOther is the maximum delay under an attack, as a multiple of the delay while another relay on the same machine
// is attacked. Attackers and relays share the processors, which would not be so with hosts of their own.
const mostOfOther = 1.5

// mostOfPeace is the maximum delay during the attack with large Nodes, as a multiple of the delay before it.
const mostOfPeace = 1.5

// highest returns the highest memory use of the relay during the attack minus the use before it, in MiB.
func highest(f figures) float64 {
	if f.onset == nil {
		return 0
	}
	return max(f.onset.peak, f.onset.grown+f.peak)
}

// hostile is HOSTILE: the effect of an attack on other clients of the relay. Each row starts a relay and measures it
// right before and during the attack.
func (o options) hostile() scenario {
	s := scenario{
		id:    "HOSTILE",
		title: "100 clients told of 50 changes a second, in peace and under an attack over 10 connections of another host", rounds: 3,
	}
	for _, kind := range o.wantedAttacks() {
		attacked := clusters(100, 100)
		attacked.polled = true
		attacked.environ = []string{"TENDER_LRS=aggregate", "TENDER_NODE_GROUP_BY=cluster"}
		s.rows = append(s.rows, row{label: kind, kind: "tender", setup: attacked, act: o.underAttack(kind, false)})
		if attack.Compared(kind) {
			other := kind + ", at another relay"
			s.rows = append(s.rows, row{label: other, kind: "tender", setup: attacked, act: o.underAttack(kind, true)})
			s.checks = append(s.checks,
				check{what: "p50 delay", figure: p50, a: kind, b: other, most: mostOfOther},
				check{what: "join", figure: joined, a: kind, b: other, most: mostOfOther})
		}
		s.checks = append(s.checks,
			check{what: "p50 delay, times that in peace", figure: ratio(p50, inPeace(p50)), a: kind, most: mostOfPeace, reported: kind != "large Nodes"},
			check{what: "p99 delay, times that in peace", figure: ratio(p99, inPeace(p99)), a: kind, most: mostOfPeace, reported: kind != "large Nodes"},
			check{what: "highest RSS above that in peace, MiB", figure: highest, a: kind, most: peerMiB})
		ads := kind + ", ads"
		s.rows = append(s.rows, row{label: ads, kind: "tender", setup: attacked.ads(), act: o.underAttack(kind, false)})
		s.checks = append(s.checks,
			check{what: "p50 delay", figure: p50, a: ads, b: kind, reported: true},
			check{what: "p99 delay", figure: p99, a: ads, b: kind, reported: true},
			check{what: "highest RSS above that in peace, MiB", figure: highest, a: ads, most: peerMiB})
	}
	return s
}

// wantedAttacks returns the kinds of attack to run: all of them without the flag -attacks.
func (o options) wantedAttacks() []string {
	if o.attacks == "" {
		return attack.Kinds()
	}
	return strings.Split(o.attacks, ",")
}

// ratio returns the figure a divided by b.
func ratio(a, b func(figures) float64) func(figures) float64 {
	return func(f figures) float64 { return a(f) / b(f) }
}

// underAttack returns an act. It measures changes and joining clients, starts the attack, measures changes while the
// attack uses up its bursts, and then measures both again. The attack is on the relay, or on another one that serves
// nobody else.
func (o options) underAttack(kind string, elsewhere bool) func(*stage, *figures) error {
	c := serve.Changes{TypeURL: content.Cluster, Count: o.scaled(100), Every: 20 * time.Millisecond}
	until := c // long enough for the attack to use up the bursts of the rate limits
	if until.Count *= 2; attack.Returns(kind) {
		until.Count *= 8 // the burst of new connections is large, to admit fleets
	}
	return func(st *stage, f *figures) (err error) {
		if err := st.fill(f); err != nil {
			return err
		}
		f.peace = new(figures)
		if err := st.followBusy(f.peace, c); err != nil {
			return err
		}
		if err := st.join(f.peace, joins); err != nil {
			return err
		}
		var before, after serve.Traffic
		if err := st.changer.Call("Traffic", struct{}{}, &before); err != nil {
			return err
		}
		attacker, stop, err := o.startAttack(st, kind, elsewhere)
		defer stop()
		if err != nil {
			return err
		}
		f.onset = new(figures)
		if err := st.followBusy(f.onset, until); err != nil {
			return err
		}
		if err := st.join(f, joins); err != nil {
			return err
		}
		if err := st.followBusy(f, c); err != nil {
			return err
		}
		if err := st.changer.Call("Traffic", struct{}{}, &after); err != nil {
			return err
		}
		f.origin = &originFigures{streams: float64(after.Streams - before.Streams), requests: float64(after.Requests - before.Requests)}
		return attacker.Call("Stop", struct{}{}, &struct{}{})
	}
}

// startAttack starts an attack on the relay of a stage, or on another one. The caller must call stop.
func (o options) startAttack(st *stage, kind string, elsewhere bool) (attacker *process.Process, stop func(), err error) {
	target, strike := st, func() {}
	if elsewhere {
		if target, err = raise("tender", o.tender, st.setup); err != nil {
			return nil, strike, err
		}
		strike = target.strike
	}
	if attacker, err = process.StartRole(st.stderr, "attack"); err != nil {
		return nil, strike, err
	}
	order := attack.Order{Kind: kind, Address: target.addresses[0], Polls: target.polls, Connections: attackers}
	return attacker, func() {
		attacker.Kill()
		strike()
	}, attacker.Call("Start", order, &struct{}{})
}

// followBusy is follow, and also measures the CPU seconds per second that the servers use.
func (st *stage) followBusy(f *figures, c serve.Changes) error {
	began := time.Now()
	if err := st.follow(f, c); err != nil {
		return err
	}
	f.cores = f.spent / time.Since(began).Seconds()
	return nil
}
