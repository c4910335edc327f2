package wire

import "strings"

// A BadName is a name in a subscription that no resource can have.
type BadName struct {
	Name string
	Err  error
}

// Canonicalise replaces the xdstp names of the request by their canonical spelling (R128).
// Names to subscribe to that have no canonical spelling are removed and returned. Such names in
// Unsubscribe remain: they match no subscription.
func (r *Request) Canonicalise() (bad []BadName) {
	r.Subscribe, bad = canonicalNames(r.Subscribe)
	for i, text := range r.Unsubscribe {
		if canonical, err := canonicalText(text); err == nil {
			r.Unsubscribe[i] = canonical
		}
	}
	for name, version := range r.InitialVersions {
		canonical, err := CanonicalName(name)
		if err == nil && canonical == name {
			continue
		}
		delete(r.InitialVersions, name)
		if err == nil {
			r.InitialVersions[canonical] = version
		}
	}
	return bad
}

func canonicalNames(names []string) (out []string, bad []BadName) {
	out = names[:0]
	for _, text := range names {
		if canonical, err := canonicalText(text); err != nil {
			bad = append(bad, BadName{PlainName(text), err})
		} else {
			out = append(out, canonical)
		}
	}
	return out, bad
}

// canonicalText is [CanonicalName] for a name that may have dynamic parameters.
func canonicalText(text string) (string, error) {
	name, parameters, found := strings.Cut(text, Separator)
	canonical, err := CanonicalName(name)
	if err != nil || !found {
		return canonical, err
	}
	return canonical + Separator + parameters, nil
}

// Parameterise adds dynamic parameters to the names that have none of their own. Call it before Canonicalise.
func (r *Request) Parameterise(parameters map[string]string) {
	if len(parameters) == 0 {
		return
	}
	for _, names := range [][]string{r.Subscribe, r.Unsubscribe} {
		for i, name := range names {
			if !strings.Contains(name, Separator) {
				names[i] = parameterised(name, parameters)
			}
		}
	}
}
