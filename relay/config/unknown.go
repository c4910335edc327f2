package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
)

// planned matches the names, without TENDER_, of variables of later versions. They must not be ignored: the relay would
// be less secure than its operator expects.
var planned = regexp.MustCompile(`^(ORIGIN_PROXY)$`)

// kubernetes matches the names, without TENDER_, that Kubernetes sets in every pod for a Service named tender or
// tender-x. They are ignored.
var kubernetes = regexp.MustCompile(
	`^([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// explainUnknowns returns an error for each name in env without a variable, in alphabetical order. If TENDER_ORIGINS is
// invalid, it skips the variables of its origins.
func explainUnknowns(env map[string]string, all []variable, invalid map[string]error) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		known := slices.ContainsFunc(all, func(v variable) bool { return v.name == name }) ||
			accessVariable.MatchString(name) && invalid["ORIGINS"] != nil
		if known {
			continue
		}
		if err := explainUnknown(name); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// explainUnknown returns the error for a variable that does not exist, or nil if Kubernetes sets it. The error
// does not contain the value, which may be a secret.
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
		return fmt.Errorf("%s: TENDER_ORIGINS has no origin %s", full, humanize.Quote(originNameOf(of[1])))
	}
	if near := closestVariable(name); near != "" {
		return fmt.Errorf("%s: unknown variable; did you mean %s%s?", full, prefix, near)
	}
	return fmt.Errorf("%s: unknown variable; allowed: the variables that tender check lists", full)
}

// closestVariable returns the variable with the least edit distance from name, or "" if more than a third of the
// letters differ.
func closestVariable(name string) string {
	closest, minDistance := "", len(name)/3+1
	for i := range variables {
		if d := editDistance(name, variables[i].name); d < minDistance {
			closest, minDistance = variables[i].name, d
		}
	}
	return closest
}

// editDistance returns the Levenshtein distance of a and b.
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
