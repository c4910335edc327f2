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

	known   map[Client]*known
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

// NewSignals returns signals of an edition, to which no client is known yet.
func NewSignals(cfg Config) *Signals {
	return &Signals{stages: len(cfg.Stages), refusals: cfg.Refusals, known: make(map[Client]*known)}
}

// Know adds a client that has accepted the last good, but for types that it refuses. Calls for one client add up, and
// another client with its Node takes nothing from it.
func (s *Signals) Know(c Client, refusing ...string) {
	k := s.known[c]
	if k == nil {
		k = &known{Client: c}
		s.known[c] = k
		s.clients[c.Cohort].add(c)
	}
	k.refusing = append(k.refusing, refusing...)
}

// BeginStage resets the counts of clients that disconnect and return: a stage compares its clients with the rest over the
// same time.
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
func (s *Signals) knows(c Client) *known { return s.known[c] }

// accepted reports whether a client is known and had refused nothing of the last good.
func (s *Signals) accepted(c Client) bool {
	k := s.knows(c)
	return k != nil && len(k.refusing) == 0
}

// Refusals returns how many clients refused the edition.
func (s *Signals) Refusals() int { return s.refused.count() }

// Halt returns why an edition that is served to so many cohorts must go no further; empty if nothing speaks against it.
func (s *Signals) Halt(reached int, in time.Duration) string {
	if n := s.refused.count(); n > s.refusals {
		return fmt.Sprintf("%s refused it, at most %d may: %s refused %s: %s", counted(n, "client"), s.refusals, s.first.Node, s.first.TypeURL, s.first.Words)
	}
	var of, left [2]int // the cohorts reached, and the rest
	leavers := s.leavers()
	for cohort := range s.clients[:s.stages+1] {
		of[s.side(cohort, reached)] += s.clients[cohort].count()
		left[s.side(cohort, reached)] += leavers[cohort].count()
	}
	var crashed [2]*known
	for _, k := range s.known {
		if k.returns >= mostReturns {
			crashed[s.side(k.Cohort, reached)] = k
		}
	}
	if crashed[0] != nil && crashed[1] == nil {
		return fmt.Sprintf("%s left and came back %d times in %v, and no client did without it", crashed[0].Node, crashed[0].returns, in)
	}
	if left[0] >= leastLeft && min(of[0], of[1]) >= leastSide && 100*left[0]*of[1] > (200*left[1]+marginLeft*of[1])*of[0] {
		return fmt.Sprintf("%d of %s left, and of others %d of %d", left[0], counted(of[0], "client"), left[1], of[1])
	}
	return ""
}

// counted returns a number of things in words.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// leavers returns the clients of each cohort that closed their streams in this stage, whether or not they came back.
func (s *Signals) leavers() (all [MaxStages + 1]tally) {
	for _, k := range s.known {
		if k.left {
			all[k.Cohort].add(k.Client)
		}
	}
	return all
}

// countLeft records in cohorts how many clients of each have left in this stage.
func (s *Signals) countLeft(cohorts []Cohort) {
	leavers := s.leavers()
	for i := range cohorts {
		cohorts[i].Left = leavers[i].count()
	}
}

// side returns 0 for a cohort that the edition is served to, and 1 for another.
func (s *Signals) side(cohort, reached int) int {
	if cohort < reached {
		return 0
	}
	return 1
}
