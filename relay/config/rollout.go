package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/humanize"
)

// StagedTypes are the type URLs of types whose changes may be distributed in stages. Their text form has short names.
type StagedTypes []string

// EnvDecode reads short names or type URLs, separated by commas.
func (s *StagedTypes) EnvDecode(raw string) error {
	return decodeList(s, ",", raw, parseStagedType, nil)
}

// MarshalText returns the text.
func (s StagedTypes) MarshalText() ([]byte, error) { return listText(s, typeText) }

// parseStagedType reads a short name or a type URL.
func parseStagedType(item string) (string, error) {
	typeURL, err := parseType(item)
	switch {
	case err != nil:
		return "", err
	case wire.IsEndpoints(typeURL):
		return "", fmt.Errorf("%s: endpoints are never staged, because clients would send requests to removed endpoints",
			humanize.Quote(item))
	case wire.IsSecret(typeURL):
		return "", fmt.Errorf("%s: Secrets are never staged, because certificates would expire", humanize.Quote(item))
	}
	return typeURL, nil
}

// A CheckURL is the URL of an external check. It may contain credentials, which its text form masks.
type CheckURL string

// EnvDecode reads an http or https URL. Its errors quote no part of the URL.
func (c *CheckURL) EnvDecode(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("not an http or https URL")
	}
	if checkAddress(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")), 1, false) != nil {
		return errors.New("the URL has no host, or a port that is not a number from 1 to 65535")
	}
	if u.Fragment != "" {
		return errors.New("the URL has a fragment, which requests do not contain")
	}
	*c = CheckURL(u.String())
	return nil
}

// MarshalText returns the URL with masked user, password and query.
func (c CheckURL) MarshalText() ([]byte, error) {
	u, err := url.Parse(string(c))
	if err != nil {
		return []byte("…"), nil
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
	return []byte(shown), nil
}
