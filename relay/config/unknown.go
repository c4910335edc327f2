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
func explainUnknowns(env map[string]string, all []variable, refused refusals) (errs []*Error) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		known := slices.ContainsFunc(all, func(v variable) bool { return v.name == name }) ||
			accessVariable.MatchString(name) && refused.has("ORIGINS")
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
func explainUnknown(name string) *Error {
	const most = 120 // bytes of a name; a longer one makes the error unreadable
	e := &Error{Variables: []string{escape(prefix + name)}}
	of := accessVariable.FindStringSubmatch(name)
	switch near := closestVariable(name); {
	case kubernetes.MatchString(name):
		return nil
	case planned.MatchString(name):
		e.Message = "not supported by this version; allowed: the variables that tender check lists"
	case of != nil:
		e.Message = "TENDER_ORIGINS has no origin " + humanize.Quote(originNameOf(of[1]))
		e.Variables = append(e.Variables, "TENDER_ORIGINS")
	case near != "":
		e.Message = fmt.Sprintf("unknown variable; did you mean %s%s?", prefix, near)
	default:
		e.Message = "unknown variable; allowed: the variables that tender check lists"
	}
	full := prefix + name
	if len(full) > most || strings.ContainsFunc(full, func(r rune) bool { return r < ' ' || r > '~' }) {
		full = humanize.Quote(full)
	}
	e.text = full + ": " + e.Message
	return e
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
