package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// parseStages reads TENDER_ROLLOUT.
func parseStages(raw string) (s rollout.Stages, err error) {
	err = s.UnmarshalText([]byte(raw))
	return s, err
}

// parseStagedType reads a type of TENDER_ROLLOUT_TYPES.
func parseStagedType(item string) (string, error) {
	typeURL, err := parseType(item)
	switch {
	case err != nil:
		return "", err
	case typeURL == wire.EndpointType || typeURL == wire.LocalityEndpoint:
		return "", fmt.Errorf("%s: endpoints are never staged, because clients would send requests to removed endpoints",
			humanize.Quote(item))
	case wire.IsSecret(typeURL):
		return "", fmt.Errorf("%s: Secrets are never staged, because certificates would expire", humanize.Quote(item))
	}
	return typeURL, nil
}

// shortNames formats a list of type URLs, using short names for known types.
func shortNames(value any) string {
	var names []string
	for _, typeURL := range value.([]string) {
		name, ok := schema.ShortName(typeURL)
		if !ok {
			name = typeURL
		}
		names = append(names, name)
	}
	return strings.Join(names, ",")
}

// parseCheckURL reads TENDER_ROLLOUT_CHECK. Its errors quote no part of the URL, which may contain credentials.
func parseCheckURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("not an http or https URL")
	}
	if checkAddress(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")), 1, false) != nil {
		return "", errors.New("the URL has no host, or a port that is not a number from 1 to 65535")
	}
	if u.Fragment != "" {
		return "", errors.New("the URL has a fragment, which requests do not contain")
	}
	return u.String(), nil
}

// maskURL formats a URL with masked user, password and query.
func maskURL(value any) string {
	u, err := url.Parse(value.(string))
	if err != nil {
		return "…"
	}
	hasUser, hasQuery := u.User != nil, u.RawQuery != ""
	u.User, u.RawQuery = nil, ""
	shown := u.String()
	if hasUser {
		shown = strings.Replace(shown, "//", "//…@", 1)
	}
	if hasQuery {
		shown += "?…"
	}
	return shown
}

// checkRollout returns errors for rollouts without the settings that they require.
func (c *Config) checkRollout(invalid, found map[string]error) {
	if len(c.Rollout) == 0 {
		return
	}
	var missing []string
	if c.SnapshotDir == "" && invalid["SNAPSHOT_DIR"] == nil {
		missing = append(missing, "TENDER_SNAPSHOT_DIR is off, so a restart would send unapproved changes to all clients: "+
			"set it to a directory")
	}
	if c.DeltaVersions != VersionsOfContent && invalid["DELTA_VERSIONS"] == nil {
		missing = append(missing, fmt.Sprintf("TENDER_DELTA_VERSIONS is %s, but a rollout serves two versions of a resource at "+
			"once: set it to %s", c.DeltaVersions, VersionsOfContent))
	}
	if len(missing) > 0 {
		found["ROLLOUT"], c.Rollout = errors.New(strings.Join(missing, "; ")), nil
	}
}
