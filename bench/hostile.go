package main

import (
	"strings"
	"time"

	"github.com/xdstender/tender/bench/attack"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/process"
	"github.com/xdstender/tender/bench/serve"
)

// joins is how many clients connect in peace, and as many under the attack.
const joins = 10

// attackers is how many connections an attack has.
const attackers = 10

// peerMiB is what one peer may have a relay with the default limits use of memory, in MiB: what its requests take is a fourth of
// TENDER_MAX_BUFFERED_REQUEST_BYTES, and as much again as long as it was not collected; what is remembered of it, connections, streams and
// names, is less than the rest.
const peerMiB = 600

// mostOfPeace is how many times as long as in peace deliveries may take under the attack with large Nodes.
const mostOfPeace = 1.5

// highest is how much more memory the relay had at its highest than before the attack, in MiB.
func highest(f figures) float64 {
	if f.onset == nil {
		return 0
	}
	return max(f.onset.peak, f.onset.grown+f.peak)
}

// hostile is HOSTILE: what an attack costs clients that are neighbours of it. Each row is a relay of its own, measured
// in peace and under an attack, one right after the other.
func (o options) hostile() scenario {
	s := scenario{
		id:    "HOSTILE",
		title: "100 clients told of 50 changes a second, in peace and under an attack over 10 connections of another host", rounds: 3,
	}
	for _, kind := range o.wantedAttacks() {
		attacked := clusters(100, 100)
		attacked.polled = true
		attacked.environ = []string{"TENDER_LRS=aggregate", "TENDER_NODE_GROUP_BY=cluster"}
		s.rows = append(s.rows, row{label: kind, kind: "tender", setup: attacked, act: o.underAttack(kind)})
		s.checks = append(s.checks,
			check{what: "p50 delay, times that in peace", figure: ratio(p50, inPeace(p50)), a: kind, most: mostOfPeace, reported: kind != "large Nodes"},
			check{what: "p99 delay, times that in peace", figure: ratio(p99, inPeace(p99)), a: kind, most: mostOfPeace, reported: kind != "large Nodes"},
			check{what: "highest RSS above that in peace, MiB", figure: highest, a: kind, most: peerMiB})
	}
	return s
}

// wantedAttacks returns the attacks to run.
func (o options) wantedAttacks() []string {
	if o.attacks == "" {
		return attack.Kinds()
	}
	return strings.Split(o.attacks, ",")
}

func ratio(a, b func(figures) float64) func(figures) float64 {
	return func(f figures) float64 { return a(f) / b(f) }
}

// underAttack returns an act: measure changes and clients that join in peace, attack, measure changes while that uses up what may come
// at once, and measure both then.
func (o options) underAttack(kind string) func(*stage, *figures) error {
	c := serve.Changes{TypeURL: content.Cluster, Count: o.scaled(100), Every: 20 * time.Millisecond}
	until := c // what may come at once has come
	if until.Count *= 2; attack.Returns(kind) {
		until.Count *= 8 // of connections that is much, for fleets
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
		attacker, err := process.StartRole(st.stderr, "attack")
		if err != nil {
			return err
		}
		defer attacker.Kill()
		var before, after serve.Traffic
		if err := st.changer.Call("Traffic", struct{}{}, &before); err != nil {
			return err
		}
		order := attack.Order{Kind: kind, Address: st.addresses[0], Polls: st.polls, Connections: attackers}
		if err := attacker.Call("Start", order, &struct{}{}); err != nil {
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

// followBusy is follow, and how busy the servers are meanwhile.
func (st *stage) followBusy(f *figures, c serve.Changes) error {
	began := time.Now()
	if err := st.follow(f, c); err != nil {
		return err
	}
	f.cores = f.spent / time.Since(began).Seconds()
	return nil
}
