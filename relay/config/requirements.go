package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
)

// A requirement is a rule that a variable has an effect only beside others.
type requirement struct {
	variable  string   // without TENDER_; TENDER_ORIGIN_… stands for the same variable of each origin
	needs     []string // variables that must be set, or have a value: name or name=value
	unlessOff string   // there is no requirement while this variable is off explicitly

	// because returns the reason, or "" if the value of the variable has no such requirement. If it is nil, each value has
	// the requirement, and there is no reason to give.
	because func(value any) string
}

// requirements are the requirements of all variables.
var requirements = []requirement{
	{variable: "ORIGIN_TLS_CERT", needs: []string{"ORIGIN_TLS_KEY"}},
	{variable: "ORIGIN_TLS_KEY", needs: []string{"ORIGIN_TLS_CERT"}},
	{variable: "ORIGIN_TLS_SERVER_NAME", needs: []string{"ORIGIN_TLS_CA"}, because: isSPIFFE},
	{variable: "TLS_CERT", needs: []string{"TLS_KEY"}},
	{variable: "TLS_KEY", needs: []string{"TLS_CERT"}},
	{variable: "TLS_LISTEN", needs: []string{"TLS_CERT"}},
	{variable: "TLS_CLIENT_CA", needs: []string{"TLS_CERT"}},
	{variable: "TLS_TRUST_DOMAINS", needs: []string{"TLS_CLIENT_CA"}},
	{variable: "AUTHZ", needs: []string{"TLS_CLIENT_CA"}, because: reason("rules match client certificates")},
	{variable: "ADMIN_LISTEN", needs: []string{"TLS_CLIENT_CA", "AUTHZ"}, because: isRemote},
	{variable: "PEERS", needs: []string{"PEERS_TLS_CERT", "PEERS_TLS_KEY"}},
	{variable: "PEERS_TLS_CA", needs: []string{"PEERS"}, unlessOff: "PEERS"},
	{variable: "PEERS_TLS_CERT", needs: []string{"PEERS"}, unlessOff: "PEERS"},
	{variable: "PEERS_TLS_KEY", needs: []string{"PEERS"}, unlessOff: "PEERS"},
	{variable: "PEERS_TLS_SERVER_NAME", needs: []string{"PEERS"}, unlessOff: "PEERS"},
	{variable: "PEERS_TLS_SERVER_NAME", needs: []string{"PEERS_TLS_CA"}, unlessOff: "PEERS", because: isSPIFFE},
	{variable: "ROLLOUT", needs: []string{"SNAPSHOT_DIR"},
		because: reason("otherwise a restart would send unapproved changes to all clients")},
	{variable: "ROLLOUT", needs: []string{"DELTA_VERSIONS=" + VersionsOfContent},
		because: reason("a rollout serves two versions of a resource at once")},
	{variable: "CHECK_ENVOY", needs: []string{"SNAPSHOT_DIR"},
		because: reason("otherwise a restart would send rejected changes to all clients")},
	{variable: "CHECK_ENVOY", needs: []string{"DELTA_VERSIONS=" + VersionsOfContent},
		because: reason("the Envoy and the clients are served two versions of a resource at once")},
}

// reason returns a reason for each value.
func reason(text string) func(any) string { return func(any) string { return text } }

// isSPIFFE returns the reason for which a SPIFFE ID requires a CA.
func isSPIFFE(value any) string {
	if name, ok := value.(ServerName); !ok || !name.isID() {
		return ""
	}
	return "the CAs of the system issue no SPIFFE ID"
}

// isRemote returns the reason for which an address for operators on other hosts requires mTLS and rules.
func isRemote(value any) string {
	addresses, _ := value.(Addresses)
	remote := NonLoopback(addresses)
	if len(remote) == 0 {
		return ""
	}
	return humanize.Quote(remote[0]) + " is not on loopback; use TENDER_PROBE_LISTEN for probes"
}

// unmet returns a refusal for each variable without all that it requires. It names what is missing, and what that
// requires in turn. A required variable that is set has errors of its own.
func (r *rules) unmet() refusals {
	unmet := refusals{}
	for _, v := range variablesOf(r.Origins) {
		var named []string
		begin := strings.TrimSuffix(v.name, strings.TrimPrefix(v.text.name, accessPrefix(PrimaryOrigin)))
		for i := range requirements {
			of := &requirements[i]
			value := r.fields[v.name]
			if of.variable != v.text.name || value.IsZero() || r.conflicting.has(v.name) {
				continue
			}
			because, applies := of.reason(value)
			if !applies || of.unlessOff != "" && r.isOff(of.unlessOff) {
				continue
			}
			all := r.missing(of, begin, named)
			if missing := all[len(named):]; len(missing) > 0 {
				unmet.add(v.name, errors.New("requires "+list(missing)+because), missing...)
			}
			named = all
		}
	}
	return unmet
}

// lacking returns the variables that unmet requirements lack. A variable with another value than the required one is not
// among them.
func (r refusals) lacking() map[string]bool {
	names := map[string]bool{}
	for _, all := range r {
		for _, one := range all {
			for _, name := range one.with {
				names[name] = !strings.Contains(name, "=")
			}
		}
	}
	return names
}

// reason returns the end of an error about a variable with a value, and whether the requirement applies to the value.
func (of *requirement) reason(value reflect.Value) (because string, applies bool) {
	if of.because == nil {
		return "", true
	}
	text := of.because(value.Interface())
	return ", because " + text, text != ""
}

// missing appends to found what a requirement lacks, and what that requires in turn: name, or name=value. begin is the
// prefix of the variables of the origin.
func (r *rules) missing(of *requirement, begin string, found []string) []string {
	for _, need := range of.needs {
		name := need
		if suffix, ok := strings.CutPrefix(need, accessPrefix(PrimaryOrigin)); ok {
			name = begin + suffix
		}
		if slices.Contains(found, name) || r.has(name) {
			continue
		}
		found = append(found, name)
		for i := range requirements {
			next := &requirements[i]
			if next.variable != need {
				continue
			}
			if _, applies := next.reason(r.fields[name]); applies {
				found = r.missing(next, begin, found)
			}
		}
	}
	return found
}

// has reports whether a variable is set: name, or name=value for this value only. One that cannot be decoded counts.
func (r *rules) has(need string) bool {
	name, want, hasValue := strings.Cut(need, "=")
	value := r.fields[name]
	switch {
	case r.undecodable.has(name):
		return true
	case hasValue:
		return show(value) == want
	}
	return !value.IsZero()
}

// isSet reports whether the environment has a variable.
func (r *rules) isSet(name string) bool { return strings.TrimSpace(r.env[name]) != "" }

// isOff reports whether a variable is off explicitly.
func (r *rules) isOff(name string) bool {
	return r.isSet(name) && !r.undecodable.has(name) && r.fields[name].IsZero()
}

// list returns variables as a list in a sentence.
func list(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return prefix + names[0]
	}
	return prefix + strings.Join(names[:last], ", "+prefix) + " and " + prefix + names[last]
}
