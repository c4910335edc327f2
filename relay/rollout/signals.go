package rollout

import (
	"fmt"
	"slices"
	"time"
)

// A Client is who did something with an edition.
type Client struct {
	Node   string // node.id
	Peer   string // the identity of its certificate, or its host; empty on a Unix socket
	Cohort int
}

// Bounds of the share of clients that close their streams.
const (
	leastLeft   = 2  // clients of the cohorts reached that left, at least
	leastSide   = 5  // clients on each side, for a comparison
	marginLeft  = 10 // percentage points above twice the share of the rest
	mostReturns = 3  // of one client in a stage
)

// Signals count what clients did since an edition was cut. Only clients count that had accepted the last good by then:
// what others do is no news of the edition, and a forged Node cannot halt it. A client is a Node and a peer; each Node
// counts once, and each peer does, whatever Nodes it claims to be.
type Signals struct {
	stages   int
	refusals int

	known   map[string]*known // by Node
	clients [MaxStages + 1]tally
	refused tally
	first   Refusal // the first that counts
}

// A known is a client that had accepted the last good.
type known struct {
	Client
	refusing []string // types that it refused already
	away     bool
	left     bool // in this stage, and
	returns  int  // how often it came back
}

// A Refusal is a NACK.
type Refusal struct {
	Client
	TypeURL string
	Words   string // of the client
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

// NewSignals returns signals of an edition, to which no client is known yet.
func NewSignals(cfg Config) *Signals {
	return &Signals{stages: len(cfg.Stages), refusals: cfg.Refusals, known: make(map[string]*known)}
}

// Know adds a client that has accepted the last good, but for types that it refuses. Calls for one Node add up.
func (s *Signals) Know(c Client, refusing ...string) {
	k := s.known[c.Node]
	if k == nil {
		k = &known{Client: c}
		s.known[c.Node] = k
		s.clients[c.Cohort].add(c)
	}
	k.refusing = append(k.refusing, refusing...)
}

// BeginStage begins to count those anew who leave and return: a stage compares its clients with the rest's at the same
// time.
func (s *Signals) BeginStage() {
	for _, k := range s.known {
		k.left, k.returns = false, 0
	}
}

// Refused counts a NACK of part of the edition, and reports whether it counts.
func (s *Signals) Refused(r Refusal) bool {
	k := s.knows(r.Client)
	if k == nil || slices.Contains(k.refusing, r.TypeURL) || !s.refused.add(k.Client) {
		return false
	}
	if s.refused.count() == 1 {
		s.first = r
	}
	return true
}

// Left counts that a client closed its stream.
func (s *Signals) Left(c Client) {
	if k := s.knows(c); k != nil {
		k.away, k.left = true, true
	}
}

// Returned counts that a client that left is back.
func (s *Signals) Returned(c Client) {
	if k := s.knows(c); k != nil && k.away {
		k.away = false
		k.returns++
	}
}

// knows returns the client if it is known, in the same cohort and by the same peer.
func (s *Signals) knows(c Client) *known {
	if k := s.known[c.Node]; k != nil && k.Client == c {
		return k
	}
	return nil
}

// Refusals returns how many clients refused the edition.
func (s *Signals) Refusals() int { return s.refused.count() }

// Halt returns why an edition that is served to so many cohorts must go no further; empty if nothing speaks against it.
func (s *Signals) Halt(reached int, in time.Duration) string {
	if n := s.refused.count(); n > s.refusals {
		return fmt.Sprintf("%d clients refused it, at most %d may: %s refused %s: %s", n, s.refusals, s.first.Node, s.first.TypeURL, s.first.Words)
	}
	var of, left [2]int // the cohorts reached, and the rest
	for cohort := range s.clients[:s.stages+1] {
		of[s.side(cohort, reached)] += s.clients[cohort].count()
	}
	var leavers [MaxStages + 1]tally
	var crashed [2]*known
	for _, k := range s.known {
		if k.left && leavers[k.Cohort].add(k.Client) {
			left[s.side(k.Cohort, reached)]++
		}
		if k.returns >= mostReturns {
			crashed[s.side(k.Cohort, reached)] = k
		}
	}
	if crashed[0] != nil && crashed[1] == nil {
		return fmt.Sprintf("%s left and came back %d times in %v, and no client did without it", crashed[0].Node, crashed[0].returns, in)
	}
	if left[0] >= leastLeft && min(of[0], of[1]) >= leastSide && 100*left[0]*of[1] > (200*left[1]+marginLeft*of[1])*of[0] {
		return fmt.Sprintf("%d of %d clients left, and of others %d of %d", left[0], of[0], left[1], of[1])
	}
	return ""
}

// side returns 0 for a cohort that the edition is served to, and 1 for another.
func (s *Signals) side(cohort, reached int) int {
	if cohort < reached {
		return 0
	}
	return 1
}
