package relay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
)

// Bounds of what a relay tells a relay below of one node group. Of halts that do not fit, those are left out first that were
// decided at the relay farthest above, and then the oldest. A message without them says so: it ends none.
const (
	maxHaltsBytes     = 512 << 10
	maxHalts          = 100
	maxHaltNames      = 2_000
	maxHaltNamesBytes = 192 << 10
	maxHaltText       = 1 << 10 // bytes of a reason
	maxHaltPart       = 4 << 10 // bytes of the name of a part, which has that of a resource
	maxHaltInstance   = 100
)

// encodeHalts returns the first of some halts, within the bounds of a message. Peers are told the same format.
func encodeHalts(answer admin.PeerRollouts) []byte {
	if len(answer.Halted) > maxHalts {
		answer.Halted, answer.Incomplete = answer.Halted[:maxHalts], true
	}
	for i := range answer.Halted {
		d := &answer.Halted[i]
		d.Reason, d.Part = cutText(d.Reason, maxHaltText), cutPart(d.Part)
	}
	shortenDecisions(answer.Halted, maxHaltNames, maxHaltNamesBytes)
	halted, size := answer.Halted[:0], 1<<10 // of all that is no halt
	for _, d := range answer.Halted {
		encoded, err := json.Marshal(d)
		if err != nil || size+len(encoded)+1 > maxHaltsBytes {
			answer.Incomplete = true
			continue
		}
		size += len(encoded) + 1 // with a comma
		halted = append(halted, d)
	}
	answer.Halted = halted
	encoded, _ := json.Marshal(answer) // its halts can be encoded
	return encoded
}

// decodeHalts returns what a relay above has told. With an error, that is nil, or does not have the halts which are invalid.
func decodeHalts(told []byte) (*heardHalts, error) {
	if len(told) > maxHaltsBytes {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(told), maxHaltsBytes)
	}
	var answer struct {
		Instance   string            `json:"instance"`
		Incomplete bool              `json:"incomplete"`
		Halted     []json.RawMessage `json:"halted"`
	}
	if err := json.Unmarshal(told, &answer); err != nil {
		return nil, err
	}
	switch {
	case answer.Instance == "" || len(answer.Instance) > maxHaltInstance:
		return nil, errors.New("it has no valid instance")
	case len(answer.Halted) > maxHalts:
		return nil, fmt.Errorf("%d halts: want at most %d", len(answer.Halted), maxHalts)
	}
	heard := &heardHalts{instance: answer.Instance, incomplete: answer.Incomplete}
	var invalid error
	for _, encoded := range answer.Halted {
		d, err := decodeHalt(encoded)
		if err != nil {
			heard.incomplete, invalid = true, cmp.Or(invalid, err)
			continue
		}
		heard.halted = addHalt(heard.halted, d)
	}
	return heard, invalid
}

// decodeHalt returns one halt of a message.
func decodeHalt(encoded []byte) (is rollout.Decision, err error) {
	var d admin.DecidedChanges
	if err := json.Unmarshal(encoded, &d); err != nil {
		return is, err
	}
	is = rollout.Decision{
		Part: d.Part, At: d.At, Reason: cutText(d.Reason, maxHaltText), Stage: min(max(d.Stage, 0), maxHalts), Changes: decodeChanges(d.Sections),
		Partial: d.Partial,
	}
	switch {
	case d.Part == "" || len(d.Part) > maxHaltPart || d.At.IsZero():
		return is, errors.New("a halt has no valid part or time")
	case slices.ContainsFunc(d.Sections, func(s snapshot.RejectedSection) bool { return s.Group != "" }):
		return is, errors.New("a halt is about a node group")
	case is.Changes.Empty():
		return is, errors.New("a halt has no resource")
	}
	return is, nil
}

// cutPart limits the name of a part, which has up to 4 KiB of a resource and its type. Different names remain different.
func cutPart(part string) string {
	if len(part) <= maxHaltPart {
		return part
	}
	hash := hashOf([]string{part})
	return cutText(part, maxHaltPart-len(hash)) + hash
}

// cutText limits a text to so many bytes of UTF-8.
func cutText(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
