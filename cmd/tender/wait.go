package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
)

// waitEvery is the pause between two requests for the state of a relay.
const waitEvery = 500 * time.Millisecond

// reportTime is the timeout of the last request, whose state is printed.
const reportTime = 10 * time.Second

// maxWaitNames is the maximum number of names: each is a request.
const maxWaitNames = 20

// errNotInSync is the error of a wait that timed out. The output has the reasons.
var errNotInSync = errors.New("clients do not have, or may not have, what the origin stated last")

// A waitChoice has the arguments and flags that select what tender wait waits for. An empty field selects all.
type waitChoice struct {
	typ           string // type URL
	names         []string
	origin, group string
	wholeTier     bool
	clients       int // the minimum number of clients
}

// A waitLimits says how long a state has to last, and how long to wait for that.
type waitLimits struct{ settle, timeout time.Duration }

// newWaitCommand returns the command tender wait.
func newWaitCommand(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait [TYPE [NAME...]]",
		Short: "Wait until clients have accepted what the origin stated last",
		Long: "Wait exits with 0 once all of these hold for the duration of --settle:\n\n" +
			"  the relay is connected to its origins, and reads all files of directories\n" +
			"  no change is pending (tender pending)\n" +
			"  all clients are in sync (tender clients); there are at least as many as --clients\n\n" +
			"Clients include those of relays below, as far as these report them; otherwise they are\n" +
			"unknown.\n\n" +
			"What is unknown is not in sync, and neither is a relay that cannot be reached. With a\n" +
			"TYPE, only changes of that type and clients that subscribe to it count; with NAMEs, only\n" +
			"these resources. A client that is unknown for the type counts in any case. The\n" +
			"connection to an origin counts always. --origin selects changes and connections.\n\n" +
			"A dropped change is pending until tender pass dropped. A response that the relay has\n" +
			"refused is not pending (alert TenderOriginRefused). The relay does not list xdstp names\n" +
			"that wait for TENDER_MIN_PUSH_INTERVAL: with them, --settle has to exceed the interval.\n" +
			"Clients that poll over REST do not count.\n\n" +
			"Directly after a change, the relay may not have received it, and all clients are in\n" +
			"sync with the state before. --settle has to be longer than the control plane takes to\n" +
			"send a change.\n\n" +
			"After --timeout, the exit code is 1, and the reasons are printed:\n\n" + waitExample,
		Example: "  tender wait\n  tender wait cds web --group NAMESPACE=shop --timeout 5m\n  tender wait --tier --settle 5s --clients 40 -o json",

		ValidArgsFunction: cli.CompleteFirst(strings.Fields(cli.Types)...),
	}
	var of waitChoice
	var limits waitLimits
	flag := addAdminFlag(cmd, h)
	output := cli.AddOutputFlag(cmd, "table", "wide", "yaml")
	flags := cmd.Flags()
	flags.DurationVar(&limits.timeout, "timeout", time.Minute, "wait for at most this `duration`")
	flags.DurationVar(&limits.settle, "settle", time.Second, "the `duration` for which all conditions have to hold")
	flags.IntVar(&of.clients, "clients", 1, "wait for at least this `number` of clients; 0 accepts that there is none")
	flags.StringVar(&of.origin, "origin", "", "only changes of this origin: its `name`, or default for that of TENDER_ORIGIN")
	flags.StringVar(&of.group, "group", "", "only changes and clients of the node group with this `key` or name")
	flags.BoolVar(&of.wholeTier, "tier", false, "wait for all relays of the tier (TENDER_PEERS)")
	flag.run(cmd, func(cmd *cobra.Command, args []string, client *adminClient) error {
		if err := of.parse(args); err != nil {
			return cli.UsageError{Cause: err}
		}
		if err := limits.check(&of); err != nil {
			return cli.UsageError{Cause: err}
		}
		s, err := waitFor(cmd.Context(), client, &of, limits)
		if err != nil {
			return err
		}
		w, wide := cmd.OutOrStdout(), output.Output == "wide"
		err = output.Print(w, s, func() error { return printWait(w, s, &of, wide, time.Now()) })
		if err == nil && !s.InSync {
			return errNotInSync
		}
		return err
	})
	return cmd
}

