package relay

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxChain is the maximum number of relays between this relay and an origin, or between it and a client.
	maxChain = 4

	// maxPaths bounds the number of paths to origins that the relay sends to downstream relays.
	maxPaths = 8
)

// Statuses of streams that would close a cycle of relays, or make the chain too long.
var (
	errCycle = status.Error(codes.FailedPrecondition,
		"relays form a cycle: one of them is its own origin; TENDER_ORIGIN of one of them must name a control plane")
	errLongChain = status.Errorf(codes.FailedPrecondition,
		"chain of relays is too long: at most %d relays may precede one; they may also form a cycle", maxChain)
)

// A chain detects cycles of relays. It tracks the relays above this one from the response headers of upstream streams,
// and the relays below from the request headers of client streams. A relay that is both above and below forms a cycle.
// The chain refuses only the stream that closes the cycle (B.41). It implements upstream.Chain and downstream.Chain.
type chain struct {
	token      string // identifies this process
	log        *slog.Logger
	refusalLog rate.Sometimes // rate-limits log messages about refused relays

	mu    sync.Mutex
	above map[string]int // number of upstream streams by path to the origin: tokens separated by commas
	below map[*downstreamRelay]struct{}
}

// A downstreamRelay is a client stream of another relay.
type downstreamRelay struct {
	tokens []string    // of the client and the relays below it
	end    func(error) // closes the stream
}

func newChain(log *slog.Logger) *chain {
	return &chain{
		token: randomText(8), log: log, refusalLog: rate.Sometimes{First: 1, Interval: 10 * time.Second},
		above: make(map[string]int), below: make(map[*downstreamRelay]struct{}),
	}
}

// Token implements upstream.Chain.
func (c *chain) Token() string { return c.token }

// Above implements upstream.Chain.
func (c *chain) Above(paths []string) (leave func(), err error) {
	for _, path := range paths {
		switch relays := strings.Split(path, ","); {
		case slices.Contains(relays, c.token):
			return nil, errCycle
		case len(relays) > maxChain:
			return nil, errLongChain
		}
	}
	for _, s := range c.addUpstream(paths) {
		c.logRefused(s.tokens, errCycle)
		s.end(errCycle)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, path := range paths {
			if c.above[path]--; c.above[path] == 0 {
				delete(c.above, path)
			}
		}
	}, nil
}

// addUpstream records the paths of an upstream stream. It returns and removes the client streams that form a cycle with
// it.
func (c *chain) addUpstream(paths []string) (cycles []*downstreamRelay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, path := range paths {
		c.above[path]++
	}
	for s := range c.below {
		if slices.ContainsFunc(s.tokens, c.isAbove) {
			cycles = append(cycles, s)
			delete(c.below, s)
		}
	}
	return cycles
}

// isAbove reports whether a relay is on a path to an origin. The caller must hold mu.
func (c *chain) isAbove(token string) bool {
	for path := range c.above {
		if slices.Contains(strings.Split(path, ","), token) {
			return true
		}
	}
	return false
}

// Below implements downstream.Chain.
func (c *chain) Below(tokens []string, end func(error)) (paths []string, leave func(), err error) {
	s := &downstreamRelay{tokens, end}
	if paths, err = c.addDownstream(s); err != nil {
		c.logRefused(tokens, err)
		return nil, nil, err
	}
	return paths, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.below, s)
	}, nil
}

// addDownstream records a client stream and returns the paths to origins for it, or an error if it forms a cycle.
func (c *chain) addDownstream(s *downstreamRelay) (paths []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case slices.Contains(s.tokens, c.token), slices.ContainsFunc(s.tokens, c.isAbove):
		return nil, errCycle
	case len(s.tokens) > maxChain:
		return nil, errLongChain
	}
	c.below[s] = struct{}{}
	for _, path := range slices.Sorted(maps.Keys(c.above)) {
		if len(paths) < maxPaths {
			paths = append(paths, c.token+","+path)
		}
	}
	if len(paths) == 0 {
		paths = []string{c.token}
	}
	return paths, nil
}

// logRefused logs a refused stream of a downstream relay, at a limited rate.
func (c *chain) logRefused(tokens []string, cause error) {
	c.refusalLog.Do(func() {
		c.log.Warn("downstream relay refused", slog.Int("relays", len(tokens)), slog.Any("err", cause))
	})
}

// identifier returns the control_plane.identifier of this process, which is unique (R126).
func identifier(nodeID string) string {
	return nodeID + "#" + randomText(4)
}

// randomText returns random bytes in hexadecimal.
func randomText(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
