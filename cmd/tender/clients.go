package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// A listedClients is the output of tender clients -o json: one entry for each relay.
type listedClients struct {
	Relays []relayClients `json:"relays"`
}

// A relayClients has the clients of a relay, in the order of their streams, or the error for which they are unknown.
type relayClients struct {
	Address string `json:"address"`         // as in /api/v1/tier; "self" without --tier
	Error   string `json:"error,omitempty"` // the fields below are then absent
	*admin.Clients
}

// A foundClients is the output of tender clients ID -o json: one entry for each stream.
type foundClients struct {
	Clients []shownClient `json:"clients"`
}

// A shownClient is a client, with the relay that serves it.
type shownClient struct {
	Relay        string `json:"relay,omitempty"` // its node ID
	RelayAddress string `json:"relay_address"`   // as in relayClients.Address
	admin.ClientDetail
}

// The number of clients in a response: of the relay, and of a peer, whose response is limited to 4 MiB.
const (
	clientsPage     = 1000
	clientsPageTier = 500
)

// maxReading is the maximum number of relays whose clients are read at the same time.
const maxReading = 8

// maxShown is the maximum number of streams of one node ID that are printed.
const maxShown = 20

// errUnknownClients is the error of a list that lacks the clients of a relay. The output has the reason.
var errUnknownClients = errors.New("the clients of at least one relay are unknown")

// A clientsChoice has the flags of tender clients. An empty field selects all.
type clientsChoice struct {
	filters   map[string]*string // by the parameter of the API
	typ       string
	diff      bool
	wholeTier bool
}

// newClientsCommand returns the command tender clients.
func newClientsCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clients [ID]",
		Short: "Print whether clients have what they are served, or all about one client",
		Long: "Clients prints one line for each client of a running relay: its node group, the relay,\n" +
			"and for each type that it subscribes to whether it has what is served to its group.\n\n" +
			clientsExample + "\n" +
			"A type is in sync if the client has accepted everything that it subscribed to and that\n" +
			"is served to its group. It is behind if a change is not sent or not accepted, for the\n" +
			"given time, and REJECTED if a NACK still applies. It is unknown if the origin has not\n" +
			"answered, or if the relay cannot tell what a returning client holds. A client that does\n" +
			"not read is stalled. Clients that poll over REST have no stream and are not listed.\n\n" +
			"A client may be a relay. Its state is also that of all clients below it, of which the\n" +
			"worst five are printed. They are unknown if the relay reports nothing.\n\n" +
			"With a node ID, or the number of a stream such as '#17', it prints for each resource the\n" +
			"version that the client was sent, the one that it accepted, and the one that is served to\n" +
			"its group now. A version is unknown if it does not follow from what the relay keeps;\n" +
			"former versions need TENDER_HISTORY.\n\n" +
			clientExample + "\n" +
			"The exit code is 1 if a relay of the tier is not reachable (--tier): its clients are\n" +
			"unknown.",
		Example: "  tender clients\n  tender clients --state behind --group shop\n  tender clients --tier -o wide\n" +
			"  tender clients edge-4\n  tender clients edge-4 --diff --type cds\n  tender clients '#17' -o json",
		Args: cobra.MaximumNArgs(1),
	}
	var of clientsChoice
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "table", "wide", "yaml")
	of.addFlags(cmd)
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		w, wide, now := cmd.OutOrStdout(), output.Output == "wide", time.Now
		if err := of.check(cmd, args); err != nil {
			return err
		}
		if len(args) == 0 {
			all, err := listClients(cmd.Context(), client, of.wholeTier, of.query())
			if err != nil {
				return err
			}
			err = output.Print(w, all, func() error { return printClients(w, all, wide, now()) })
			return cmp.Or(err, all.unknown())
		}
		found, unknown, err := findClients(cmd.Context(), client, &of, args[0])
		if err != nil {
			return err
		}
		return cmp.Or(output.Print(w, foundClients{found}, func() error { return printFound(w, found, of.diff, wide, now()) }), unknown)
	})
	return cmd
}

