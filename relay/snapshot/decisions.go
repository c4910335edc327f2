package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	decisionsName = "decisions.json"

	// decisionsFormat is the version of the file's format. A file with another one is not read.
	decisionsFormat = 1
)

// Decisions are those of operators that hold until they are revoked.
type Decisions struct {
	Freezes   []Freeze            `json:"freezes,omitempty"`
	Discarded []DiscardedRemovals `json:"kept,omitempty"`

	// Rejected are editions that are not to be served, or were, and are served no longer.
	Rejected []Rejected `json:"rejected,omitempty"`
}

// A Freeze is an origin whose changes an operator does not want distributed. Times are wall time.
type Freeze struct {
	Origin string    `json:"origin"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // when it ends by itself; zero if it does not

	// Rollback is the earlier generation that clients are shown; nil if they are shown what they were shown when the
	// freeze began. Relays before 2026-11-25 do not know it: to them it is a freeze.
	Rollback *Rollback `json:"rollback,omitempty"`

	// Length is the time from the operator's last command about the freeze to Until.
	Length time.Duration `json:"length_ns,omitempty"`
}

// A Rollback says which generation of an origin clients are shown.
type Rollback struct {
	To string    `json:"to"` // as the operator gave it: a digest, or a duration
	At time.Time `json:"at"` // a time at which the generation was served
}

// Left returns how long a freeze with an end still lasts, at most its length: no clock that was
// changed extends it. It is not positive if the freeze is over.
func (f *Freeze) Left(now time.Time) time.Duration { return min(f.Until.Sub(now), f.Length) }

// A Rejected is an edition of a rollout that clients were served and are served no longer, or that was rejected before.
type Rejected struct {
	Origin  string         `json:"origin"`
	Reason  string         `json:"reason,omitempty"`
	At      time.Time      `json:"at"`
	Ended   time.Time      `json:"ended,omitzero"` // since when it is rejected no more; zero while it is
	Cohorts int            `json:"cohorts"`        // that were served it: the first ones
	Parts   []RejectedPart `json:"parts"`
	Sum     string         `json:"sum,omitempty"` // of what it changed, in hexadecimal digits, if it is to be rejected again
}

// A RejectedPart has the changes of an edition for one node group: the digest of each resource's content in hexadecimal,
// by type URL or collection and name. It is empty for a removed resource.
type RejectedPart struct {
	Group     string                       `json:"group"`
	Shared    bool                         `json:"shared,omitempty"` // by groups
	Resources map[string]map[string]string `json:"resources"`
}

// DiscardedRemovals are resources whose removal an operator has discarded.
type DiscardedRemovals struct {
	Origin  string   `json:"origin"`
	Group   string   `json:"group,omitempty"` // the key of a snapshot's group; empty for a directory
	TypeURL string   `json:"type_url"`
	Names   []string `json:"names"`
}

// file is the content of the file.
type file struct {
	Format int `json:"format"`
	Decisions
}

// Decisions returns the decisions that an earlier process wrote; none if there is no file. With an
// error there is a file that cannot be used, which stays: the next WriteDecisions renames it.
func (d *Dir) Decisions() (Decisions, error) {
	text, err := os.ReadFile(filepath.Join(d.path, decisionsName))
	if errors.Is(err, fs.ErrNotExist) {
		return Decisions{}, nil
	}
	if err == nil {
		d.decisions = text
		var of struct{ Format int }
		if err = json.Unmarshal(text, &of); err == nil && of.Format != decisionsFormat {
			err = fmt.Errorf("format %d, this relay reads format %d", of.Format, decisionsFormat)
		}
	}
	var read file
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if d.decisionsUnreadable = err != nil; d.decisionsUnreadable {
		return Decisions{}, fmt.Errorf("read %s: %w", decisionsName, err)
	}
	return read.Decisions, nil
}

// WriteDecisions replaces the decisions on the disk, unless they are the same. With an error, the
// last ones are still there.
func (d *Dir) WriteDecisions(decisions Decisions) error {
	text, err := json.MarshalIndent(file{decisionsFormat, decisions}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode decisions: %w", err)
	}
	text = append(text, '\n')
	none := len(decisions.Freezes)+len(decisions.Discarded)+len(decisions.Rejected) == 0
	if bytes.Equal(text, d.decisions) || none && (d.decisions == nil || d.decisionsUnreadable) {
		return nil
	}
	if err := d.replaceDecisions(text); err != nil {
		return fmt.Errorf("write %s: %w", decisionsName, err)
	}
	d.decisions = text
	return nil
}

func (d *Dir) replaceDecisions(text []byte) error {
	if path := filepath.Join(d.path, decisionsName); d.decisionsUnreadable {
		if err := os.Rename(path, fmt.Sprintf("%s.unread-%d", path, time.Now().Unix())); err != nil {
			return err
		}
		d.decisionsUnreadable = false
	}
	return d.replace(decisionsName, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
