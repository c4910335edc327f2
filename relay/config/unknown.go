package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
)

// planned are the names that the documentation of Tender's configuration knows
// and this version does not have, in regular expressions over the name without
// prefix. A relay that ignored them would be less safe than its operator thinks.
var planned = regexp.MustCompile(`^(ORIGIN_PROXY)$`)

// kubernetes are the names that Kubernetes sets in every pod for a Service that
// is called tender, or tender-x: they are not ours and are ignored.
var kubernetes = regexp.MustCompile(
	`^([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// explainUnknowns returns an error for each name in env that has no row, in alphabetical
// order. Where TENDER_ORIGINS is wrong, variables of its origins are passed over.
func explainUnknowns(env map[string]string, rows []spec, wrong map[string]error) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		known := slices.ContainsFunc(rows, func(v spec) bool { return v.name == name || v.formerName != "" && v.formerName == name }) ||
			accessVariable.MatchString(name) && wrong["ORIGINS"] != nil
		if known {
			continue
		}
		if err := explainUnknown(name); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// explainUnknown returns the error for a variable that is not in the table, or
// nil for one that Kubernetes set. It leaves the value out: that is not what is
// wrong, and it may be a secret.
func explainUnknown(name string) error {
	full := prefix + name
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		full = humanize.Quote(full)
	}
	switch {
	case kubernetes.MatchString(name):
		return nil
	case planned.MatchString(name):
		return fmt.Errorf("%s: not supported by this version; allowed: the variables that tender check lists", full)
	}
	if of := accessVariable.FindStringSubmatch(name); of != nil {
		return fmt.Errorf("%s: TENDER_ORIGINS has no origin that is called %s", full, humanize.Quote(originNameOf(of[1])))
	}
	if near := closestVariable(name); near != "" {
		return fmt.Errorf("%s: unknown variable; did you mean %s%s?", full, prefix, near)
	}
	return fmt.Errorf("%s: unknown variable; allowed: the variables that tender check lists", full)
}

// closestVariable returns the variable that name was most likely meant to be, or
// nothing if none is near: more than a third of the letters differ.
func closestVariable(name string) string {
	best, least := "", len(name)/3+1
	for i := range variables {
		if d := editDistance(name, variables[i].name); d < least {
			best, least = variables[i].name, d
		}
	}
	return best
}

// editDistance is the least number of letters to insert, delete or replace that
// makes b of a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
