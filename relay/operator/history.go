package operator

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/history"
	"github.com/xdstender/tender/relay/nodegroup"
)

// History implements admin.Fleet.
func (f *Fleet) History(c admin.HistoryChoice) (admin.History, error) {
	out := admin.History{TypeURL: c.Type, Changes: []admin.Change{}}
	var err error
	if out.Name, err = wire.CanonicalName(c.Name); err != nil {
		return out, admin.Refuse(http.StatusBadRequest, fmt.Errorf("name=%.256s: %w", c.Name, err))
	}
	journal := f.Journal
	switch {
	case journal == nil:
		return out, admin.Refuse(http.StatusNotFound, errors.New("no history: TENDER_HISTORY is off"))
	case wire.IsSecret(c.Type):
		return out, admin.Refuse(http.StatusNotFound, errors.New("no history of Secrets is kept"))
	}
	changes := journal.Changes(c.Type, out.Name, f.keyOf(c.Group), c.Limit)
	for _, change := range changes {
		out.Changes = append(out.Changes, changeOf(journal, change))
	}
	if len(changes) == 0 && c.Limit > 0 {
		return out, admin.Refuse(http.StatusNotFound, fmt.Errorf("the history has no change of %s %.256q", c.Type, out.Name))
	}
	return out, nil
}

// keyOf returns the key of a group, given its key or its name.
func (f *Fleet) keyOf(text string) string {
	for _, v := range f.Views() {
		if text != "" && !v.Shared && nodegroup.Is(text, v.Key) {
			return v.Key
		}
	}
	return text
}

// changeOf returns a change for the admin API.
func changeOf(journal *history.Journal, c history.Change) admin.Change {
	diff := journal.Diff(c)
	out := admin.Change{
		At: c.At, Change: string(c.Kind), Group: c.Group, AskedAs: c.AskedAs, Diff: diff.Text, Note: diff.Note,
	}
	if r := c.After; r != nil {
		out.Version, out.OriginVersion = r.Version, r.OriginVersion
		out.Bytes, out.SHA256 = r.Size(), hex.EncodeToString(r.Digest[:])
	}
	if c.Before != nil {
		out.BytesBefore = c.Before.Size()
	}
	return out
}
