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
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/humanize"
)

// PrimaryOrigin is what [Route.Origin] calls the origin of TENDER_ORIGIN. No other
// origin may have that name.
const PrimaryOrigin = "default"

// AnyAuthority is the [Route.Authority] of the route for xdstp names whose
// authority has no route of its own.
const AnyAuthority = "*"

// A NamedOrigin is one of TENDER_ORIGINS. As text it is name=target,target.
type NamedOrigin struct {
	Name    string
	Targets []string // as Config.Origin
	Access  Access   // from variables of its own
}

// MarshalText returns the text.
func (o NamedOrigin) MarshalText() ([]byte, error) {
	return []byte(o.Name + "=" + strings.Join(o.Targets, ",")), nil
}

// A Route is one of TENDER_ROUTES: what goes to another origin than TENDER_ORIGIN.
// Exactly one of TypeURL and Authority is set. As text it is type:<type>=<origin>
// or authority:<authority>=<origin>.
type Route struct {
	TypeURL   string // resources of this type
	Authority string // xdstp names of this authority, canonical; or AnyAuthority
	Origin    string // a NamedOrigin's name, or PrimaryOrigin
}

// MarshalText returns the text.
func (r Route) MarshalText() ([]byte, error) { return []byte(r.subject() + "=" + r.Origin), nil }

// subject returns what the route is for: the text before the last "=".
func (r Route) subject() string {
	if r.TypeURL != "" {
		return "type:" + r.TypeURL
	}
	return "authority:" + r.Authority
}

// parseRoute reads a route, whose type may be a short name.
func parseRoute(item string) (r Route, err error) {
	end := strings.LastIndex(item, "=") // an authority may hold one, an origin's name may not
	if end < 0 {
		return r, fmt.Errorf("%s does not end in =name", humanize.Quote(item))
	}
	r.Origin = strings.TrimSpace(item[end+1:])
	kind, subject, _ := strings.Cut(strings.TrimSpace(item[:end]), ":")
	switch kind {
	case "type":
		r.TypeURL, err = parseType(subject)
	case "authority":
		r.Authority, err = subject, checkAuthority(subject)
	default:
		err = fmt.Errorf("%s is for neither a type nor an authority", humanize.Quote(item))
	}
	if err == nil && !validOriginName.MatchString(r.Origin) {
		err = fmt.Errorf("%s is not a name for an origin", humanize.Quote(r.Origin))
	}
	return r, err
}

// checkAuthority reports what is wrong with the authority of a route.
func checkAuthority(authority string) error {
	canonical, err := wire.CanonicalAuthority(authority)
	switch {
	case authority == "":
		return errors.New("the authority of a route is empty")
	case err != nil:
		return err
	case canonical != authority:
		return fmt.Errorf("the authority %s is spelled %s in canonical form", humanize.Quote(authority), humanize.Quote(canonical))
	}
	return nil
}

// validOriginName is what an origin may be called: the name stands in log lines, and in
// names of variables.
var validOriginName = regexp.MustCompile(`^[a-z0-9-]+$`)

// maxOrigins is how many origins there can be beside that of TENDER_ORIGIN: each makes
// two sources of every view.
const maxOrigins = cache.MaxSources/2 - 1

// parseOrigins reads TENDER_ORIGINS.
func parseOrigins(raw string) ([]NamedOrigin, error) {
	var names []string
	return listOf(";", func(item string) (o NamedOrigin, err error) {
		name, targets, ok := strings.Cut(item, "=")
		name = strings.TrimSpace(name)
		switch {
		case !ok:
			return o, fmt.Errorf("%s is not name=target", humanize.Quote(item))
		case !validOriginName.MatchString(name):
			return o, fmt.Errorf("%s is not a name for an origin", humanize.Quote(name))
		case name == PrimaryOrigin:
			return o, fmt.Errorf("%s is the name of the origin in TENDER_ORIGIN", humanize.Quote(name))
		case len(names) == maxOrigins:
			return o, fmt.Errorf("%s is one too many", humanize.Quote(name))
		case slices.Contains(names, name):
			return o, fmt.Errorf("the name %s comes twice", humanize.Quote(name))
		}
		names = append(names, name)
		o.Name = name
		if o.Targets, err = parseOrigin(strings.TrimSpace(targets)); err != nil {
			return o, fmt.Errorf("origin %s: %w", humanize.Quote(name), err)
		}
		return o, nil
	})(raw)
}

