package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// TierStatus is the response to GET /api/v1/tier: all relays of a tier. Unreachable relays have an error.
type TierStatus struct {
	Relays []TierRelay `json:"relays"` // this relay first

	// Disagreements are the sets whose content differs between relays. They occur for a short time while a change is
	// distributed.
	Disagreements []Disagreement `json:"disagreements"`
}

// Self is the address of this relay in a [TierStatus] if TENDER_PEERS does not list it.
const Self = "self"

// A TierRelay is the response of one relay of the tier.
type TierRelay struct {
	Address string `json:"address"`         // from TENDER_PEERS; "self" for this relay if TENDER_PEERS does not list it
	Error   string `json:"error,omitempty"` // why there is no response; the fields below are then absent

	*TierSummary
}

// A TierSummary is the response to GET /api/v1/tier/self: the state of a relay for its peers.
type TierSummary struct {
	Instance  string     `json:"instance"` // of the process: random
	NodeID    string     `json:"node_id"`
	Version   string     `json:"version"`
	Ready     bool       `json:"ready"`
	Streams   int        `json:"streams"`
	Rejecting int        `json:"rejecting"` // number of clients
	Lagging   int        `json:"lagging"`   // number of clients
	Pending   int        `json:"pending"`   // number of pending changes, without dropped ones (tender pending)
	Frozen    []string   `json:"frozen"`    // names of frozen origins
	Views     []TierView `json:"views"`     // at most MaxTierViews
	Omitted   int        `json:"omitted,omitempty"`

	// Below counts the clients of clients that are relays. Nil if none is a relay; earlier releases omit it.
	Below *TierTotals `json:"below,omitempty"`

	// Origins says whether the relay receives what its origins state. Earlier releases omit it.
	Origins []TierOrigin `json:"origins,omitempty"`
}

// A TierOrigin reports whether a relay receives the changes of an origin. Otherwise its clients are unknown.
type TierOrigin struct {
	Name      string `json:"name"`
	Connected bool   `json:"connected"` // see Origin

	// StaleGroups are the keys of the groups with clients whose view has lost its upstream stream. StaleShared reports the
	// same of a view of xdstp names, which groups share.
	StaleGroups []string `json:"stale_groups,omitempty"`
	StaleShared bool     `json:"stale_shared,omitempty"`

	// BadFiles is the number of files of a directory that are refused.
	BadFiles int `json:"bad_files,omitempty"`

	// Error is why the origin is not connected, or why the directory cannot be read.
	Error string `json:"error,omitempty"`
}

// Receives reports whether the relay receives what the origin states, for all groups.
func (o *TierOrigin) Receives() bool {
	return o.Connected && len(o.StaleGroups) == 0 && !o.StaleShared && o.BadFiles == 0 && o.Error == ""
}

// MaxTierViews is the maximum number of views in a TierSummary. Omitted counts the others.
const MaxTierViews = 1000

