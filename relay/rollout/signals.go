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
	Cohort int    `json:"cohort"`         // index in Status.Cohorts
}

// Limits for the comparison of disconnects between the reached cohorts, which are served the edition, and all others.
const (
	minDisconnected   = 2  // minimum number of disconnected clients in the reached cohorts
	minClientsPerSide = 5  // minimum number of clients in the reached cohorts, and in the others
	disconnectMargin  = 10 // percentage points that the share of the reached cohorts may exceed twice the share of others
	maxReconnects     = 3  // reconnects of one client in a stage that count as a crash loop
)

// Signals count rejections and disconnects of clients since an edition was cut. Only clients that had accepted the last
// good before they were served the edition count, so that a forged Node cannot halt the edition. A client is a Node and
// a peer. Each Node and each peer counts once.
type Signals struct {
	stages         int
	rejectionLimit int

	clients        map[Client]*clientState
	tallies        [MaxStages + 1]tally // clients by cohort
	rejected       tally                // clients that rejected the edition
	firstRejection Rejection            // the first rejection that counts
}

// A clientState is the state of a client that had accepted the last good.
type clientState struct {
	Client
	rejectedTypes []string // type URLs that the client had rejected before the edition
	offline       bool
	disconnected  bool // in this stage
	reconnects    int  // number of reconnects in this stage
}

// A Rejection is a NACK.
type Rejection struct {
	Client
	TypeURL string `json:"type_url"`
	Detail  string `json:"detail"` // the error_detail message of the client
}

// A tally counts distinct clients.
type tally struct{ nodes, peers map[string]bool }

// add counts a client and returns true, unless its Node or its peer was counted before. A client without a peer counts
// by its Node.
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

// count returns the number of counted clients.
func (t *tally) count() int { return len(t.nodes) }

// NewSignals returns the signals of an edition, without clients.
func NewSignals(cfg Config) *Signals {
	return &Signals{stages: len(cfg.Stages), rejectionLimit: cfg.RejectionLimit, clients: make(map[Client]*clientState)}
}

// AddClient adds a client that has accepted the last good, except for the types that it rejects. Repeated calls add
// rejected types. A client with the same Node and another peer is a separate client.
func (s *Signals) AddClient(c Client, rejectedTypes ...string) {
	k := s.clients[c]
	if k == nil {
		k = &clientState{Client: c}
		s.clients[c] = k
		s.tallies[c.Cohort].add(c)
	}
	k.rejectedTypes = append(k.rejectedTypes, rejectedTypes...)
}

// BeginStage resets the counts of disconnects and reconnects, so that cohorts are compared over the same time.
func (s *Signals) BeginStage() {
	for _, k := range s.clients {
		k.disconnected, k.reconnects = false, 0
	}
}

// AddRejection counts a NACK of a resource of the edition. It returns false if the NACK does not count.
func (s *Signals) AddRejection(r Rejection) bool {
	k := s.lookup(r.Client)
	if k == nil || slices.Contains(k.rejectedTypes, r.TypeURL) || !s.rejected.add(k.Client) {
		return false
	}
	if s.rejected.count() == 1 {
		s.firstRejection = r
	}
	return true
}

// RecordDisconnect records that a client closed its stream.
func (s *Signals) RecordDisconnect(c Client) {
	if k := s.lookup(c); k != nil {
		k.offline, k.disconnected = true, true
	}
}

// RecordReconnect records that a disconnected client has opened a stream.
func (s *Signals) RecordReconnect(c Client) {
	if k := s.lookup(c); k != nil && k.offline {
		k.offline = false
		k.reconnects++
	}
}

// lookup returns the state of a client with the same Node, peer and cohort; nil without one.
func (s *Signals) lookup(c Client) *clientState { return s.clients[c] }

// accepted reports whether a client was added without rejected types.
func (s *Signals) accepted(c Client) bool {
	k := s.lookup(c)
	return k != nil && len(k.rejectedTypes) == 0
}

// Rejections returns the number of clients that rejected the edition.
func (s *Signals) Rejections() int { return s.rejected.count() }

// HaltReason returns the reason to halt an edition that is served to the first reached cohorts; empty without a reason.
// elapsed is the age of the stage, for the text.
func (s *Signals) HaltReason(reached int, elapsed time.Duration) string {
	if n := s.rejected.count(); n > s.rejectionLimit {
		first := s.firstRejection
		return fmt.Sprintf("%s rejected the edition (limit %d): %s rejected %s: %s",
			pluralClients(n), s.rejectionLimit, first.Node, first.TypeURL, first.Detail)
	}
	if reason := s.crashReason(reached, elapsed); reason != "" {
		return reason
	}
	return s.disconnectReason(reached)
}

// crashReason returns the reason to halt if a client with the edition reconnects in a loop and no client without it.
func (s *Signals) crashReason(reached int, elapsed time.Duration) string {
	var with *clientState
	for _, k := range s.clients {
		if k.reconnects < maxReconnects {
			continue
		}
		if k.Cohort >= reached {
			return ""
		}
		with = k
	}
	if with == nil {
		return ""
	}
	return fmt.Sprintf("%s disconnected and reconnected %d times in %v, and no client without the edition did",
		with.Node, with.reconnects, elapsed)
}

// disconnectReason returns the reason to halt if the share of disconnected clients is much higher with the edition.
func (s *Signals) disconnectReason(reached int) string {
	var with, without struct{ clients, disconnected int }
	disconnected := s.disconnectedByCohort()
	for cohort := range s.tallies[:s.stages+1] {
		side := &without
		if cohort < reached {
			side = &with
		}
		side.clients += s.tallies[cohort].count()
		side.disconnected += disconnected[cohort].count()
	}
	switch {
	case with.disconnected < minDisconnected, min(with.clients, without.clients) < minClientsPerSide:
		return ""
	case 100*with.disconnected*without.clients <= (200*without.disconnected+disconnectMargin*without.clients)*with.clients:
		return "" // share with the edition <= 2 * share without it + margin, multiplied out
	}
	return fmt.Sprintf("%d of %s with the edition disconnected, and %d of %d without it",
		with.disconnected, pluralClients(with.clients), without.disconnected, without.clients)
}

// pluralClients returns a number of clients as text.
func pluralClients(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
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
	disconnected := s.disconnectedByCohort()
	for i := range cohorts {
		cohorts[i].Disconnected = disconnected[i].count()
	}
}
