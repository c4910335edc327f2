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
	// maxChain is how many relays may be above or below this one.
	maxChain = 4

	// maxPaths bounds the paths to origins that the relay sends to relays below.
	maxPaths = 8
)

// The status of streams that would make the relay its own origin, or the chain too long.
var (
	errCycle = status.Error(codes.FailedPrecondition,
		"relays form a circle: one of them is its own origin; TENDER_ORIGIN of one of them must name a control plane")
	errLongChain = status.Errorf(codes.FailedPrecondition,
		"too many relays in a row: at most %d may stand before one; they may also form a circle", maxChain)
)

// A chain tracks the relays above this one, from the response headers of upstream streams, and the relays below, from the
// request headers of their streams. A relay that is both above and below closes a circle. The stream that closes it is
// ended, and no other (B.41). It implements upstream.Chain and downstream.Chain.
type chain struct {
	token        string
	log          *slog.Logger
	rejectionLog rate.Sometimes // limits log messages about rejected relays

	mu    sync.Mutex
	above map[string]int // upstream streams by the path to the origin that the server sent
	below map[*downstreamRelay]struct{}
}

// A downstreamRelay is a stream whose client is a relay.
type downstreamRelay struct {
	tokens []string
	end    func(error)
}

func newChain(log *slog.Logger) *chain {
	return &chain{
		token: randomText(8), log: log, rejectionLog: rate.Sometimes{First: 1, Interval: 10 * time.Second},
		above: make(map[string]int), below: make(map[*downstreamRelay]struct{}),
	}
}

// Token implements upstream.Chain.
func (c *chain) Token() string { return c.token }

// Above implements upstream.Chain.
func (c *chain) Above(ways []string) (leave func(), err error) {
	for _, way := range ways {
		switch relays := strings.Split(way, ","); {
		case slices.Contains(relays, c.token):
			return nil, errCycle
		case len(relays) > maxChain:
			return nil, errLongChain
		}
	}
	for _, s := range c.addUpstream(ways) {
		c.logRejected(s.tokens, errCycle)
		s.end(errCycle)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, way := range ways {
			if c.above[way]--; c.above[way] == 0 {
				delete(c.above, way)
			}
		}
	}, nil
}

// addUpstream counts an upstream stream, and returns the client streams that close a circle with it.
func (c *chain) addUpstream(ways []string) (circles []*downstreamRelay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, way := range ways {
		c.above[way]++
	}
	for s := range c.below {
		if slices.ContainsFunc(s.tokens, c.isAbove) {
			circles = append(circles, s)
			delete(c.below, s)
		}
	}
	return circles
}

// isAbove reports whether a relay is on a path to an origin. The caller holds mu.
func (c *chain) isAbove(token string) bool {
	for way := range c.above {
		if slices.Contains(strings.Split(way, ","), token) {
			return true
		}
	}
	return false
}

// Below implements downstream.Chain.
func (c *chain) Below(tokens []string, end func(error)) (ways []string, leave func(), err error) {
	s := &downstreamRelay{tokens, end}
	if ways, err = c.addDownstream(s); err != nil {
		c.logRejected(tokens, err)
		return nil, nil, err
	}
	return ways, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.below, s)
	}, nil
}

func (c *chain) addDownstream(s *downstreamRelay) (ways []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case slices.Contains(s.tokens, c.token), slices.ContainsFunc(s.tokens, c.isAbove):
		return nil, errCycle
	case len(s.tokens) > maxChain:
		return nil, errLongChain
	}
	c.below[s] = struct{}{}
	for _, way := range slices.Sorted(maps.Keys(c.above)) {
		if len(ways) < maxPaths {
			ways = append(ways, c.token+","+way)
		}
	}
	if len(ways) == 0 {
		ways = []string{c.token}
	}
	return ways, nil
}

func (c *chain) logRejected(tokens []string, why error) {
	c.rejectionLog.Do(func() {
		c.log.Warn("downstream relay rejected", slog.Int("relays", len(tokens)), slog.Any("err", why))
	})
}

// identifier returns a unique name of this process (R126).
func identifier(nodeID string) string {
	return nodeID + "#" + randomText(4)
}

// randomText returns random bytes in hexadecimal.
func randomText(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