// addFlags adds the flags that select clients and resources.
func (of *clientsChoice) addFlags(cmd *cobra.Command) {
	of.filters = make(map[string]*string)
	for _, f := range [][3]string{
		{"node", "node", "only clients whose node `id` contains this text"},
		{"group", "group", "only clients of the node group with this `key` or name"},
		{"cluster", "cluster", "only clients whose Node has this `cluster`"},
		{"zone", "zone", "only clients whose Node has this `zone` in its locality"},
		{"state", "sync", "only clients in this `state`: " + strings.Join(clientStates, ", ")},
	} {
		of.filters[f[1]] = cmd.Flags().String(f[0], "", f[2])
	}
	cli.CompleteFlag(cmd, "state", clientStates...)
	cmd.Flags().StringVar(&of.typ, "type", "", "only this `type`: a type URL, or a short name such as cds")
	cli.CompleteTypes(cmd)
	cmd.Flags().BoolVar(&of.diff, "diff", false, "with ID: only resources in which the client differs from what is served")
	cmd.Flags().BoolVar(&of.wholeTier, "tier", false, "clients of all relays of the tier (TENDER_PEERS)")
}

// clientStates are the values of --state, the most severe first.
var clientStates = []string{admin.Rejecting, admin.Stalled, admin.Behind, admin.Unknown, admin.InSync}

// check returns a UsageError if the flags do not fit the arguments.
func (of *clientsChoice) check(cmd *cobra.Command, args []string) error {
	if state := *of.filters["sync"]; state != "" && !slices.Contains(clientStates, state) {
		return cli.UsageError{Cause: fmt.Errorf("--state=%s: want %s", state, strings.Join(clientStates, ", "))}
	}
	if len(args) == 0 {
		if of.diff {
			return cli.UsageError{Cause: errors.New("--diff: want the ID of a client")}
		}
		return nil
	}
	for _, name := range []string{"node", "group", "cluster", "zone", "state"} {
		if cmd.Flags().Changed(name) {
			return cli.UsageError{Cause: fmt.Errorf("--%s: want no ID of a client", name)}
		}
	}
	if _, numbered := strings.CutPrefix(args[0], "#"); numbered && of.wholeTier {
		return cli.UsageError{Cause: fmt.Errorf("%s: want a node ID with --tier, because each relay has its own numbers", args[0])}
	}
	return nil
}

// query returns the parameters of a request for clients.
func (of *clientsChoice) query() url.Values {
	query := make(url.Values)
	for name, value := range of.filters {
		if *value != "" {
			query.Set(name, *value)
		}
	}
	if of.typ != "" {
		query.Set("type", of.typ)
	}
	return query
}

// unknown returns errUnknownClients if a relay could not be asked.
func (l *listedClients) unknown() error {
	if slices.ContainsFunc(l.Relays, func(r relayClients) bool { return r.Clients == nil }) {
		return errUnknownClients
	}
	return nil
}

// listClients requests the clients of a relay, or with --tier of all relays of its tier. An error of a peer is part of the
// result.
func listClients(ctx context.Context, client *adminClient, wholeTier bool, query url.Values) (*listedClients, error) {
	if !wholeTier {
		clients, err := readClients(ctx, client, "", query)
		return &listedClients{[]relayClients{{Address: admin.Self, Clients: clients}}}, err
	}
	tier, err := readTierStatus(ctx, client)
	if err != nil {
		return nil, err
	}
	all := &listedClients{Relays: make([]relayClients, len(tier.Relays))}
	var reading sync.WaitGroup
	free := make(chan struct{}, maxReading)
	for i, r := range tier.Relays {
		all.Relays[i] = relayClients{Address: r.Address, Error: r.Error}
		if r.TierSummary == nil {
			continue
		}
		free <- struct{}{}
		reading.Go(func() { // awaited below
			defer func() { <-free }()
			clients, err := readClients(ctx, client, r.Address, query)
			if all.Relays[i].Clients = clients; err != nil {
				all.Relays[i] = relayClients{Address: r.Address, Error: err.Error()}
			}
		})
	}
	reading.Wait()
	return all, nil
}

