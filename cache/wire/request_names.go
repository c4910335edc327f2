package wire

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// locator returns the name of a ResourceLocator, with its parameters if they are enabled (R120): name=1,
// dynamic_parameters=2, a map.
func (r *Request) locator(val []byte) (string, error) {
	raw, _ := stringField(val, 1)
	if n := len(val) - len(raw); r.MaxNameBytes > 0 && n > r.MaxNameBytes {
		return "", fmt.Errorf("%w: %d bytes", ErrTooLong, n)
	}
	name, err := text([]byte(raw), "resource name")
	if err != nil {
		return "", err
	}
	parameters := make(map[string]string)
	f := fieldReader{msg: val}
	for f.next() {
		if !f.is(2) {
			continue
		}
		key, value, err := mapEntry(f.val, "dynamic parameter")
		if err != nil {
			return "", err
		}
		if r.Parameters {
			parameters[key] = value
		}
	}
	return withOwn(name, parameters), f.err("resource locator")
}

// withOwn is WithParameters for names that can have any.
func withOwn(name string, parameters map[string]string) string {
	if name == Wildcard || Glob(name) {
		return name
	}
	return WithParameters(name, parameters)
}

// mapEntry reads an entry of a map of strings: key is 1, value is 2.
func mapEntry(entry []byte, what string) (key, value string, err error) {
	var raw [3][]byte // by field
	f := fieldReader{msg: entry}
	for f.next() {
		if f.typ == protowire.BytesType && int(f.num) < len(raw) {
			raw[f.num] = f.val
		}
	}
	if f.bad {
		return "", "", f.err(what)
	}
	if key, err = text(raw[1], what); err != nil {
		return "", "", err
	}
	value, err = text(raw[2], what)
	return key, value, err
}

// A BadName is a name that a client asked for and that no resource can have.
type BadName struct {
	Name string
	Err  error
}

// Canonicalise brings the xdstp names of the request into the one spelling that equal
// names have in common (R128). Of those that have none, the ones that are asked for
// are taken out and returned, and those that are given up stay: nobody has them.
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

// canonicalText is CanonicalName for a name with dynamic parameters, if it has any.
func canonicalText(text string) (string, error) {
	name, parameters, has := strings.Cut(text, Separator)
	canonical, err := CanonicalName(name)
	if err != nil || !has {
		return canonical, err
	}
	return canonical + Separator + parameters, nil
}

// Parameterise joins names with dynamic parameters, but for those that came with their own. Call it before Canonicalise.
func (r *Request) Parameterise(parameters map[string]string) {
	if len(parameters) == 0 {
		return
	}
	for _, names := range [][]string{r.Subscribe, r.Unsubscribe} {
		for i, name := range names {
			if !strings.Contains(name, Separator) {
				names[i] = withOwn(name, parameters)
			}
		}
	}
}
