package rollout

import (
	"fmt"
	"slices"
	"time"
)

// A Client identifies the sender of a signal.
type Client struct {
	Node   string `json:"node_id"`
	Peer   string `json:"peer,omitempty"` // the identity of its certificate, or its host; empty on a Unix socket
	Cohort int    `json:"cohort"`         // the index of that in Status.Cohorts
}

// Limits for the comparison of disconnects.
const (
	minDisconnected   = 2  // clients of the reached cohorts that disconnected
	minClientsPerSide = 5  // clients on each side, for a comparison
	disconnectMargin  = 10 // percentage points above twice the share of the rest
	maxReconnects     = 3  // reconnects of one client in a stage
)

// Signals count refusals and disconnects of clients since an edition was cut. Only clients that had accepted the last
// good by then count, so that a forged Node cannot halt the edition. A client is a Node and a peer. Each Node and each
// peer counts once.
type Signals struct {
	stages   int
	refusals int

	clients      map[Client]*clientState
	tallies      [MaxStages + 1]tally
	refused      tally
	firstRefusal Refusal // the first refusal that counts
}

// A known is a client that had accepted the last good.
type clientState struct {
	Client
	refusedTypes []string // types that it had refused before the edition
	offline      bool
	disconnected bool // in this stage
	reconnects   int  // number of reconnects in this stage
}

// A Refusal is a NACK.
type Refusal struct {
	Client
	TypeURL string `json:"type_url"`
	Words   string `json:"detail"` // of the client
}

// A tally counts distinct clients.
type tally struct{ nodes, peers map[string]bool }

// add counts a client whose Node and whose peer were not counted before. A client without a peer counts by its Node.
func (t *tally) add(c Client) bool {
	if t.nodes == nil {
		t.nodes, t.peers = make(map[string]bool), make(map[string]bool)
	}
	if t.nodes[c.Node] || c.Peer != "" && t.peers[c.Peer] {
		return false
	}
	t.nodes[c.Node] = true
	if c.Peer != "" {
		t.peers[c.Peer] = true
	}
	return true
}

func (t *tally) count() int { return len(t.nodes) }

// NewSignals returns the signals of an edition, without clients.
func NewSignals(cfg Config) *Signals {
	return &Signals{stages: len(cfg.Stages), refusals: cfg.Refusals, clients: make(map[Client]*clientState)}
}

// AddClient adds a client that has accepted the last good, except for the types that it refuses. Repeated calls add
// refused types. Another client with the same Node is a separate client.
func (s *Signals) AddClient(c Client, refusing ...string) {
	k := s.clients[c]
	if k == nil {
		k = &clientState{Client: c}
		s.clients[c] = k
		s.tallies[c.Cohort].add(c)
	}
	k.refusedTypes = append(k.refusedTypes, refusing...)
}

// BeginStage resets the counts of disconnects and reconnects, so that cohorts are compared over the same time.
func (s *Signals) BeginStage() {
	for _, k := range s.clients {
		k.disconnected, k.reconnects = false, 0
	}
}

// Refused counts a NACK of part of the edition, and reports whether it counts.
func (s *Signals) Refused(r Refusal) bool {
	k := s.lookup(r.Client)
	if k == nil || slices.Contains(k.refusedTypes, r.TypeURL) || !s.refused.add(k.Client) {
		return false
	}
	if s.refused.count() == 1 {
		s.firstRefusal = r
	}
	return true
}

// Disconnected records that a client closed its stream.
func (s *Signals) Disconnected(c Client) {
	if k := s.lookup(c); k != nil {
		k.offline, k.disconnected = true, true
	}
}

// Reconnected records that a disconnected client has opened a stream.
func (s *Signals) Reconnected(c Client) {
	if k := s.lookup(c); k != nil && k.offline {
		k.offline = false
		k.reconnects++
	}
}

// lookup returns the state of a client with the same Node, peer and cohort; nil without one.
func (s *Signals) lookup(c Client) *clientState { return s.clients[c] }

// accepted reports whether a client was added without refused types.
func (s *Signals) accepted(c Client) bool {
	k := s.lookup(c)
	return k != nil && len(k.refusedTypes) == 0
}

// Refusals returns the number of clients that refused the edition.
func (s *Signals) Refusals() int { return s.refused.count() }

// Halt returns the reason to halt an edition that is served to the first reached cohorts; empty without a reason.
func (s *Signals) Halt(reached int, in time.Duration) string {
	if n := s.refused.count(); n > s.refusals {
		return fmt.Sprintf("%s refused it, at most %d may: %s refused %s: %s", plural(n, "client"), s.refusals, s.firstRefusal.Node, s.firstRefusal.TypeURL, s.firstRefusal.Words)
	}
	var of, left [2]int // the reached cohorts, and all others
	leavers := s.disconnectedByCohort()
	for cohort := range s.tallies[:s.stages+1] {
		of[s.side(cohort, reached)] += s.tallies[cohort].count()
		left[s.side(cohort, reached)] += leavers[cohort].count()
	}
	var crashed [2]*clientState
	for _, k := range s.clients {
		if k.reconnects >= maxReconnects {
			crashed[s.side(k.Cohort, reached)] = k
		}
	}
	if crashed[0] != nil && crashed[1] == nil {
		return fmt.Sprintf("%s disconnected and reconnected %d times in %v, and no client without the edition did", crashed[0].Node, crashed[0].reconnects, in)
	}
	if left[0] >= minDisconnected && min(of[0], of[1]) >= minClientsPerSide && 100*left[0]*of[1] > (200*left[1]+disconnectMargin*of[1])*of[0] {
		return fmt.Sprintf("%d of %s with the edition disconnected, and %d of %d without it", left[0], plural(of[0], "client"), left[1], of[1])
	}
	return ""
}

// plural returns a count with its noun.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// disconnectedByCohort returns the clients of each cohort that disconnected in this stage, including reconnected ones.
func (s *Signals) disconnectedByCohort() (all [MaxStages + 1]tally) {
	for _, k := range s.clients {
		if k.disconnected {
			all[k.Cohort].add(k.Client)
		}
	}
	return all
}

// countDisconnected sets the number of disconnected clients in cohorts.
func (s *Signals) countDisconnected(cohorts []Cohort) {
	leavers := s.disconnectedByCohort()
	for i := range cohorts {
		cohorts[i].Left = leavers[i].count()
	}
}

// side returns 0 for a cohort that is served the edition, and 1 for any other.
func (s *Signals) side(cohort, reached int) int {
	if cohort < reached {
		return 0
	}
	return 1
}