// A TierView is the content of a view.
type TierView struct {
	Group  string `json:"group"`
	Origin string `json:"origin"`
	Shared bool   `json:"shared,omitempty"`

	// Generation is a digest of Versions. Relays with equal digests hold the same content.
	Generation string `json:"generation,omitempty"`

	// Versions are the versions of wildcard sets by type. Types that clients subscribe to by name only are omitted,
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
func (s *TierStatus) Generations() (served []ServedGeneration) {
	for _, r := range s.Relays {
		if r.TierSummary == nil {
			continue
		}
		for _, v := range r.Views {
			if v.Generation != "" {
				served = append(served, ServedGeneration{
					Group: v.Group, Origin: v.Origin, Generation: v.Generation, Relays: []string{r.Address},
				})
			}
		}
	}
	slices.SortStableFunc(served, func(a, b ServedGeneration) int {
		return cmp.Or(
			cmp.Compare(a.Group, b.Group), cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Generation, b.Generation))
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

// TierAnswers is the response to a command for all relays of a tier: POST /api/v1/tier/NAME.
type TierAnswers struct {
	Relays []TierAnswer `json:"relays"` // this relay first
}

// A TierAnswer is the response of one relay to a command.
type TierAnswer struct {
	Address string          `json:"address"`
	NodeID  string          `json:"node_id,omitempty"`
	Error   string          `json:"error,omitempty"` // why the command failed or was not sent
	Answer  json.RawMessage `json:"answer,omitempty"`
}

// A Tier sends requests to the other relays of a tier. Its methods may be called from any goroutine.
type Tier interface {
	// Status requests the summaries of all peers. own is the summary of this relay.
	Status(ctx context.Context, own *TierSummary) TierStatus

	// Forward sends a command to all peers on behalf of an operator, and returns their responses. timeout is the timeout
	// of each.
	Forward(
		ctx context.Context, own *TierSummary, name, operator string, args []byte, timeout time.Duration,
	) []TierAnswer

	// Query requests a path of the API from the peer with an address that Status returns, on behalf of an operator, and
	// returns the response.
	Query(ctx context.Context, address, path, operator string, timeout time.Duration) (json.RawMessage, error)
}

// errNoPeers is the response to requests for the tier if TENDER_PEERS is off.
var errNoPeers = Refuse(http.StatusNotFound, errors.New("TENDER_PEERS is off"))

// A tierServer serves requests for the tier. Its fields are those of [Config].
type tierServer struct {
	tier    Tier
	summary func() *TierSummary
}

// status serves the state of the tier.
func (t tierServer) status(r *http.Request) (any, error) {
	if t.tier == nil {
		return nil, errNoPeers
	}
	return t.tier.Status(r.Context(), t.summary()), nil
}

// self serves the summary of this relay.
func (t tierServer) self(*http.Request) (any, error) {
	if t.summary == nil {
		return nil, errNoPeers
	}
	return t.summary(), nil
}

// ofRelay serves a request for one relay of the tier, which the parameter "relay" names: own serves that for this relay.
// path returns the path of the API that a peer is asked for.
func (t tierServer) ofRelay(
	own func(*http.Request) (any, error), path func(*http.Request) string,
) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if t.tier == nil {
			return nil, errNoPeers
		}
		values := r.URL.Query()
		of := values["relay"]
		if len(of) != 1 || of[0] == "" {
			return nil, Refuse(http.StatusBadRequest, fmt.Errorf("relay=%.256s: want one address of a relay in /api/v1/tier", of))
		}
		values.Del("relay")
		if of[0] == Self {
			here := r.Clone(r.Context())
			here.URL.RawQuery = values.Encode()
			return own(here)
		}
		operator := CallerOf(r.Context()).By("")
		return t.tier.Query(r.Context(), of[0], path(r)+"?"+values.Encode(), operator, commandTime)
	}
}

// The additional time for forwarding a command, and the timeout of a command without a Timeout.
const (
	peersTime   = 30 * time.Second
	commandTime = 20 * time.Second
)

// command returns a command that this relay and all its peers execute.
func (t tierServer) command(c Command) Command {
	timeout := max(c.Timeout, commandTime)
	run := func(ctx context.Context, args []byte) (any, error) {
		if t.tier == nil {
			return nil, errNoPeers
		}
		own := t.summary()
		operator := CallerOf(ctx).By(whyOf(args).User)
		peers := make(chan []TierAnswer, 1)
		go func() { peers <- t.tier.Forward(ctx, own, c.Name, operator, args, timeout) }() // received below
		self := TierAnswer{Address: Self, NodeID: own.NodeID}
		response, err := c.run(ctx, args)
		if err == nil {
			self.Answer, err = json.Marshal(response)
		}
		if err != nil {
			self.Error = err.Error()
		}
		return TierAnswers{Relays: append([]TierAnswer{self}, <-peers...)}, nil
	}
	return Command{Name: "tier/" + c.Name, Timeout: timeout + peersTime, Reads: c.Reads, run: run}
}

// extend adds, for each command that peers may forward, one for all relays of the tier.
func (t tierServer) extend(commands []Command) []Command {
	all := slices.Clone(commands)
	for _, c := range commands {
		if c.Forwarded {
			all = append(all, t.command(c))
		}
	}
	return all
}
