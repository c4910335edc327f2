package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// rules are the rules about values that depend on other variables. All values are checked by all rules, so that one start
// shows all errors. A rule that depends on an undecodable value is not checked.
type rules struct {
	*Config
	env         map[string]string
	fields      map[string]reflect.Value
	undecodable refusals
	conflicting refusals // values that are wrong beside others
}

// check fills conflicting.
func (r *rules) check() {
	r.conflicting = refusals{}
	r.checkRoutes()
	r.checkNodeID()
	r.checkListen()
	r.checkLoop("ORIGIN", r.Origin)
	r.checkAccess(PrimaryOrigin, "ORIGIN", r.Origin, &r.OriginAccess)
	for i := range r.Origins {
		o := &r.Origins[i]
		r.checkLoop("ORIGINS", o.Targets)
		r.checkAccess(o.Name, "ORIGINS", o.Targets, &o.Access)
	}
	if r.LRS != LRSOff && len(r.Origin) > 0 && isDirectory(r.Origin[0]) {
		r.conflicting.add("LRS", fmt.Errorf("TENDER_ORIGIN=%s is a directory, which does not accept load reports",
			humanize.Quote(r.Origin[0])), "ORIGIN")
	}
}

// checkRoutes refuses routes to origins that do not exist, and origins without a route.
func (r *rules) checkRoutes() {
	if r.undecodable.has("ORIGINS") || r.undecodable.has("ROUTES") {
		return
	}
	for _, route := range r.Routes {
		exists := route.Origin == PrimaryOrigin ||
			slices.ContainsFunc(r.Origins, func(o NamedOrigin) bool { return o.Name == route.Origin })
		if !exists {
			r.conflicting.add("ROUTES", fmt.Errorf("%s has the origin %s, which is not in TENDER_ORIGINS",
				humanize.Quote(route.subject()), humanize.Quote(route.Origin)), "ORIGINS")
		}
	}
	for _, o := range r.Origins {
		if !slices.ContainsFunc(r.Routes, func(r Route) bool { return r.Origin == o.Name }) {
			r.conflicting.add("ROUTES", fmt.Errorf("the origin %s of TENDER_ORIGINS has no route", humanize.Quote(o.Name)),
				"ORIGINS")
		}
	}
}

// checkNodeID refuses placeholders of fields that do not define node groups.
func (r *rules) checkNodeID() {
	places, unended := nodegroup.Places(string(r.NodeID))
	if unended != "" {
		r.conflicting.add("NODE_ID", fmt.Errorf("%s: separate the fields by a character other than %%; otherwise two groups "+
			"could have the same ID", humanize.Quote(unended)))
	}
	for _, place := range places {
		switch field := strings.Trim(place, "{}"); {
		case field == "id":
			r.conflicting.add("NODE_ID", fmt.Errorf("%s is not supported; with id in TENDER_NODE_GROUP_BY, the relay presents "+
				"the ID of the client", humanize.Quote(place)))
		case !slices.Contains(r.NodeGroupBy, field) && !r.undecodable.has("NODE_GROUP_BY"):
			r.conflicting.add("NODE_ID", fmt.Errorf("%s is not a field of TENDER_NODE_GROUP_BY", humanize.Quote(place)),
				"NODE_GROUP_BY")
		}
	}
}

// checkAccess refuses access settings that conflict with others of the origin, or with its targets. variable has the
// targets.
func (r *rules) checkAccess(origin, variable string, targets Targets, a *Access) {
	begin := accessPrefix(origin)
	given := slices.DeleteFunc(slices.Clone(accessNames), func(name string) bool { return r.fields[begin+name].IsZero() })
	if len(targets) > 0 && isDirectory(targets[0]) {
		for _, name := range given {
			r.conflicting.add(begin+name, errors.New("the origin is a directory, to which the relay opens no connection"),
				variable)
		}
		return
	}
	if a.TLS == TLSOff && a.hasFiles() {
		files := slices.DeleteFunc(given, func(name string) bool { return !slices.Contains(accessFiles, name) })
		for i, name := range files {
			files[i] = begin + name
		}
		r.conflicting.add(begin+"TLS", fmt.Errorf("TLS is required by %s", list(files)), files...)
	}
	if _, ok := a.Headers["authorization"]; ok && a.TokenFile != "" {
		r.conflicting.add(begin+"HEADERS", fmt.Errorf("the header authorization conflicts with the token of %s%sTOKEN_FILE",
			prefix, begin), begin+"TOKEN_FILE")
	}
	if r.lacksTLS(begin, a) {
		r.conflicting.add(begin+"TLS_SERVER_NAME", fmt.Errorf("requires TLS, but %s%sTLS is off", prefix, begin), begin+"TLS")
	}
	if a.TLS == TLSInsecure {
		r.checkInsecure(begin, a)
	}
}

// checkInsecure refuses access settings that require a verified server.
func (r *rules) checkInsecure(begin string, a *Access) {
	for _, of := range []struct {
		name, cause string
		isSet       bool
	}{
		{"TLS_CA", "has no effect", a.TLSCA != ""},
		{"TLS_SERVER_NAME", "a SPIFFE ID has no effect", a.TLSServerName.isID()},
		{"TOKEN_FILE", "the token would be sent to an unverified server", a.TokenFile != ""},
	} {
		if of.isSet {
			r.conflicting.add(begin+of.name, fmt.Errorf("%s, because %s%sTLS is insecure", of.cause, prefix, begin), begin+"TLS")
		}
	}
}

// accessFiles are the suffixes of the variables with files that require TLS.
var accessFiles = []string{"TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE"}

// lacksTLS reports whether a server name has no effect for lack of TLS. A SPIFFE ID requires a CA, which implies TLS.
func (r *rules) lacksTLS(begin string, a *Access) bool {
	if a.TLSServerName == "" || a.hasFiles() || a.TLSServerName.isID() && a.TLS == "" {
		return false
	}
	known := !slices.ContainsFunc(accessFiles, func(name string) bool { return r.undecodable.has(begin + name) })
	return known && (a.TLS == TLSOff || a.TLS == "" && !r.undecodable.has(begin+"TLS"))
}
