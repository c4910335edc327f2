package tlsfiles

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// maxTokenBytes bounds a token: servers take only so much of headers.
const maxTokenBytes = 16 << 10

// A CallConfig has the metadata of each call or stream to a server.
type CallConfig struct {
	// Token holds a bearer token, which is sent over TLS alone. Without a path, none is.
	Token File

	// Headers are sent as they are, by name in lower case.
	Headers map[string]string
}

// Calls opens files and returns credentials that use them as they are at each call, or nil
// for a zero CallConfig.
func (w *Watch) Calls(cfg CallConfig) (credentials.PerRPCCredentials, error) {
	if cfg.Token.Path == "" && len(cfg.Headers) == 0 {
		return nil, nil
	}
	c := &calls{headers: cfg.Headers}
	if cfg.Token.Path == "" {
		return c, nil
	}
	err := w.open(func(contents [][]byte) (reading, error) {
		token, err := parseToken(contents[0])
		if err != nil {
			return reading{}, cfg.Token.wrap(err)
		}
		return reading{use: func() { c.token.Store(&token) }}, nil
	}, cfg.Token)
	if err != nil {
		return nil, err
	}
	w.warnIfExposed(cfg.Token)
	return c, nil
}

// parseToken reads a token. Its errors contain only the length of the token.
func parseToken(content []byte) (string, error) {
	token := bytes.TrimSpace(content)
	switch {
	case len(token) == 0:
		return "", errors.New("it has no token")
	case len(token) > maxTokenBytes:
		return "", errors.New("it has more than a token: 16KiB at most")
	case bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", errors.New("it has more than a token: one word of ASCII, without the word Bearer")
	}
	return string(token), nil
}

// calls are credentials of calls: a token and headers.
type calls struct {
	token   atomic.Pointer[string] // nil if there is none
	headers map[string]string
}

// GetRequestMetadata returns what is sent with a call. A stream keeps what it began with.
func (c *calls) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := c.token.Load()
	if token == nil {
		return c.headers, nil
	}
	all := map[string]string{"authorization": "Bearer " + *token}
	maps.Copy(all, c.headers)
	return all, nil
}

// RequireTransportSecurity has gRPC refuse to send a token without TLS.
func (c *calls) RequireTransportSecurity() bool { return c.token.Load() != nil }
