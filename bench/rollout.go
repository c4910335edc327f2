package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// tenPercent is a rollout that sends a change to a tenth of the clients first, and waits longer than any run takes.
const tenPercent = "10% 1h"

// rollouts is ROLLOUT: the cost of enabled rollouts for changes that are not staged, with and without an open rollout.
func (o options) rollouts() scenario {
	changes := func(typeURL string) serve.Changes {
		return serve.Changes{TypeURL: typeURL, Count: o.scaled(200), Every: 50 * time.Millisecond}
	}
	endpoints := func(label, stages string, begin func(*stage) error) row {
		s := clusters(100, o.scaled(1000))
		s.kinds = append(s.kinds, content.Kind{TypeURL: content.Endpoint, Count: 100, Bytes: 256})
		s.interests = append(s.interests, load.Interest{TypeURL: content.Endpoint, Count: 100, Of: 100})
		s.stages = stages
		return row{label: "endpoints, " + label, kind: "tender", setup: s, act: changingAfter(begin, changes(content.Endpoint))}
	}
	wildcard := func(label, stages string) row {
		s := clusters(100, o.scaled(1000))
		s.stages, s.environ = stages, []string{"TENDER_ROLLOUT_TYPES=lds"} // so that changes of clusters are not staged
		return row{label: "S1, " + label, kind: "tender", setup: s, act: changingAfter(nothingOpen, changes(content.Cluster))}
	}
	s := scenario{
		id: "ROLLOUT", title: "1,000 clients, one of 100 clusters, or of 100 EDS names of 256 bytes, changed every 50 ms: with rollouts and without", rounds: 9,
		rows: []row{
			wildcard("off", "off"), wildcard("on", tenPercent),
			endpoints("off", "off", nothingOpen), endpoints("on", tenPercent, nothingOpen),
			endpoints("open", tenPercent, (*stage).openRollout), endpoints("halted", tenPercent, (*stage).haltRollout),
		},
	}
	s.checks = []check{
		{what: "CPU a delivery", figure: cpu, a: "S1, on", b: "S1, off", most: 1.03},
		{what: "p99 delay", figure: p99, a: "S1, on", b: "S1, off", reported: true},
	}
	for _, state := range []string{"on", "open", "halted"} {
		for _, c := range []check{{what: "CPU a delivery", figure: cpu}, {what: "p50 delay", figure: p50}, {what: "p99 delay", figure: p99}} {
			c.a, c.b, c.reported = "endpoints, "+state, "endpoints, off", true
			s.checks = append(s.checks, c)
		}
	}
	return s
}

// nothingOpen starts no rollout.
func nothingOpen(*stage) error { return nil }

// changingAfter is changing, and calls begin once all clients are connected.
func changingAfter(begin func(*stage) error, c serve.Changes) func(*stage, *figures) error {
	return func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
		if err := begin(st); err != nil {
			return err
		}
		return st.warmAndFollow(f, c)
	}
}

// runInStages returns the variables of a Tender with the setup's TENDER_ROLLOUT. Content versions and snapshots are
// set even if that is off, so that both cases differ in rollouts only.
func (st *stage) runInStages() (environ []string, err error) {
	if st.operator, err = st.reserve(); err != nil {
		return nil, err
	}
	if st.snapshots, err = os.MkdirTemp("", "bench"); err != nil {
		return nil, fmt.Errorf("make a directory for snapshots: %w", err)
	}
	return []string{
		"TENDER_ROLLOUT=" + st.stages, "TENDER_DELTA_VERSIONS=content", "TENDER_SNAPSHOT_DIR=" + st.snapshots, "TENDER_ADMIN_LISTEN=" + st.operator,
		"TENDER_COLD_WAIT=1s", // so that wildcard sets are confirmed soon
	}, nil
}

// openRollout changes a cluster, and waits until all clients of the first stage have accepted the change. Changes
// before the wildcard set is confirmed are not staged, so it repeats the change until a rollout starts.
func (st *stage) openRollout() error {
	st.withheld = content.Cluster
	for waits, deadline := false, time.Now().Add(patience); !waits; time.Sleep(settle) {
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for a change that waits: not after %v", patience)
		}
		if _, err := st.change(serve.Changes{TypeURL: content.Cluster, Count: 1}); err != nil {
			return err
		}
		time.Sleep(settle)
		s, err := st.rolloutStatus()
		if err != nil {
			return err
		}
		waits = s.Phase != rollout.Current
	}
	return st.awaitRollout(func(s *rollout.Status) bool {
		first := s.Cohorts[0]
		return s.Phase == rollout.Rolling && first.Subscribed > 0 && first.Accepted == first.Subscribed
	})
}

// haltRollout is openRollout, and then aborts the rollout over the admin API.
func (st *stage) haltRollout() error {
	if err := st.openRollout(); err != nil {
		return err
	}
	resp, err := http.Post("http://"+st.operator+"/api/v1/rollout/abort", "application/json", bytes.NewReader([]byte("{}")))
	if err != nil {
		return fmt.Errorf("abort rollout: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("abort rollout: %s", resp.Status)
	}
	return st.awaitRollout(func(s *rollout.Status) bool { return s.Phase == rollout.Halted })
}

// awaitRollout polls the rollout of Tender's only origin until reached returns true.
func (st *stage) awaitRollout(reached func(*rollout.Status) bool) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s, err := st.rolloutStatus()
		if err != nil {
			return err
		}
		if reached(s) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for a rollout: not after %v, but %+v", patience, s)
		}
	}
}

// rolloutStatus reads the rollout of Tender's only origin from the admin API.
func (st *stage) rolloutStatus() (*rollout.Status, error) {
	resp, err := http.Get("http://" + st.operator + "/api/v1/rollouts")
	if err != nil {
		return nil, fmt.Errorf("status of rollouts: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var all admin.Rollouts
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return nil, fmt.Errorf("status of rollouts: %s: %w", resp.Status, err)
	}
	if len(all.Rollouts) != 1 {
		return nil, errors.New("status of rollouts: not that of one origin")
	}
	return all.Rollouts[0], nil
}
