package admin

import "github.com/xdstender/tender/relay/lint"

// MaxFindings is the maximum number of findings in a Validation.
const MaxFindings = 100

// A Validation is the result of the validation of resources (TENDER_VALIDATE).
type Validation struct {
	Mode string `json:"mode"` // value of TENDER_VALIDATE

	// Checked is the number of distinct resources that were validated since the relay started.
	Checked int64 `json:"checked"`

	// Counts are the numbers of findings over all groups. Findings are the most severe ones, at most MaxFindings.
	Counts   []FindingCount `json:"counts"`
	Findings []Finding      `json:"findings"`
}

// A FindingCount is the number of findings of one kind in the resources of one type.
type FindingCount struct {
	Kind    lint.Kind `json:"kind"`
	TypeURL string    `json:"type_url"`
	Count   int       `json:"count"`
}

// A Finding is a problem of a served resource.
type Finding struct {
	Group   string    `json:"group"`
	TypeURL string    `json:"type_url"`
	Name    string    `json:"name"`
	Kind    lint.Kind `json:"kind"`
	Detail  string    `json:"detail"`
}

// NewValidation returns the Validation of a report of package lint.
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

// Totals returns the number of findings, and how many of them break a resource; 0 for nil.
func (v *Validation) Totals() (all, breaking int) {
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
