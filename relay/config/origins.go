package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/humanize"
)

// PrimaryOrigin is the name of the origin of TENDER_ORIGIN. No other origin may have this name.
const PrimaryOrigin = "default"

// AnyAuthority is the [Route.Authority] of the route for all authorities without a route.
const AnyAuthority = "*"

// A NamedOrigin is an entry of TENDER_ORIGINS. Its text form is name=target,target.
type NamedOrigin struct {
	Name    string
	Targets Targets
	Access  Access // from the TENDER_ORIGIN_<NAME>_ variables
}

// MarshalText returns the text.
func (o NamedOrigin) MarshalText() ([]byte, error) {
	return []byte(o.Name + "=" + strings.Join(o.Targets, ",")), nil
}

// A Route is an entry of TENDER_ROUTES. It selects the origin of a resource type or of an xdstp authority: exactly one
// of TypeURL and Authority is set. Its text form is type:<type>=<origin> or authority:<authority>=<origin>.
type Route struct {
	TypeURL   string // the type of resources
	Authority string // the authority of xdstp names in canonical form, or AnyAuthority
	Origin    string // the name of a NamedOrigin, or PrimaryOrigin
}

// MarshalText returns the text.
func (r Route) MarshalText() ([]byte, error) { return []byte(r.subject() + "=" + r.Origin), nil }

// subject returns the text form without the origin.
func (r Route) subject() string {
	if r.TypeURL != "" {
		return "type:" + r.TypeURL
	}
	return "authority:" + r.Authority
}

// parseRoute reads a route. Its type may be a short name.
func parseRoute(item string) (r Route, err error) {
	end := strings.LastIndex(item, "=") // an authority may contain "=", the name of an origin may not
	if end < 0 {
		return r, fmt.Errorf("%s does not end with =name", humanize.Quote(item))
	}
	r.Origin = strings.TrimSpace(item[end+1:])
	kind, subject, _ := strings.Cut(strings.TrimSpace(item[:end]), ":")
	switch kind {
	case "type":
		r.TypeURL, err = parseType(subject)
	case "authority":
		r.Authority, err = subject, checkAuthority(subject)
	default:
		err = fmt.Errorf("%s has neither the prefix type: nor authority: before the name", humanize.Quote(item))
	}
	if err == nil && !validOriginName.MatchString(r.Origin) {
		err = fmt.Errorf("%s is not a valid origin name", humanize.Quote(r.Origin))
	}
	return r, err
}

// checkAuthority returns an error for the invalid authority of a route.
func checkAuthority(authority string) error {
	canonical, err := wire.CanonicalAuthority(authority)
	switch {
	case authority == "":
		return errors.New("the authority of a route is empty")
	case err != nil:
		return err
	case canonical != authority:
		return fmt.Errorf("the authority %s is not canonical; use %s", humanize.Quote(authority), humanize.Quote(canonical))
	}
	return nil
}

// validOriginName matches the name of an origin, which appears in logs, metrics and the names of variables.
var validOriginName = regexp.MustCompile(`^[a-z0-9-]+$`)

// maxOrigins is the maximum length of TENDER_ORIGINS. Each origin, and that of TENDER_ORIGIN, needs two sources per
// view.
const maxOrigins = cache.MaxSources/2 - 1

// Origins are the origins of TENDER_ORIGINS.
type Origins []NamedOrigin

// EnvDecode reads origins, separated by semicolons.
func (o *Origins) EnvDecode(raw string) error {
	err := decodeList(o, ";", raw, parseOrigin, func(o NamedOrigin) string { return "name " + humanize.Quote(o.Name) })
	if err == nil && len(*o) > maxOrigins {
		err = fmt.Errorf("%s exceeds the maximum of %d origins", humanize.Quote((*o)[maxOrigins].Name), maxOrigins)
	}
	return err
}

// parseOrigin reads name=target,target.
func parseOrigin(item string) (o NamedOrigin, err error) {
	name, targets, ok := strings.Cut(item, "=")
	o.Name = strings.TrimSpace(name)
	switch {
	case !ok:
		return o, fmt.Errorf("%s does not have the form name=target", humanize.Quote(item))
	case !validOriginName.MatchString(o.Name):
		return o, fmt.Errorf("%s is not a valid origin name", humanize.Quote(o.Name))
	case o.Name == PrimaryOrigin:
		return o, fmt.Errorf("%s is reserved for the origin of TENDER_ORIGIN", humanize.Quote(o.Name))
	}
	if err := o.Targets.EnvDecode(strings.TrimSpace(targets)); err != nil {
		return o, fmt.Errorf("origin %s: %w", humanize.Quote(o.Name), err)
	}
	return o, nil
}

// Routes are the routes of TENDER_ROUTES. Load checks that their origins exist.
type Routes []Route

// EnvDecode reads routes, separated by semicolons.
func (r *Routes) EnvDecode(raw string) error {
	return decodeList(r, ";", raw, parseRoute, func(r Route) string { return "route for " + humanize.Quote(r.subject()) })
}

