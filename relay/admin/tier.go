package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"
)

// FleetStatus is the response to GET /api/v1/fleet: all relays of a tier. Relays that cannot be reached have an error.
type FleetStatus struct {
	Relays []FleetRelay `json:"relays"` // this one first

	// Disagreements are the sets whose content differs between relays. A change that is being distributed causes some for
	// a moment.
	Disagreements []Disagreement `json:"disagreements"`
}

// A FleetRelay is the response of one relay of the tier.
type FleetRelay struct {
	Address string `json:"address"`         // from TENDER_PEERS; "self" for this relay if TENDER_PEERS does not list it
	Error   string `json:"error,omitempty"` // why there is no response; the fields below are then absent

	*FleetSummary
}

// A FleetSummary is the response to GET /api/v1/fleet/self: the state of a relay for its peers.
type FleetSummary struct {
	Instance string      `json:"instance"` // of the process: random
	NodeID   string      `json:"node_id"`
	Version  string      `json:"version"`
	Ready    bool        `json:"ready"`
	Streams  int         `json:"streams"`
	Refusing int         `json:"refusing"` // clients
	Lagging  int         `json:"lagging"`  // clients
	Held     int         `json:"held"`     // changes that are held (tender release)
	Frozen   []string    `json:"frozen"`   // origins
	Views    []FleetView `json:"views"`    // at most MaxFleetViews
	Omitted  int         `json:"omitted,omitempty"`
}

// MaxFleetViews is how many views a FleetSummary lists. Omitted counts the others.
const MaxFleetViews = 1000

// A FleetView is the content of a view.
type FleetView struct {
	Group  string `json:"group"`
	Origin string `json:"origin"`
	Shared bool   `json:"shared,omitempty"`

	// Generation is a digest of Versions. Relays with equal digests hold the same content.
	Generation string `json:"generation,omitempty"`

	// Versions are the versions of wildcard sets by type. Types that clients subscribe to by name only are left out,
	// because the clients of replicas differ.
	Versions map[string]string `json:"versions"`
}

// A ServedGeneration is a generation of a view, and the addresses of the relays that serve it.
type ServedGeneration struct {
	Group, Origin, Generation string
	Relays                    []string
	Differs                   bool // other relays serve another generation of the view
}

// Generations returns the generations of all views of reachable relays, by group and origin.
func (s *FleetStatus) Generations() (served []ServedGeneration) {
	for _, r := range s.Relays {
		if r.FleetSummary == nil {
			continue
		}
		for _, v := range r.Views {
			if v.Generation != "" {
				served = append(served, ServedGeneration{Group: v.Group, Origin: v.Origin, Generation: v.Generation, Relays: []string{r.Address}})
			}
		}
	}
	slices.SortStableFunc(served, func(a, b ServedGeneration) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Generation, b.Generation))
	})
	merged := served[:0]
	for _, next := range served {
		last := len(merged) - 1
		switch {
		case last < 0 || merged[last].Group != next.Group || merged[last].Origin != next.Origin:
			merged = append(merged, next)
		case merged[last].Generation == next.Generation:
			merged[last].Relays = append(merged[last].Relays, next.Relays...)
		default:
			merged[last].Differs, next.Differs = true, true
			merged = append(merged, next)
		}
	}
	return merged
}

// A Disagreement is a wildcard set whose content differs between relays.
type Disagreement struct {
	Group    string              `json:"group"`
	Origin   string              `json:"origin"`
	TypeURL  string              `json:"type_url"`
	Versions map[string][]string `json:"versions"` // the addresses of relays by version
}

// FleetAnswers is the response to a command for all relays of a tier: POST /api/v1/fleet/NAME.
type FleetAnswers struct {
	Relays []FleetAnswer `json:"relays"` // this one first
}

// A FleetAnswer is the response of one relay to a command.
type FleetAnswer struct {
	Address string          `json:"address"`
	NodeID  string          `json:"node_id,omitempty"`
	Error   string          `json:"error,omitempty"` // why it was not carried out
	Answer  json.RawMessage `json:"answer,omitempty"`
}

// A Tier has the other relays of a tier. Its methods may be called from any goroutine.
type Tier interface {
	// Status asks all peers for their summaries.
	Status(ctx context.Context, own *FleetSummary) FleetStatus

	// Forward sends a command to all peers on behalf of an operator, and returns their responses. long is the timeout of
	// each.
	Forward(ctx context.Context, own *FleetSummary, name, operator string, args []byte, long time.Duration) []FleetAnswer
}

// errNoPeers is the response to requests for the tier if TENDER_PEERS is off.
var errNoPeers = Refuse(http.StatusNotFound, errors.New("TENDER_PEERS is off"))

func (s *Server) fleetStatus(r *http.Request) (any, error) {
	if s.cfg.Tier == nil {
		return nil, errNoPeers
	}
	return s.cfg.Tier.Status(r.Context(), s.cfg.Summary()), nil
}

func (s *Server) fleetSelf(*http.Request) (any, error) {
	if s.cfg.Summary == nil {
		return nil, errNoPeers
	}
	return s.cfg.Summary(), nil
}

// Timeouts of forwarding beside the command, and of a command that is not long.
const (
	peersTime   = 30 * time.Second
	commandTime = 20 * time.Second
)

// forAll returns a command that this relay and all its peers carry out.
func (s *Server) forAll(c Command) Command {
	long := max(c.Long, commandTime)
	return Command{Name: "fleet/" + c.Name, Long: long + peersTime, do: func(ctx context.Context, args []byte) (any, error) {
		if s.cfg.Tier == nil {
			return nil, errNoPeers
		}
		own := s.cfg.Summary()
		operator := CallerOf(ctx).By(whyOf(args).User)
		others := make(chan []FleetAnswer, 1)
		go func() { others <- s.cfg.Tier.Forward(ctx, own, c.Name, operator, args, long) }() // awaited below
		mine := FleetAnswer{Address: "self", NodeID: own.NodeID}
		answer, err := c.do(ctx, args)
		if err == nil {
			mine.Answer, err = json.Marshal(answer)
		}
		if err != nil {
			mine.Error = err.Error()
		}
		return FleetAnswers{Relays: append([]FleetAnswer{mine}, <-others...)}, nil
	}}
}

// withFleet adds, for each command that peers forward, one for all relays of the tier.
func (s *Server) withFleet(commands []Command) []Command {
	all := slices.Clone(commands)
	for _, c := range commands {
		if c.Forwarded {
			all = append(all, s.forAll(c))
		}
	}
	return all
}
