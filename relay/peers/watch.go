package peers

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// Times of a watch.
const (
	resolveEvery = 10 * time.Second // names are resolved again
	watchTimeout = admin.RolloutsWait + 5*time.Second
	retryAfter   = time.Second            // a peer that did not answer is asked again
	askEvery     = 200 * time.Millisecond // at most, also if a peer answers at once each time
)

// Watch asks all peers what their rollouts have decided, and again whenever they decide, until ctx ends. own identifies
// this relay, which is no peer of itself. Watch calls heard for each new answer and the first after an error, with an error
// once a peer does not answer and when its error changes, and with neither if TENDER_PEERS does not name a peer any longer.
// Calls may be concurrent, but those about one address are not.
func (t *Tier) Watch(ctx context.Context, own string, heard func(address string, answer *admin.PeerRollouts, err error)) {
	var running sync.WaitGroup
	defer running.Wait()
	watched := make(map[string]context.CancelFunc)
	unresolved := make(failures)
	for {
		found, complete := t.peers(ctx), true
		for _, p := range found {
			if p.err != nil {
				complete = false
				unresolved.report(p.address, p.err, heard)
				continue
			}
			if watched[p.address] == nil {
				of, cancel := context.WithCancel(ctx)
				watched[p.address] = cancel
				running.Go(func() { t.watch(of, p, own, heard) }) // ends with ctx
			}
		}
		isFound := func(address string) bool {
			return slices.ContainsFunc(found, func(p peer) bool { return p.address == address })
		}
		for address := range unresolved {
			if !isFound(address) {
				delete(unresolved, address)
				heard(address, nil, nil)
			}
		}
		for address, cancel := range watched {
			if complete && !isFound(address) { // otherwise a name may have had it
				cancel()
				delete(watched, address)
			}
		}
		select {
		case <-time.After(resolveEvery):
		case <-ctx.Done():
			return
		}
	}
}

// failures are the errors of peers that do not answer, by address.
type failures map[string]string

// report calls heard with an error, unless it is the same as before.
func (f failures) report(address string, err error, heard func(string, *admin.PeerRollouts, error)) {
	if f[address] != err.Error() {
		f[address] = err.Error()
		heard(address, nil, err)
	}
}

// watch is Watch for one peer.
func (t *Tier) watch(ctx context.Context, p peer, own string, heard func(string, *admin.PeerRollouts, error)) {
	after, failed := "", make(failures)
	for {
		answer, pause := new(admin.PeerRollouts), time.After(askEvery)
		err := t.ask(ctx, p, watchTimeout, http.MethodGet, admin.RolloutsPath+"?after="+url.QueryEscape(after), "", nil, answer)
		if err == nil && (answer.Mark == "" || answer.Instance == "") {
			err = errors.New("the answer is not that of a relay: it has no mark, or no instance")
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failed.report(p.address, err, heard)
			after, pause = "", time.After(retryAfter) // what it answers next is the end of the error
		case answer.Instance == own: // an address of this relay
			heard(p.address, nil, nil)
			<-ctx.Done()
		case answer.Mark != after:
			heard(p.address, answer, nil)
			after = answer.Mark
			clear(failed)
		}
		select {
		case <-pause:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			heard(p.address, nil, nil)
			return
		}
	}
}
