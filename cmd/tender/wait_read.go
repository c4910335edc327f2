package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
)

// maxInspected is the maximum number of clients of a relay whose resources are requested to compare NAMEs. Further clients
// that are not in sync count as such.
const maxInspected = 100

// A waitState is the output of tender wait -o json.
type waitState struct {
	// InSync reports that the clients have accepted what the origins stated last. It is false if the time was over before
	// that was so for --settle.
	InSync bool `json:"in_sync"`

	WaitedSeconds float64     `json:"waited_seconds"`
	Relays        []relayWait `json:"relays"`
}

// A relayWait is the state of a relay, or the error for which it is unknown.
type relayWait struct {
	Address string `json:"address"`         // as in /api/v1/tier; "self" without --tier
	Relay   string `json:"relay,omitempty"` // its node ID
	Error   string `json:"error,omitempty"`

	Origins []admin.TierOrigin    `json:"origins"` // that the command selects
	Pending []admin.PendingChange `json:"pending"` // that the command selects

	Matching  int `json:"matching"`    // clients that the command selects
	NotInSync int `json:"not_in_sync"` // of these

	// Below counts the clients of the selected clients that are relays. Nil if none is a relay.
	Below *admin.TierTotals `json:"below,omitempty"`

	Clients []admin.Client `json:"clients"` // that are not in sync; empty after success
}

// newRelayWait returns a state whose lists are empty, rather than null in JSON.
func newRelayWait(address string) relayWait {
	return relayWait{Address: address, Origins: []admin.TierOrigin{}, Pending: []admin.PendingChange{}, Clients: []admin.Client{}}
}

// has reports whether all relays are in sync.
func (s *waitState) has(of *waitChoice) bool {
	matching := 0
	for i := range s.Relays {
		if !s.Relays[i].has() {
			return false
		}
		matching += s.Relays[i].clients()
	}
	return matching >= of.clients
}

// clients returns the number of clients, with those of relays below.
func (r *relayWait) clients() int {
	if r.Below == nil {
		return r.Matching
	}
	return r.Matching + r.Below.Clients
}

// has reports whether the relay is in sync.
func (r *relayWait) has() bool {
	receives := !slices.ContainsFunc(r.Origins, func(o admin.TierOrigin) bool { return !o.Receives() })
	return r.Error == "" && receives && len(r.Pending) == 0 && r.NotInSync == 0
}

// readWait requests the state of a relay, or of all relays of its tier. With details, it has the clients that are not in
// sync. An error of a peer is part of the result.
//
// It requests clients last. Otherwise a change could reach them between the requests, and be neither pending nor behind.
func readWait(ctx context.Context, client *adminClient, of *waitChoice, details bool) (*waitState, error) {
	s, err := of.readRelays(ctx, client)
	if err != nil {
		return nil, err
	}
	var reading sync.WaitGroup
	free := make(chan struct{}, maxReading)
	errs := make([]error, len(s.Relays))
	for i := range s.Relays {
		r := &s.Relays[i]
		if r.Error != "" {
			continue
		}
		address := r.Address
		if i == 0 {
			address = "" // the relay that is asked
		}
		free <- struct{}{}
		reading.Go(func() { // awaited below
			defer func() { <-free }()
			errs[i] = r.readClients(ctx, client, of, address, details)
		})
	}
	reading.Wait()
	for i, err := range errs[1:] {
		if err != nil {
			s.Relays[i+1].Error = err.Error()
		}
	}
	return s, errs[0]
}

// readRelays requests the origins and the pending changes of relays. The first relay is the one that is asked.
func (of *waitChoice) readRelays(ctx context.Context, client *adminClient) (*waitState, error) {
	if of.wholeTier {
		return of.readTier(ctx, client)
	}
	var status admin.Status
	if err := client.get(ctx, "/api/v1/status", &status); err != nil {
		return nil, err
	}
	r := newRelayWait(admin.Self)
	r.Relay, r.Origins = status.Relay.NodeID, of.originsIn(status.TierOrigins())
	for choice := range of.pendingChoices {
		answer, err := readPending(ctx, client, choice)
		if err != nil {
			return nil, err
		}
		r.Pending = append(r.Pending, answer.Pending...)
	}
	return &waitState{Relays: []relayWait{r}}, nil
}

// readTier is readRelays for all relays of the tier.
func (of *waitChoice) readTier(ctx context.Context, client *adminClient) (*waitState, error) {
	tier, err := readTierStatus(ctx, client)
	if err != nil {
		return nil, err
	}
	s := &waitState{Relays: make([]relayWait, len(tier.Relays))}
	for i, found := range tier.Relays {
		r := &s.Relays[i]
		*r = newRelayWait(found.Address)
		if r.Error = found.Error; found.TierSummary == nil {
			continue
		}
		r.Relay, r.Origins = found.NodeID, of.originsIn(found.Origins)
		if len(found.Origins) == 0 {
			r.Error = "its release does not say whether it is connected to its origins"
		}
	}
	for choice := range of.pendingChoices {
		answers, err := sendToTier(ctx, client, "pending", choice)
		if err == nil && len(answers.Relays) > 0 && answers.Relays[0].Error != "" {
			err = errors.New(answers.Relays[0].Error)
		}
		if err != nil {
			return nil, err
		}
		for i := range s.Relays {
			s.Relays[i].addPending(answers.Relays, i)
		}
	}
	return s, nil
}