// parseRoutes reads TENDER_ROUTES. Whether the origins exist, conflicts says.
func parseRoutes(raw string) ([]Route, error) {
	var subjects []string
	return listOf(";", func(item string) (Route, error) {
		r, err := parseRoute(item)
		if err == nil && slices.Contains(subjects, r.subject()) {
			err = fmt.Errorf("%s has two routes", humanize.Quote(r.subject()))
		}
		subjects = append(subjects, r.subject())
		return r, err
	})(raw)
}

// conflicts returns, by variable, what is wrong with values that are good by
// themselves, and puts defaults in their place. It passes over what depends on a
// variable in wrong, which has been refused already.
func (c *Config) conflicts(wrong map[string]error) map[string]error {
	found := map[string]error{}
	if err := c.checkRoutes(); err != nil && wrong["ORIGINS"] == nil && wrong["ROUTES"] == nil {
		found["ROUTES"], c.Routes = err, nil
	}
	maps.Copy(found, c.checkNodeID(wrong))
	maps.Copy(found, c.checkListen())
	maps.Copy(found, c.checkAccess(wrong))
	maps.Copy(found, c.checkTLS(wrong))
	if c.Authz != "" && c.TLSClientCA == "" && wrong["AUTHZ"] == nil && wrong["TLS_CLIENT_CA"] == nil {
		found["AUTHZ"], c.Authz = errors.New("its rules are about certificates, and TENDER_TLS_CLIENT_CA is not set"), ""
	}
	c.checkTrustDomains(wrong, found)
	c.checkBufferedRequests(wrong, found)
	c.checkAdmin(wrong, found)
	c.checkPeers(wrong, found)
	c.checkRollout(wrong, found)
	if c.LRS != LRSOff && len(c.Origin) > 0 && isDirectory(c.Origin[0]) {
		found["LRS"] = fmt.Errorf("TENDER_ORIGIN=%s is a directory, which takes no load reports", humanize.Quote(c.Origin[0]))
		c.LRS = LRSOff
	}
	return found
}

// defaultBufferedBytes is the default of TENDER_MAX_BUFFERED_REQUEST_BYTES.
const defaultBufferedBytes Size = gibibyte

// checkBufferedRequests finds that the largest request of a client would not come: a peer may have a
// fourth of what all may.
func (c *Config) checkBufferedRequests(wrong, found map[string]error) {
	least := guard.UnreadOfPeer * c.MaxRequestBytes
	if c.MaxUnreadBytes >= least || wrong["MAX_REQUEST_BYTES"] != nil || wrong["MAX_BUFFERED_REQUEST_BYTES"] != nil {
		return
	}
	found["MAX_BUFFERED_REQUEST_BYTES"] = fmt.Errorf("%v is less than four times TENDER_MAX_REQUEST_BYTES=%v: a peer may have a fourth of it, and the largest request would not come", c.MaxUnreadBytes, c.MaxRequestBytes)
	c.MaxUnreadBytes = max(least, defaultBufferedBytes)
}

// checkAdmin finds an address for operators on other hosts, if nothing says who they are.
func (c *Config) checkAdmin(wrong, found map[string]error) {
	remote := NonLoopback(c.AdminListen)
	if len(remote) == 0 {
		return
	}
	var missing []string
	for _, v := range []struct{ name, value string }{{"TLS_CERT", c.TLSCert}, {"TLS_CLIENT_CA", c.TLSClientCA}, {"AUTHZ", c.Authz}} {
		if wrong[v.name] != nil || found[v.name] != nil {
			return
		}
		if v.value == "" {
			missing = append(missing, prefix+v.name)
		}
	}
	if len(missing) > 0 {
		c.AdminListen = []string{defaultAdminListen}
		found["ADMIN_LISTEN"] = fmt.Errorf("%s is not on loopback, and operators elsewhere have to show who they are; not set: %s; for probes there is TENDER_PROBE_LISTEN",
			humanize.Quote(remote[0]), strings.Join(missing, ", "))
	}
}

