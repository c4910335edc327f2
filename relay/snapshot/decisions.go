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

	// decisionsFormat is the version of the format of decisions.json. Files with another version are not read.
	decisionsFormat = 1
)

// Decisions are the decisions of operators that stay in force until they are revoked.
type Decisions struct {
	Freezes []Freeze          `json:"freezes,omitempty"`
	Dropped []DroppedRemovals `json:"kept,omitempty"`

	// Rejected are editions of rollouts that were rejected, or changes that a rollback reverted.
	Rejected []Rejected `json:"rejected,omitempty"`
}

// A Freeze is the freeze or the rollback of an origin. Times are wall times.
type Freeze struct {
	Origin string    `json:"origin"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // when the freeze expires; zero if it does not

	// Rollback is the earlier generation that clients receive. If nil, they receive the state at the start of the freeze.
	// Relays before 2026-11-25 ignore this field and freeze the origin.
	Rollback *Rollback `json:"rollback,omitempty"`

	// Length is the time from the last command of an operator on the freeze to Until.
	Length time.Duration `json:"length_ns,omitempty"`
}

// A Rollback identifies the generation of an origin that clients receive.
type Rollback struct {
	To string    `json:"to"` // the argument of the operator: a digest or a duration
	At time.Time `json:"at"` // a time at which the generation was served
}

// Remaining returns the remaining time of a freeze that expires. It is at most Length, so that a clock that was set
// back does not extend the freeze. It is not positive if the freeze has expired.
func (f *Freeze) Remaining(now time.Time) time.Duration { return min(f.Until.Sub(now), f.Length) }

// A Rejected is a rejected edition of a rollout, or the changes that a rollback reverted.
type Rejected struct {
	Origin   string            `json:"origin"`
	Reason   string            `json:"reason,omitempty"`
	At       time.Time         `json:"at"`
	Ended    time.Time         `json:"ended,omitzero"` // when the rejection ended; zero while it is in force
	Cohorts  int               `json:"cohorts"`        // number of cohorts that received it
	Sections []RejectedSection `json:"parts"`
	// Peer is the halt of a peer that the relay follows; nil without one. Relays before 2026-12-01 ignore it.
	Peer *PeerHalt `json:"peer,omitempty"`
	// Signaled is when signals of clients halted it; zero if they did not. Relays before 2026-12-01 ignore it.
	Signaled time.Time `json:"signaled,omitzero"`
	// hexadecimal digest of the changes, by which the edition is rejected again
	Sum string `json:"sum,omitempty"`
}

// A RejectedSection has the changes of an edition for one node group: the digest of each resource's content in
// hexadecimal, by type URL or collection and name. It is empty for a removed resource.
type RejectedSection struct {
	Group     string                       `json:"group"`
	Shared    bool                         `json:"shared,omitempty"` // whether these are shared names
	Resources map[string]map[string]string `json:"resources"`
}

// A PeerHalt is the halt of a rollout at a peer.
type PeerHalt struct {
	Address  string    `json:"address"`
	Instance string    `json:"instance"` // of the process
	Part     string    `json:"part"`     // the resource after which the peer has named the changes
	At       time.Time `json:"at"`
}

// DroppedRemovals are resources whose removal an operator dropped.
type DroppedRemovals struct {
	Origin  string   `json:"origin"`
	Group   string   `json:"group,omitempty"` // the key of a snapshot's group; empty for a directory
	TypeURL string   `json:"type_url"`
	Names   []string `json:"names"`

	By    string    `json:"by,omitempty"`   // the operator
	Since time.Time `json:"since,omitzero"` // wall time
}

// file is the content of decisions.json.
type file struct {
	Format int `json:"format"`
	Decisions
}

// Decisions returns the decisions that an earlier process wrote, or none if there is no file. If it returns an error,
// the unusable file is kept, and the next WriteDecisions renames it.
func (d *Dir) Decisions() (Decisions, error) {
	var read file
	err := d.read(func() error {
		text, err := d.disk.readFile(filepath.Join(d.path, decisionsName))
		if errors.Is(err, fs.ErrNotExist) {
			d.unread = false
			return nil
		}
		if err == nil {
			d.decisions = text
			var of struct{ Format int }
			if err = json.Unmarshal(text, &of); err == nil && of.Format != decisionsFormat {
				err = fmt.Errorf("format %d, this relay reads format %d", of.Format, decisionsFormat)
			}
		}
		if err == nil {
			err = json.Unmarshal(text, &read)
		}
		d.unread = err != nil
		return err
	})
	if err != nil {
		return Decisions{}, fmt.Errorf("read %s: %w", decisionsName, err)
	}
	return read.Decisions, nil
}

// WriteDecisions replaces the decisions on disk, unless they are equal. If it returns an error, the previous decisions
// are still on disk.
func (d *Dir) WriteDecisions(decisions Decisions) error {
	text, err := json.MarshalIndent(file{decisionsFormat, decisions}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode decisions: %w", err)
	}
	text = append(text, '\n')
	none := len(decisions.Freezes)+len(decisions.Dropped)+len(decisions.Rejected) == 0
	err = d.write(func() error {
		if bytes.Equal(text, d.decisions) || none && (d.decisions == nil || d.unread) {
			return nil
		}
		if err := d.replaceDecisions(text); err != nil {
			return err
		}
		d.decisions = text
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", decisionsName, err)
	}
	return nil
}

// replaceDecisions writes decisions.json. It renames an unusable file first.
func (d *Dir) replaceDecisions(text []byte) error {
	if path := filepath.Join(d.path, decisionsName); d.unread {
		err := os.Rename(path, fmt.Sprintf("%s.unread-%d", path, time.Now().Unix()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		d.unread = false
	}
	return d.replace(decisionsName, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
