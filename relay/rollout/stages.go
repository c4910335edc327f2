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
// As text, they are separated by commas. A stage is a selector, a space, and the length of the stage: a duration, or
// "approve" until an operator promotes it. A selector is a share of the clients ("5%"), or a field of the Node and
// a glob ("metadata.canary=true").
type Stages []Stage

// A Stage is a set of clients that are served an edition before the rest.
type Stage struct {
	Selector
	Lasts   time.Duration // zero if Approve is set
	Approve bool          // an operator ends the stage
}

// A Selector selects clients by their Node.
type Selector struct {
	Share uint16 // in hundredths of a percent, of the clients by SHA-256 of node.id; zero selects by Field
	Field string // of the Node, as TENDER_NODE_GROUP_BY names it
	Glob  string // of the field's value; * matches any text
}

// wholeShare is the share of all clients.
const wholeShare = 100_00

// fields are the fields of a Node that a selector may name, beside metadata.
var fields = []string{"id", "cluster", "locality.region", "locality.zone", "locality.sub_zone"}

const metadataPrefix = "metadata."

// String returns the text that UnmarshalText reads.
func (s Stages) String() string {
	var parts []string
	for _, stage := range s {
		parts = append(parts, stage.String())
	}
	return strings.Join(parts, ", ")
}

// String returns the stage as in the text of Stages.
func (s Stage) String() string {
	if s.Approve {
		return s.Selector.String() + " approve"
	}
	return s.Selector.String() + " " + humanize.Duration(s.Lasts)
}

// String returns the selector as in the text of Stages.
func (s Selector) String() string {
	if s.Share > 0 {
		return strconv.FormatFloat(float64(s.Share)/100, 'f', -1, 64) + "%"
	}
	return s.Field + "=" + s.Glob
}

// MarshalText returns the text that UnmarshalText reads.
func (s Stages) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads stages. Its errors name the stage by its number, and what is allowed.
func (s *Stages) UnmarshalText(text []byte) error {
	*s = nil
	if len(text) == 0 {
		return nil
	}
	var all Stages
	for part := range strings.SplitSeq(string(text), ",") {
		stage, err := parseStage(strings.TrimSpace(part))
		if err == nil {
			err = all.checkNext(stage)
		}
		if err != nil {
			return fmt.Errorf("stage %d (%s): %w", len(all)+1, humanize.Quote(strings.TrimSpace(part)), err)
		}
		all = append(all, stage)
	}
	*s = all
	return nil
}

// checkNext returns an error if next may not follow the stages s.
func (s Stages) checkNext(next Stage) error {
	if len(s) == MaxStages {
		return fmt.Errorf("one too many: at most %d are allowed", MaxStages)
	}
	for _, before := range s {
		switch {
		case before.Share == wholeShare:
			return errors.New("no clients remain: a stage before it selects 100%")
		case before.Selector == next.Selector:
			return errors.New("a stage before it selects the same clients")
		case next.Share > 0 && before.Share >= next.Share:
			return fmt.Errorf("shares include those before: it must be more than %v", before.Selector)
		}
	}
	return nil
}

func parseStage(text string) (stage Stage, err error) {
	selector, lasts, _ := strings.Cut(text, " ")
	if stage.Selector, err = parseSelector(selector); err != nil {
		return Stage{}, err
	}
	switch lasts = strings.TrimSpace(lasts); lasts {
	case "":
		return Stage{}, errors.New(`how long it lasts is missing: a duration such as 10m, or "approve"`)
	case "approve":
		stage.Approve = true
		return stage, nil
	}
	if stage.Lasts, err = time.ParseDuration(lasts); err != nil || stage.Lasts < time.Second || stage.Lasts > 7*24*time.Hour {
		return Stage{}, fmt.Errorf(`%s is not a duration from 1s to 168h, nor "approve"`, humanize.Quote(lasts))
	}
	return stage, nil
}

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
		return Selector{}, fmt.Errorf("%s is neither a share such as 5%%, nor a field and a glob, such as metadata.canary=true; the fields are %s, metadata.<path>",
			humanize.Quote(text), strings.Join(fields, ", "))
	}
	if glob == "" {
		return Selector{}, fmt.Errorf("%s has no glob after =: * matches any text", humanize.Quote(text))
	}
	return Selector{Field: field, Glob: glob}, nil
}

func parseShare(number string) (Selector, error) {
	whole, part, _ := strings.Cut(number, ".")
	n, err := strconv.ParseUint(whole+(part + "00")[:max(2, len(part))], 10, 32)
	if err != nil || len(part) > 2 || n == 0 || n > wholeShare {
		return Selector{}, fmt.Errorf("%s is not a share from 0.01%% to 100%%, of at most two decimals", humanize.Quote(number+"%"))
	}
	return Selector{Share: uint16(n)}, nil
}

// Cohort returns the index of the first stage that selects a Node, or len(s) for the rest. A share selects no Node
// without an id, and no relay, whose clients it would move together. It is a pure function, so replicas agree.
func (s Stages) Cohort(n *corepb.Node, isRelay bool) int {
	at := slices.IndexFunc(s, func(stage Stage) bool { return stage.selects(n, isRelay) })
	if at < 0 {
		return len(s)
	}
	return at
}

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

// matchGlob reports whether a text matches a glob as a whole, in which * matches any text.
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
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// Lasts returns the total duration of the stages that end by time.
func (s Stages) Lasts() (sum time.Duration) {
	for _, stage := range s {
		sum += stage.Lasts
	}
	return sum
}