// conflicts returns an error for each variable whose value conflicts with other variables. It skips checks that depend on
// a variable in invalid, which has an error already. It clears some of the values with an error, so that others do not
// depend on them.
func (c *Config) conflicts(env map[string]string, invalid map[string]error) map[string]error {
	found := map[string]error{}
	if err := c.checkRoutes(); err != nil && invalid["ORIGINS"] == nil && invalid["ROUTES"] == nil {
		found["ROUTES"] = err
	}
	maps.Copy(found, c.checkNodeID(invalid))
	maps.Copy(found, c.checkListen())
	maps.Copy(found, c.checkAccess(invalid))
	maps.Copy(found, c.checkTLS(invalid))
	if c.Authz != "" && c.TLSClientCA == "" && invalid["AUTHZ"] == nil && invalid["TLS_CLIENT_CA"] == nil {
		found["AUTHZ"] = errors.New("requires TENDER_TLS_CLIENT_CA, because rules match client certificates")
	}
	c.checkTrustDomains(invalid, found)
	c.checkAdmin(invalid, found)
	c.checkPeers(strings.TrimSpace(env["PEERS"]) != "", invalid, found)
	c.checkRollout(invalid, found)
	if c.LRS != LRSOff && len(c.Origin) > 0 && isDirectory(c.Origin[0]) {
		found["LRS"] = fmt.Errorf("TENDER_ORIGIN=%s is a directory, which does not accept load reports",
			humanize.Quote(c.Origin[0]))
	}
	return found
}

// checkAdmin returns an error if operators on other hosts could connect without mTLS and authorization rules.
func (c *Config) checkAdmin(invalid, found map[string]error) {
	remote := NonLoopback(c.AdminListen)
	if len(remote) == 0 {
		return
	}
	var missing []string
	for _, v := range []struct {
		name  string
		value Path
	}{
		{"TLS_CERT", c.TLSCert}, {"TLS_CLIENT_CA", c.TLSClientCA}, {"AUTHZ", c.Authz},
	} {
		if invalid[v.name] != nil || found[v.name] != nil {
			return
		}
		if v.value == "" {
			missing = append(missing, prefix+v.name)
		}
	}
	if len(missing) > 0 {
		found["ADMIN_LISTEN"] = fmt.Errorf("%s is not on loopback, which requires mTLS and rules; not set: %s; use "+
			"TENDER_PROBE_LISTEN for probes",
			humanize.Quote(remote[0]), strings.Join(missing, ", "))
	}
}

// checkRoutes returns an error for a route to an origin that does not exist, or for an origin without a route.
func (c *Config) checkRoutes() error {
	for _, r := range c.Routes {
		exists := r.Origin == PrimaryOrigin ||
			slices.ContainsFunc(c.Origins, func(o NamedOrigin) bool { return o.Name == r.Origin })
		if !exists {
			return fmt.Errorf("%s has the origin %s, which is not in TENDER_ORIGINS", humanize.Quote(r.subject()),
				humanize.Quote(r.Origin))
		}
	}
	for _, o := range c.Origins {
		if !slices.ContainsFunc(c.Routes, func(r Route) bool { return r.Origin == o.Name }) {
			return fmt.Errorf("the origin %s of TENDER_ORIGINS has no route", humanize.Quote(o.Name))
		}
	}
	return nil
}

// checkListen clears variables with an address that another variable has too, and returns their errors. Port 0, which
// means any free port, may be repeated.
func (c *Config) checkListen() map[string]error {
	found, taken := map[string]error{}, map[string]string{}
	for _, l := range []struct {
		variable  string
		addresses *Addresses
	}{
		{"LISTEN", &c.Listen}, {"TLS_LISTEN", &c.TLSListen}, {"REST_LISTEN", &c.RESTListen},
		{"ADMIN_LISTEN", &c.AdminListen}, {"PROBE_LISTEN", &c.ProbeListen},
	} {
		for _, address := range *l.addresses {
			if by := taken[address]; by != "" && by != l.variable && !strings.HasSuffix(address, ":0") {
				found[l.variable] = fmt.Errorf("%s is also in %s%s", humanize.Quote(address), prefix, by)
			} else {
				taken[address] = l.variable
			}
		}
		if found[l.variable] != nil {
			*l.addresses = nil
		}
	}
	return found
}

// checkTLS clears TLS settings that lack the certificate or the key, and returns their errors by variable.
func (c *Config) checkTLS(invalid map[string]error) map[string]error {
	found := map[string]error{}
	if invalid["TLS_CERT"] != nil || invalid["TLS_KEY"] != nil {
		return found
	}
	if c.TLSCert != "" && c.TLSKey == "" {
		found["TLS_CERT"], c.TLSCert = errors.New("requires a key, but TENDER_TLS_KEY is not set"), ""
	}
	if c.TLSCert != "" {
		return found
	}
	if c.TLSKey != "" && found["TLS_CERT"] == nil {
		found["TLS_KEY"], c.TLSKey = errors.New("requires a certificate, but TENDER_TLS_CERT is not set"), ""
	}
	if c.TLSClientCA != "" {
		found["TLS_CLIENT_CA"], c.TLSClientCA = errors.New("requires TENDER_TLS_CERT"), ""
	}
	if len(c.TLSListen) > 0 {
		found["TLS_LISTEN"], c.TLSListen = errors.New("requires TENDER_TLS_CERT"), nil
	}
	return found
}

// AllOrigins returns the origin of TENDER_ORIGIN, whose name is [PrimaryOrigin], and then those of TENDER_ORIGINS.
func AllOrigins(c *Config) []NamedOrigin {
	return append([]NamedOrigin{{PrimaryOrigin, c.Origin, c.OriginAccess}}, c.Origins...)
}