// checkRoutes reports a route that leads nowhere, or else an origin that no route
// leads to.
func (c *Config) checkRoutes() error {
	for _, r := range c.Routes {
		exists := r.Origin == PrimaryOrigin || slices.ContainsFunc(c.Origins, func(o NamedOrigin) bool { return o.Name == r.Origin })
		if !exists {
			return fmt.Errorf("%s leads to %s, which TENDER_ORIGINS does not have", humanize.Quote(r.subject()), humanize.Quote(r.Origin))
		}
	}
	for _, o := range c.Origins {
		if !slices.ContainsFunc(c.Routes, func(r Route) bool { return r.Origin == o.Name }) {
			return fmt.Errorf("no route leads to %s, which TENDER_ORIGINS has", humanize.Quote(o.Name))
		}
	}
	return nil
}

// checkListen reports addresses that are another listener's already, and takes them
// away. Port 0 means any that is free.
func (c *Config) checkListen() map[string]error {
	found, taken := map[string]error{}, map[string]string{}
	for _, l := range []struct {
		variable  string
		addresses *[]string
	}{{"LISTEN", &c.Listen}, {"TLS_LISTEN", &c.TLSListen}, {"REST_LISTEN", &c.RESTListen}, {"ADMIN_LISTEN", &c.AdminListen}, {"PROBE_LISTEN", &c.ProbeListen}} {
		for _, address := range *l.addresses {
			if by := taken[address]; by != "" && by != l.variable && !strings.HasSuffix(address, ":0") {
				found[l.variable] = fmt.Errorf("%s is in %s%s too", humanize.Quote(address), prefix, by)
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

// checkTLS returns, by variable, what is of no use without a certificate and its key.
func (c *Config) checkTLS(wrong map[string]error) map[string]error {
	found := map[string]error{}
	if wrong["TLS_CERT"] != nil || wrong["TLS_KEY"] != nil {
		return found
	}
	if c.TLSCert != "" && c.TLSKey == "" {
		found["TLS_CERT"], c.TLSCert = errors.New("its key is missing: TENDER_TLS_KEY is not set"), ""
	}
	if c.TLSCert != "" {
		return found
	}
	if c.TLSKey != "" && found["TLS_CERT"] == nil {
		found["TLS_KEY"], c.TLSKey = errors.New("its certificate is missing: TENDER_TLS_CERT is not set"), ""
	}
	if c.TLSClientCA != "" {
		found["TLS_CLIENT_CA"], c.TLSClientCA = errors.New("it is of no use without TENDER_TLS_CERT"), ""
	}
	if len(c.TLSListen) > 0 {
		found["TLS_LISTEN"], c.TLSListen = errors.New("there is no TLS without TENDER_TLS_CERT"), nil
	}
	return found
}

// AllOrigins returns the origin of TENDER_ORIGIN, which is called [PrimaryOrigin], and then those of TENDER_ORIGINS.
func AllOrigins(c *Config) []NamedOrigin {
	return append([]NamedOrigin{{PrimaryOrigin, c.Origin, c.OriginAccess}}, c.Origins...)
}

// OriginNames returns the names of the origins, in their order.
func (c *Config) OriginNames() (names []string) {
	for _, o := range AllOrigins(c) {
		names = append(names, o.Name)
	}
	return names
}

// OriginName returns the name of an origin.
func (c *Config) OriginName(origin int) string {
	if origin == 0 {
		return PrimaryOrigin
	}
	return c.Origins[origin-1].Name
}
