package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// A statusChoice selects the types and clients that tender status prints. An empty field selects all.
type statusChoice struct {
	typ  string // type URL or short name
	node string // substring of the node id
}

// A wholeStatus is the output of tender status -o json: the response to /api/v1/status, and clients from the responses
// to /api/v1/clients.
type wholeStatus struct {
	admin.Status
	Clients shownClients `json:"clients"`
}

// shownClients contains the clients that reject configuration, and those that lag, the longest lag first.
type shownClients struct {
	Totals    admin.ClientTotals `json:"totals"`
	Types     []admin.TypeTotals `json:"types"`
	Rejecting []admin.Client     `json:"rejecting"`
	Lagging   []admin.Client     `json:"lagging"`

	// Relays contains the clients that are relays, those first whose clients are in the most severe state.
	Relays []admin.Client `json:"relays"`
}

// The maximum number of rejecting clients, and of lagging clients, that are printed without and with -o wide.
const (
	fewClients  = 10
	manyClients = 1000
)

// newStatusCommand returns the command tender status.
func newStatusCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the status of a running relay, its origins and its clients",
		Long: "Status prints the state of each origin, and of each view: the cache of one node group\n" +
			"and origin, and how long it has been stale. Then it prints the clients that reject\n" +
			"configuration, with their error details, and those that lag, the longest lag first. Of\n" +
			"clients that are relays, it prints what they report about the clients below them.\n\n" +
			"The exit code is 1 if the relay is not ready. With --tier, it is 1 if a relay of the\n" +
			"tier is not ready or not reachable.",
		Example: "  tender status\n  tender status --watch --type cds --node edge-\n  tender status --admin unix:/run/tender/admin.sock -o json",
		Args:    cobra.NoArgs,
	}
	var of statusChoice
	var watch, wholeTier bool
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "table", "wide", "yaml")
	cmd.Flags().StringVar(&of.typ, "type", "", "only of this `type`: a type URL, or a short name such as cds")
	cli.CompleteTypes(cmd)
	cmd.Flags().StringVar(&of.node, "node", "", "only clients whose node `id` contains this text")
	cmd.Flags().BoolVar(&wholeTier, "tier", false, "show all relays of the tier (TENDER_PEERS)")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again every "+watchEvery.String()+" until Ctrl-C")
	flag.run(cmd, func(cmd *cobra.Command, _ []string, client *adminClient) error {
		wide, w := output.Output == "wide", cmd.OutOrStdout()
		show := func(w io.Writer) error {
			if wholeTier {
				s, err := readTierStatus(cmd.Context(), client)
				if err != nil {
					return err
				}
				return cmp.Or(output.Print(w, s, func() error { return printTier(w, s) }), tierReady(s))
			}
			s, err := readStatus(cmd.Context(), client, of, wide)
			if err != nil {
				return err
			}
			err = output.Print(w, s, func() error { return printStatus(w, s, wide, time.Now()) })
			if err == nil && !s.Relay.Ready {
				return errNotReady
			}
			return err
		}
		if watch {
			return repeat(cmd.Context(), w, isTerminal(w), func(w io.Writer) error {
				if err := show(w); !errors.Is(err, errNotReady) { // the status shows it
					return err
				}
				return nil
			})
		}
		return show(w)
	})
	return cmd
}

// errNotReady is the error of a status of a relay, or of a tier, that is not ready. The output has the reasons.
var errNotReady = errors.New("a relay is not ready, or not reachable")

// tierReady returns errNotReady unless all relays of a tier are reachable and ready.
func tierReady(s *admin.TierStatus) error {
	for _, r := range s.Relays {
		if r.TierSummary == nil || !r.Ready {
			return errNotReady
		}
	}
	return nil
}

// watchEvery is the interval of tender status --watch.
const watchEvery = 2 * time.Second

// repeat calls show every watchEvery until ctx ends, then returns nil. It clears a terminal before each output. It
// returns an error of the first call. It prints later errors and continues, because the relay may be restarting.
func repeat(ctx context.Context, w io.Writer, terminal bool, show func(io.Writer) error) error {
	before, after := "", "\n"
	if terminal {
		before, after = "\x1b[H\x1b[2J", "" // home, and clear the screen
	}
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	for first := true; ; first = false {
		var text strings.Builder
		err := show(&text)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintf(&text, "%s  %v\n", time.Now().Format(time.TimeOnly), err)
		}
		if _, err := io.WriteString(w, before+text.String()+after); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// readStatus requests the status of a relay, and the clients that of selects, more of them if wide is set.
func readStatus(ctx context.Context, c *adminClient, of statusChoice, wide bool) (*wholeStatus, error) {
	s := new(wholeStatus)
	if err := c.get(ctx, "/api/v1/status", &s.Status); err != nil {
		return nil, err
	}
	keepTypes(s.Views, of.typ)
	few := fewClients
	if wide {
		few = manyClients
	}
	query := url.Values{"type": {of.typ}, "node": {of.node}, "limit": {fmt.Sprint(few)}}
	var lagging, rejecting admin.Clients
	if err := c.get(ctx, "/api/v1/clients?"+query.Encode(), &lagging); err != nil {
		return nil, err
	}
	query.Set("rejected", "true")
	if err := c.get(ctx, "/api/v1/clients?"+query.Encode(), &rejecting); err != nil {
		return nil, err
	}
	s.Clients = shownClients{
		Totals: lagging.Totals, Types: lagging.Types, Rejecting: rejecting.Clients, Lagging: []admin.Client{}, Relays: []admin.Client{},
	}
	if lagging.Totals.Below != nil {
		relays, err := readRelays(ctx, c, query, few)
		if err != nil {
			return nil, err
		}
		s.Clients.Relays = relays
	}
	for _, client := range lagging.Clients {
		if client.LagSeconds > 0 {
			s.Clients.Lagging = append(s.Clients.Lagging, client)
		}
	}
	return s, nil
}

// readRelays requests the clients of a query that are relays, and returns the first ones of at most manyClients, those first
// whose clients are in the most severe state.
func readRelays(ctx context.Context, c *adminClient, query url.Values, first int) ([]admin.Client, error) {
	query.Del("rejected")
	query.Set("relays", "true")
	query.Set("limit", fmt.Sprint(manyClients))
	var relays admin.Clients
	if err := c.get(ctx, "/api/v1/clients?"+query.Encode(), &relays); err != nil {
		return nil, err
	}
	slices.SortStableFunc(relays.Clients, func(a, b admin.Client) int {
		return slices.Index(clientStates, a.Sync) - slices.Index(clientStates, b.Sync)
	})
	return relays.Clients[:min(len(relays.Clients), first)], nil
}

// keepTypes removes all types but typ from views. typ is a type URL or a short name; if it is empty, all types stay.
func keepTypes(views []admin.View, typ string) {
	if typ == "" {
		return
	}
	for i := range views {
		kept := []admin.Type{}
		for _, t := range views[i].Types {
			if t.Name == typ || t.TypeURL == typ {
				kept = append(kept, t)
			}
		}
		views[i].Types = kept
	}
}