// readClients requests all pages of the clients of a relay of the tier, or of the relay itself if address is empty.
func readClients(ctx context.Context, client *adminClient, address string, query url.Values) (*admin.Clients, error) {
	query = maps.Clone(query)
	query.Set("sort", admin.ByNumber) // no stream is missed between two pages
	query.Set("limit", strconv.Itoa(clientsPage))
	if address != "" {
		query.Set("limit", strconv.Itoa(clientsPageTier))
	}
	var all *admin.Clients
	for {
		var page admin.Clients
		if err := client.get(ctx, clientsPath(address, "", query), &page); err != nil {
			return nil, err
		}
		if all == nil {
			all = &page
		} else {
			all.Clients = append(all.Clients, page.Clients...)
		}
		if page.Next == "" {
			all.Next = ""
			return all, nil
		}
		query.Set("after", page.Next)
		query.Set("totals", "false") // the first page has them
	}
}

// clientsPath returns the path of the clients of a relay of the tier, or of the relay itself if address is empty. With
// a number, it is that of one client.
func clientsPath(address, number string, query url.Values) string {
	path := "/api/v1/clients"
	if address != "" {
		query = maps.Clone(query)
		query.Set("relay", address)
		path = "/api/v1/tier/clients"
	}
	if number != "" {
		path += "/" + number
	}
	return path + "?" + query.Encode()
}

// findClients requests the streams of a node ID, or one stream by its number such as #17. unknown is errUnknownClients
// if a relay of the tier could not be asked.
func findClients(ctx context.Context, client *adminClient, of *clientsChoice, id string) (found []shownClient, unknown, err error) {
	if number, numbered := strings.CutPrefix(id, "#"); numbered {
		detail, err := readClient(ctx, client, of, "", number)
		return []shownClient{{RelayAddress: admin.Self, ClientDetail: detail}}, nil, err
	}
	all, err := listClients(ctx, client, of.wholeTier, url.Values{"id": {id}})
	if err != nil {
		return nil, nil, err
	}
	var unreachable []string
	for _, r := range all.Relays {
		if r.Clients == nil {
			unreachable = append(unreachable, fmt.Sprintf("; %s is unknown: %s", r.Address, r.Error))
			continue
		}
		for _, c := range r.Clients.Clients {
			if len(found) == maxShown {
				return nil, nil, fmt.Errorf("node %q has more than %d streams: --node lists them, and '#NUMBER' selects one", id, maxShown)
			}
			shown := shownClient{Relay: r.Relay, RelayAddress: r.Address}
			address := ""
			if of.wholeTier {
				address = r.Address
			}
			if shown.ClientDetail, err = readClient(ctx, client, of, address, fmt.Sprint(c.Number)); err != nil {
				return nil, nil, err
			}
			found = append(found, shown)
		}
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("no client has the node ID %q%s", id, strings.Join(unreachable, ""))
	}
	return found, all.unknown(), nil
}

// readClient requests all pages of a client.
func readClient(ctx context.Context, client *adminClient, of *clientsChoice, address, number string) (all admin.ClientDetail, err error) {
	query := url.Values{"limit": {strconv.Itoa(clientsPage)}}
	if of.typ != "" {
		query.Set("type", of.typ)
	}
	if of.diff {
		query.Set("state", admin.NotAccepted)
	}
	for first := true; ; first = false {
		var page admin.ClientDetail
		if err := client.get(ctx, clientsPath(address, number, query), &page); err != nil {
			return all, err
		}
		if resources := all.Resources; !first {
			page.Resources = append(resources, page.Resources...)
		}
		if all = page; page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}
