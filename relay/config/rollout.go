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

// parseStagedType reads a type whose changes may wait for a stage.
func parseStagedType(item string) (string, error) {
	typeURL, err := parseType(item)
	switch {
	case err != nil:
		return "", err
	case typeURL == wire.EndpointType || typeURL == wire.LocalityEndpoint:
		return "", fmt.Errorf("%s: endpoints never wait, or clients would send requests to endpoints that are gone", humanize.Quote(item))
	case wire.IsSecret(typeURL):
		return "", fmt.Errorf("%s: Secrets never wait, or certificates would expire", humanize.Quote(item))
	}
	return typeURL, nil
}

// shortNames shows a list of types by their short names, where they have one.
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

// parseCheckURL reads TENDER_ROLLOUT_CHECK. Its errors quote nothing: any part may be one of credentials.
func parseCheckURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("not an http or https URL")
	}
	if checkAddress(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")), 1, false) != nil {
		return "", errors.New("the URL has no host, or a port that is not a number from 1 to 65535")
	}
	if u.Fragment != "" {
		return "", errors.New("the URL has a fragment, which no request has")
	}
	return u.String(), nil
}

// maskURL shows a URL without its user, password and query.
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

// checkRollout finds what rollouts need and do not have.
func (c *Config) checkRollout(wrong, found map[string]error) {
	if c.RolloutQuery != "" && c.RolloutCheck == "" && wrong["ROLLOUT_CHECK"] == nil {
		found["ROLLOUT_QUERY"], c.RolloutQuery = errors.New("nobody is asked, since TENDER_ROLLOUT_CHECK is off"), ""
	}
	if len(c.Rollout) == 0 {
		return
	}
	var missing []string
	if c.SnapshotDir == "" && wrong["SNAPSHOT_DIR"] == nil {
		missing = append(missing, "TENDER_SNAPSHOT_DIR is off, so that a restart would send all clients what no stage has approved: set it to a directory")
	}
	for _, v := range []struct{ name, value string }{{"SOTW_VERSIONS", c.VersionSource}, {"DELTA_VERSIONS", c.DeltaVersions}} {
		if v.value != VersionsOfContent && wrong[v.name] == nil {
			missing = append(missing, fmt.Sprintf("%s%s is %s, and clients are served two contents at once: set it to %s", prefix, v.name, v.value, VersionsOfContent))
		}
	}
	if len(missing) > 0 {
		found["ROLLOUT"], c.Rollout = errors.New(strings.Join(missing, "; ")), nil
	}
}
