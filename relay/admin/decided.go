package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/snapshot"
)

// RolloutsPath is the path at which a relay tells its peers what its rollouts have decided.
const RolloutsPath = "/api/v1/tier/rollouts"

// RolloutsWait is how long a relay waits for another decision before it answers a peer that knows all.
const RolloutsWait = 20 * time.Second

// PeerRollouts is the response to GET /api/v1/tier/rollouts: what the rollouts of a relay have decided about changes.
type PeerRollouts struct {
	Instance string `json:"instance"` // of the process: random
	Mark     string `json:"mark"`     // another one after each decision; the parameter after of the next request

	// Halted are the changes whose rollout is halted by the relay itself or by its operator.
	Halted []DecidedChanges `json:"halted"`

	// Promoted are the changes that an operator has promoted at the relay in the last minutes.
	Promoted []DecidedChanges `json:"promoted"`

	// Incomplete is true if there are more halts than those listed. Then none has ended that is not listed.
	Incomplete bool `json:"incomplete,omitempty"`
}

// A HaltAbove is a halt of a relay that is the origin of this one, or of a relay above or beside that one.
type HaltAbove struct {
	Relay     string    `json:"relay"`              // target of the origin that reported the halt
	Part      string    `json:"part"`               // name of the part there, such as rds/web
	At        time.Time `json:"at"`                 // time of the halt
	Stage     int       `json:"stage,omitempty"`    // number of stages there that had been served the changes; the rest counts as one
	Reason    string    `json:"reason,omitempty"`   // of the halt, with the relays between that and this one
	Resources int       `json:"resources"`          // number of the resources of the part that this relay received
	Followed  bool      `json:"followed,omitempty"` // the rollout here is halted too; false without TENDER_FOLLOW_HALTS
}

// Describe returns the halt for operators, without its reason.
func (h *HaltAbove) Describe(now time.Time) string {
	text := fmt.Sprintf("%s HALTED ABOVE by %s for %s", h.Part, h.Relay, humanize.Seconds(max(now.Sub(h.At), 0).Seconds()))
	if h.Stage > 0 {
		text += fmt.Sprintf(", after stage %d", h.Stage)
	}
	if h.Followed {
		return text + ", followed here"
	}
	return text + ", not followed here"
}

// DecidedChanges are changes of an origin that belong together, and what was decided about them.
type DecidedChanges struct {
	Origin   string                     `json:"origin"`
	Part     string                     `json:"part"` // the resource after which they are named
	At       time.Time                  `json:"at"`
	Reason   string                     `json:"reason,omitempty"` // of a halt
	By       string                     `json:"by,omitempty"`     // the operator of a promotion
	Stage    int                        `json:"stage,omitempty"`  // number of stages that are served the changes; the rest is one more
	Sections []snapshot.RejectedSection `json:"sections"`

	// Partial is true if the decision is, or may be, about more resources than those of sections.
	Partial bool `json:"partial,omitempty"`
}

// A rolloutsServer serves what rollouts have decided.
type rolloutsServer struct {
	// decided returns what rollouts have decided, and a channel that is closed with the next decision.
	decided func() (*PeerRollouts, <-chan struct{})
	closing <-chan struct{} // closed when the server is shut down
}

// ServeHTTP serves what rollouts have decided, once that is not what the peer knows, or RolloutsWait later.
func (s rolloutsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.decided == nil {
		writeError(w, http.StatusNotFound, "TENDER_PEERS or TENDER_ROLLOUT is off")
		return
	}
	ctx, cancel := extendTimeouts(r.Context(), w, RolloutsWait)
	defer cancel()
	writeJSON(w, r, s.next(ctx, r.URL.Query().Get("after")))
}

// next returns the decisions after a mark, or the present ones when ctx ends.
func (s rolloutsServer) next(ctx context.Context, after string) *PeerRollouts {
	for {
		now, next := s.decided()
		if now.Mark != after {
			return now
		}
		select {
		case <-next:
		case <-s.closing:
			return now
		case <-ctx.Done():
			return now
		}
	}
}
