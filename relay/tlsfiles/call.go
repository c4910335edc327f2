package tlsfiles

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// maxTokenBytes is the maximum size of a token. Servers limit the size of request headers.
const maxTokenBytes = 16 << 10

// A CallConfig configures the metadata that is sent with each call or stream to a server.
type CallConfig struct {
	// Token is the file of a bearer token. It is sent only over TLS. If the path is empty, no token is sent.
	Token File

	// Headers are sent unchanged. The keys are lower-case header names.
	Headers map[string]string
}

// Calls opens the token file and returns credentials that send its current content with each call. It returns nil for a
// zero CallConfig. It must not be called after [Watch.Run].
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

// parseToken returns the token in the content of a file. Its errors never contain the content.
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

// calls implements credentials.PerRPCCredentials.
type calls struct {
	token   atomic.Pointer[string] // current token; nil if none is configured
	headers map[string]string      // read-only
}

// GetRequestMetadata returns the metadata of a call. gRPC calls it once per stream, so a new token affects new streams
// only.
func (c *calls) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := c.token.Load()
	if token == nil {
		return c.headers, nil
	}
	all := map[string]string{"authorization": "Bearer " + *token}
	maps.Copy(all, c.headers)
	return all, nil
}

// RequireTransportSecurity makes gRPC refuse connections without TLS if a token is sent.
func (c *calls) RequireTransportSecurity() bool { return c.token.Load() != nil }