// parse sets the type and the names.
func (of *waitChoice) parse(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if len(args)-1 > maxWaitNames {
		return fmt.Errorf("%d names: want at most %d", len(args)-1, maxWaitNames)
	}
	if args[0] == "" {
		return errors.New("TYPE is empty: want a type URL, or a short name such as cds")
	}
	for _, name := range append([]string{""}, args[1:]...) {
		c := admin.PendingChoice{Scope: admin.Scope{Type: args[0]}, Name: name}
		if err := c.Check(); err != nil {
			return err
		}
		if of.typ = c.Type; c.Name != "" {
			of.names = append(of.names, c.Name)
		}
	}
	if len(of.names) < len(args)-1 {
		return errors.New("a NAME is empty: want the name of a resource")
	}
	return nil
}

// check returns an error if no state can fulfil the limits.
func (l *waitLimits) check(of *waitChoice) error {
	switch {
	case l.settle < 0:
		return fmt.Errorf("--settle=%v: want 0 or more", l.settle)
	case l.timeout <= l.settle:
		return fmt.Errorf("--timeout=%v: want more than --settle (%v)", l.timeout, l.settle)
	case of.clients < 0:
		return fmt.Errorf("--clients=%d: want 0 or more", of.clients)
	}
	return nil
}

// waitFor requests the state of relays until it has been in sync for l.settle, or until l.timeout. It then returns the
// last state. It returns an error if the relay does not answer the first request.
func waitFor(ctx context.Context, client *adminClient, of *waitChoice, l waitLimits) (*waitState, error) {
	began := time.Now()
	timed, cancel := context.WithDeadline(ctx, began.Add(l.timeout))
	defer cancel()
	s, err := untilSettled(timed, client, of, &settling{settle: l.settle})
	if s == nil && err == nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("wait: %w", ctx.Err())
		}
		s = readReport(ctx, client, of)
	}
	if err != nil {
		return nil, err
	}
	s.WaitedSeconds = time.Since(began).Seconds()
	return s, nil
}

// untilSettled requests the state of relays until it has been in sync long enough. It returns nil if ctx ends before, and
// an error if the first request fails: the command line is wrong then, rather than the relay gone.
func untilSettled(ctx context.Context, client *adminClient, of *waitChoice, l *settling) (*waitState, error) {
	for first := true; ctx.Err() == nil; first = false {
		asked := time.Now()
		s, err := readWait(ctx, client, of, false)
		if ctx.Err() != nil {
			break
		}
		if err != nil && first {
			return nil, err
		}
		if l.add(err == nil && s.has(of), asked) {
			s.InSync = true
			return s, nil
		}
		select {
		case <-time.After(l.pause()):
		case <-ctx.Done():
		}
	}
	return nil, nil
}

// readReport requests the state of relays with the clients that are not in sync. If the relay does not answer, it is unknown.
func readReport(ctx context.Context, client *adminClient, of *waitChoice) *waitState {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	s, err := readWait(ctx, client, of, true)
	if err != nil {
		s = &waitState{Relays: []relayWait{newRelayWait(admin.Self)}}
		s.Relays[0].Error = err.Error()
	}
	return s
}

// A settling measures for how long all states were in sync.
type settling struct {
	settle time.Duration
	since  time.Time // the end of the first request of those; zero if the last state was not in sync
}

// add adds the state of a request that began at asked. It returns true once states have been in sync for l.settle.
func (l *settling) add(inSync bool, asked time.Time) bool {
	switch {
	case !inSync:
		l.since = time.Time{}
		return false
	case l.since.IsZero():
		l.since = time.Now()
		return l.settle == 0
	}
	return asked.Sub(l.since) >= l.settle
}

// pause returns the time until the next request.
func (l *settling) pause() time.Duration {
	if l.since.IsZero() {
		return waitEvery
	}
	return min(waitEvery, l.settle-time.Since(l.since))
}
