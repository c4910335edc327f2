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
	// maxChain is how many relays may stand above or below one.
	maxChain = 4

	// maxWays bounds the ways to origins that relays below are told of.
	maxWays = 8
)

// Why a stream ends that would have the relay be its own origin, or stand in too long a row.
var (
	errCircle = status.Error(codes.FailedPrecondition,
		"relays form a circle: one of them is its own origin; TENDER_ORIGIN of one of them must name a control plane")
	errLongChain = status.Errorf(codes.FailedPrecondition,
		"too many relays in a row: at most %d may stand before one; they may also form a circle", maxChain)
)

// A chain knows the relays above this one, by what they say in the headers of streams to the origins, and those below,
// by what they say in the headers of theirs. A relay that is both closes a circle, of which both ends notice: then the
// stream that closes it ends, and no other (B.41). It implements upstream.Chain and downstream.Chain.
type chain struct {
	token    string
	log      *slog.Logger
	refusing rate.Sometimes // that a relay is refused is logged

	mu    sync.Mutex
	above map[string]int // streams to origins, by the way that their server has shown
	below map[*lowerStream]struct{}
}

// A lowerStream is a stream whose client is a relay.
type lowerStream struct {
	tokens []string
	end    func(error)
}

func newChain(log *slog.Logger) *chain {
	return &chain{
		token: randomText(8), log: log, refusing: rate.Sometimes{First: 1, Interval: 10 * time.Second},
		above: make(map[string]int), below: make(map[*lowerStream]struct{}),
	}
}

// Token implements upstream.Chain.
func (c *chain) Token() string { return c.token }

// Above implements upstream.Chain.
func (c *chain) Above(ways []string) (leave func(), err error) {
	for _, way := range ways {
		switch relays := strings.Split(way, ","); {
		case slices.Contains(relays, c.token):
			return nil, errCircle
		case len(relays) > maxChain:
			return nil, errLongChain
		}
	}
	for _, s := range c.add(ways) {
		c.refuse(s.tokens, errCircle)
		s.end(errCircle)
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

// add counts a stream to an origin, and returns the streams of clients that close a circle with it.
func (c *chain) add(ways []string) (circles []*lowerStream) {
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

// isAbove reports whether a relay is on a way to an origin. Locked.
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
	s := &lowerStream{tokens, end}
	if ways, err = c.enter(s); err != nil {
		c.refuse(tokens, err)
		return nil, nil, err
	}
	return ways, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.below, s)
	}, nil
}

func (c *chain) enter(s *lowerStream) (ways []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case slices.Contains(s.tokens, c.token), slices.ContainsFunc(s.tokens, c.isAbove):
		return nil, errCircle
	case len(s.tokens) > maxChain:
		return nil, errLongChain
	}
	c.below[s] = struct{}{}
	for _, way := range slices.Sorted(maps.Keys(c.above)) {
		if len(ways) < maxWays {
			ways = append(ways, c.token+","+way)
		}
	}
	if len(ways) == 0 {
		ways = []string{c.token}
	}
	return ways, nil
}

func (c *chain) refuse(tokens []string, why error) {
	c.refusing.Do(func() {
		c.log.Warn("downstream relay rejected", slog.Int("relays", len(tokens)), slog.Any("err", why))
	})
}

// identifier returns a name for this process that no other has (R126).
func identifier(nodeID string) string {
	return nodeID + "#" + randomText(4)
}

// randomText returns so many random bytes as text.
func randomText(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
