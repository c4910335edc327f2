package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/authz"
	"github.com/xdstender/tender/relay/humanize"
)

// MaxStages is the maximum number of stages before the rest.
const MaxStages = 4

// Stages are the stages of a rollout, in their order. None means that changes reach all clients at once.
//
// In text, stages are separated by commas. A stage is a selector, a space and an end: a duration, or "approve" for a
// stage that an operator ends. A selector is a share of the clients ("5%"), or a field of the Node and a glob
// ("metadata.canary=true").
type Stages []Stage

// A Stage is a set of clients that are served an edition before the rest.
type Stage struct {
	Selector
	Duration time.Duration // zero if Approve is set
	Approve  bool          // an operator ends the stage
}

// A Selector selects clients by their Node.
type Selector struct {
	Share uint16 // share of the clients by SHA-256 of node.id, in hundredths of a percent; zero selects by Field
	Field string // field of the Node, as in TENDER_NODE_GROUP_BY
	Glob  string // pattern of the field's value; * matches any text
}

// wholeShare is the share of all clients.
const wholeShare = 100_00

// fields are the fields of a Node that a selector may name, in addition to metadata.
var fields = []string{"id", "cluster", "locality.region", "locality.zone", "locality.sub_zone"}

const metadataPrefix = "metadata."

// String returns the stages in the text form of [Stages].
func (s Stages) String() string {
	var parts []string
	for _, stage := range s {
		parts = append(parts, stage.String())
	}
	return strings.Join(parts, ", ")
}

// String returns the stage in the text form of [Stages].
func (s Stage) String() string {
	if s.Approve {
		return s.Selector.String() + " approve"
	}
	return s.Selector.String() + " " + humanize.Duration(s.Duration)
}

// String returns the selector in the text form of [Stages].
func (s Selector) String() string {
	if s.Share > 0 {
		return strconv.FormatFloat(float64(s.Share)/100, 'f', -1, 64) + "%"
	}
	return s.Field + "=" + s.Glob
}

// MarshalText returns the stages in the text form of [Stages].
func (s Stages) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses stages. The error contains the number and the cause of each invalid stage.
func (s *Stages) UnmarshalText(text []byte) error {
	*s = nil
	if len(text) == 0 {
		return nil
	}
	var all Stages
	var invalid []string
	for i, item := range strings.Split(string(text), ",") {
		item = strings.TrimSpace(item)
		stage, err := parseStage(item)
		if err == nil {
			err = all.checkNext(stage)
		}
		if err != nil {
			invalid = append(invalid, fmt.Sprintf("stage %d (%s): %v", i+1, humanize.Quote(item), err))
			continue
		}
		all = append(all, stage)
	}
	if len(invalid) > 0 {
		return errors.New(strings.Join(invalid, "; "))
	}
	*s = all
	return nil
}

// checkNext returns an error if next cannot follow the stages s.
func (s Stages) checkNext(next Stage) error {
	if len(s) == MaxStages {
		return fmt.Errorf("too many stages: at most %d are allowed", MaxStages)
	}
	for _, earlier := range s {
		switch {
		case earlier.Share == wholeShare:
			return errors.New("no clients remain: an earlier stage selects 100%")
		case earlier.Selector == next.Selector:
			return errors.New("an earlier stage selects the same clients")
		case next.Share > 0 && earlier.Share >= next.Share:
			return fmt.Errorf("a share includes the shares of earlier stages; use more than %v", earlier.Selector)
		}
	}
	return nil
}

// parseStage parses a selector, a space, and a duration or "approve".
func parseStage(text string) (stage Stage, err error) {
	selector, end, _ := strings.Cut(text, " ")
	if stage.Selector, err = parseSelector(selector); err != nil {
		return Stage{}, err
	}
	switch end = strings.TrimSpace(end); end {
	case "":
		return Stage{}, errors.New(`the duration is missing; use a duration such as 10m, or "approve"`)
	case "approve":
		stage.Approve = true
		return stage, nil
	}
	stage.Duration, err = time.ParseDuration(end)
	if err != nil || stage.Duration < time.Second || stage.Duration > 7*24*time.Hour {
		return Stage{}, fmt.Errorf(`%s is not a duration from 1s to 168h or "approve"`, humanize.Quote(end))
	}
	return stage, nil
}

// parseSelector parses a share, or a field and a glob.
func parseSelector(text string) (Selector, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		return parseShare(number)
	}
	field, glob, ok := strings.Cut(text, "=")
	if path, inMetadata := strings.CutPrefix(field, metadataPrefix); inMetadata {
		ok = ok && !slices.Contains(strings.Split(path, "."), "")
	} else {
		ok = ok && slices.Contains(fields, field)
	}
	if !ok {
		return Selector{}, fmt.Errorf("%s is neither a share such as 5%% nor a field and a glob "+
			"such as metadata.canary=true; the fields are %s, metadata.<path>",
			humanize.Quote(text), strings.Join(fields, ", "))
	}
	if glob == "" {
		return Selector{}, fmt.Errorf("%s has no glob after =; use * to match any text", humanize.Quote(text))
	}
	return Selector{Field: field, Glob: glob}, nil
}

// parseShare parses a percentage without its sign.
func parseShare(number string) (Selector, error) {
	whole, decimals, _ := strings.Cut(number, ".")
	n, err := strconv.ParseUint(whole+(decimals + "00")[:max(2, len(decimals))], 10, 32)
	if err != nil || len(decimals) > 2 || n == 0 || n > wholeShare {
		return Selector{}, fmt.Errorf("%s is not a share from 0.01%% to 100%% with at most two decimals",
			humanize.Quote(number+"%"))
	}
	return Selector{Share: uint16(n)}, nil
}

// Cohort returns the index of the first stage that selects a Node, or len(s) for the rest. A share does not select a
// Node without an id. It does not select a relay either, because all clients of the relay would move together. Cohort
// depends only on its arguments, so replicas agree.
func (s Stages) Cohort(n *corepb.Node, isRelay bool) int {
	at := slices.IndexFunc(s, func(stage Stage) bool { return stage.selects(n, isRelay) })
	if at < 0 {
		return len(s)
	}
	return at
}

// selects reports whether a selector selects a Node.
func (s Selector) selects(n *corepb.Node, isRelay bool) bool {
	if s.Share == 0 {
		return matchGlob(s.Glob, authz.FieldOf(n, s.Field))
	}
	if n.GetId() == "" || isRelay {
		return false
	}
	sum := sha256.Sum256([]byte(n.GetId()))
	return binary.BigEndian.Uint64(sum[:])%wholeShare < uint64(s.Share)
}

// matchGlob reports whether the whole text matches a glob, in which * matches any text.
func matchGlob(glob, text string) bool {
	parts := strings.Split(glob, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return glob == text
	}
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// TotalDuration returns the total duration of the stages that end by time.
func (s Stages) TotalDuration() (sum time.Duration) {
	for _, stage := range s {
		sum += stage.Duration
	}
	return sum
}
