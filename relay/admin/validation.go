package admin

import "github.com/xdstender/tender/relay/lint"

// MaxFindings is how many findings a Validation lists.
const MaxFindings = 100

// A Validation is what checks of the resources found (TENDER_VALIDATE).
type Validation struct {
	Mode string `json:"mode"` // as TENDER_VALIDATE has it

	// Checked is how many different resources were decoded since the relay began.
	Checked int64 `json:"checked"`

	// Counts are numbers of findings, over all groups, and Findings the most serious ones: at most MaxFindings.
	Counts   []FindingCount `json:"counts"`
	Findings []Finding      `json:"findings"`
}

// A FindingCount is how many findings of a kind there are in the resources of a type.
type FindingCount struct {
	Kind    lint.Kind `json:"kind"`
	TypeURL string    `json:"type_url"`
	Count   int       `json:"count"`
}

// A Finding is something that is wrong with a resource that a node group is served, or with a change that is held.
type Finding struct {
	Group   string    `json:"group"` // empty for a held change of a directory, which is the same for all groups
	TypeURL string    `json:"type_url"`
	Name    string    `json:"name"`
	Kind    lint.Kind `json:"kind"`
	Detail  string    `json:"detail"`
}

// NewValidation returns a report as operators see it.
func NewValidation(mode string, r lint.Report) *Validation {
	v := &Validation{Mode: mode, Checked: r.Checked, Counts: []FindingCount{}, Findings: []Finding{}}
	for _, c := range r.Counts {
		v.Counts = append(v.Counts, FindingCount{c.Kind, c.TypeURL, c.Number})
	}
	for _, f := range r.Findings[:min(len(r.Findings), MaxFindings)] {
		v.Findings = append(v.Findings, Finding{f.Group, f.TypeURL, f.Name, f.Kind, f.Detail})
	}
	return v
}

// Held returns how many changes are held since they break clients (TENDER_VALIDATE=hold). Of nil there are none.
func (v *Validation) Held() (n int) {
	if v == nil {
		return 0
	}
	for _, c := range v.Counts {
		if c.Kind == lint.Held {
			n += c.Count
		}
	}
	return n
}

// Number returns how many findings there are, and how many of them break a resource. Of nil there are none.
func (v *Validation) Number() (all, breaking int) {
	if v == nil {
		return 0, 0
	}
	for _, c := range v.Counts {
		if all += c.Count; c.Kind.Breaks() {
			breaking += c.Count
		}
	}
	return all, breaking
}
