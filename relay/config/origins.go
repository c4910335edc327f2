package config

import (
	"errors"
	"fmt"
	"regexp"
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
	if !validOriginName.MatchString(r.Origin) {
		err = join(err, fmt.Errorf("%s is not a valid origin name", humanize.Quote(r.Origin)))
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
	if len(*o) > maxOrigins {
		err = join(err, fmt.Errorf("%s exceeds the maximum of %d origins", humanize.Quote((*o)[maxOrigins].Name), maxOrigins))
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
		err = fmt.Errorf("%s is not a valid origin name", humanize.Quote(o.Name))
	case o.Name == PrimaryOrigin:
		err = fmt.Errorf("%s is reserved for the origin of TENDER_ORIGIN", humanize.Quote(o.Name))
	}
	if invalid := o.Targets.EnvDecode(strings.TrimSpace(targets)); invalid != nil {
		err = join(err, fmt.Errorf("origin %s: %w", humanize.Quote(o.Name), invalid))
	}
	return o, err
}

// Routes are the routes of TENDER_ROUTES. Load checks that their origins exist.
type Routes []Route

// EnvDecode reads routes, separated by semicolons.
func (r *Routes) EnvDecode(raw string) error {
	return decodeList(r, ";", raw, parseRoute, func(r Route) string { return "route for " + humanize.Quote(r.subject()) })
}

// AllOrigins returns the origin of TENDER_ORIGIN, whose name is [PrimaryOrigin], and then those of TENDER_ORIGINS.
func AllOrigins(c *Config) []NamedOrigin {
	return append([]NamedOrigin{{PrimaryOrigin, c.Origin, c.OriginAccess}}, c.Origins...)
}
