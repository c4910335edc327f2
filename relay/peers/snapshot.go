package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// firstTimeout is the timeout of the summaries of peers that a starting relay asks: it cannot wait for one that hangs.
const firstTimeout = time.Second

// A Giver is a peer that gives its state.
type Giver struct{ Address, NodeID string }

// Take requests the state of peers until read returns nil for the response of one. Peers that are connected to all of
// their origins, and then those with the most views, are asked first. One peer gets at most half of the time that ctx
// leaves. If no response was read, the error has the reason for each peer.
func (t *Tier) Take(ctx context.Context, read func(from Giver, response io.Reader) error) error {
	all := t.summaries(ctx, firstTimeout)
	slices.SortStableFunc(all, func(a, b asked) int {
		return cmp.Or(cmp.Compare(b.rank(), a.rank()), cmp.Compare(b.views(), a.views()))
	})
	var failed []error
	for i := range all {
		p := &all[i]
		err := p.err
		switch {
		case err != nil:
		case p.views() == 0:
			err = errors.New("it has no views")
		default:
			err = t.take(ctx, p, read)
		}
		if err == nil {
			return nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", p.address, err))
	}
	if len(failed) == 0 {
		return errors.New("TENDER_PEERS names no relay")
	}
	return errors.Join(failed...)
}

// views returns the number of views of a peer; 0 without a summary.
func (a *asked) views() int {
	if a.summary == nil {
		return 0
	}
	return len(a.summary.Views) + a.summary.Omitted
}

// rank is higher for a peer that receives what its origins state.
func (a *asked) rank() int {
	if a.summary == nil || slices.ContainsFunc(a.summary.Origins, func(o admin.TierOrigin) bool { return !o.Receives() }) {
		return 0
	}
	return 1
}

// take requests the state of one peer.
func (t *Tier) take(ctx context.Context, p *asked, read func(from Giver, response io.Reader) error) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	resp, err := t.send(ctx, p.peer, http.MethodGet, admin.SnapshotPath, "", nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
		if err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		return refusal(resp, text)
	}
	return read(Giver{p.address, p.summary.NodeID}, resp.Body)
}