// addPending adds the pending changes of the relay, the i-th in the list of the tier, from the answers of the tier. Without
// an answer, the relay is unknown.
func (r *relayWait) addPending(answers []admin.TierAnswer, i int) {
	if r.Error != "" {
		return
	}
	at := i // the first one is the relay that is asked; its address differs between the two lists
	if i > 0 {
		at = slices.IndexFunc(answers, func(a admin.TierAnswer) bool { return a.Address == r.Address })
	}
	if at < 0 || at >= len(answers) {
		r.Error = "it did not answer the request for pending changes"
		return
	}
	var answer admin.Pending
	if r.Error = answers[at].Error; r.Error == "" {
		if err := json.Unmarshal(answers[at].Answer, &answer); err != nil {
			r.Error = fmt.Sprintf("read the pending changes: %v", err)
		}
	}
	r.Pending = append(r.Pending, answer.Pending...)
}

// pendingChoices yields the choices of pending changes: one for each name.
func (of *waitChoice) pendingChoices(yield func(admin.PendingChoice) bool) {
	choice := admin.PendingChoice{Scope: admin.Scope{Origin: of.origin, Group: of.group, Type: of.typ}}
	if len(of.names) == 0 {
		yield(choice)
	}
	for _, choice.Name = range of.names {
		if !yield(choice) {
			return
		}
	}
}

// originsIn returns the selected origins, with the selected group.
func (of *waitChoice) originsIn(all []admin.TierOrigin) []admin.TierOrigin {
	selected := []admin.TierOrigin{}
	for _, o := range all {
		if of.origin != "" && o.Name != of.origin {
			continue
		}
		if of.group != "" {
			o.StaleGroups = slices.DeleteFunc(o.StaleGroups, func(key string) bool { return !nodegroup.Is(of.group, key) })
		}
		selected = append(selected, o)
	}
	return selected
}

// readClients requests the number of clients that are not in sync, and with details these clients.
func (r *relayWait) readClients(ctx context.Context, client *adminClient, of *waitChoice, address string, details bool) error {
	query := make(url.Values)
	for name, value := range map[string]string{"type": of.typ, "group": of.group} {
		if value != "" {
			query.Set(name, value)
		}
	}
	counts := new(admin.Clients)
	query.Set("limit", "0")
	if err := client.get(ctx, clientsPath(address, "", query), counts); err != nil {
		return err
	}
	r.Matching, r.Below = counts.Totals.Matching, counts.Totals.Below
	r.NotInSync = r.Matching - counts.Totals.InSync
	inspect := len(of.names) > 0 && (details || r.NotInSync <= maxInspected)
	if r.NotInSync == 0 || !details && !inspect {
		return nil
	}
	var err error
	if r.Clients, err = readNotInSync(ctx, client, address, query); err != nil {
		return err
	}
	if inspect && len(r.Clients) >= r.NotInSync {
		r.Clients = of.withoutNames(ctx, client, address, r.Clients, details)
		r.NotInSync = len(r.Clients)
	}
	return nil
}

// readNotInSync requests the clients of a query that are not in sync, by number.
func readNotInSync(ctx context.Context, client *adminClient, address string, query url.Values) ([]admin.Client, error) {
	all := []admin.Client{}
	for _, state := range clientStates {
		if state == admin.InSync {
			continue
		}
		query.Set("sync", state)
		page, err := readClients(ctx, client, address, query)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Clients...)
	}
	slices.SortStableFunc(all, func(a, b admin.Client) int { return cmp.Compare(a.Number, b.Number) })
	// The state of a client may have changed between two requests.
	return slices.CompactFunc(all, func(a, b admin.Client) bool { return a.Number == b.Number }), nil
}

// withoutNames returns the clients that have not accepted one of the names, or for which that is unknown. Unless all are
// wanted, it returns the first one.
func (of *waitChoice) withoutNames(ctx context.Context, client *adminClient, address string, from []admin.Client, all bool) []admin.Client {
	lacking := []admin.Client{}
	for i, c := range from {
		if i < maxInspected && of.hasNames(ctx, client, address, &c) {
			continue
		}
		if lacking = append(lacking, c); !all {
			break
		}
	}
	return lacking
}

// hasNames reports whether a client that is not in sync has accepted all of the names that it subscribed to. What the
// clients of a relay have of one name is unknown.
func (of *waitChoice) hasNames(ctx context.Context, client *adminClient, address string, c *admin.Client) bool {
	if b := c.Below; b != nil && (!b.Known || b.InSync < b.Clients || b.Pending > 0) {
		return false
	}
	if slices.ContainsFunc(c.Types, func(t admin.ClientType) bool { return cmp.Or(t.Sync, admin.Unknown) == admin.Unknown }) {
		return false
	}
	differing, err := readClient(ctx, client, &clientsChoice{typ: of.typ, diff: true}, address, fmt.Sprint(c.Number))
	return err == nil && !slices.ContainsFunc(differing.Resources, func(r admin.ClientResource) bool {
		name, _ := wire.SplitParameters(r.Name)
		return slices.Contains(of.names, name)
	})
}
