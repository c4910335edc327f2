package relaytest

import (
	"strings"
	"sync"

	"google.golang.org/grpc/resolver"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// Names are names that resolve to several addresses, for origins such as dns:///NAME. Other names resolve by DNS. A
// TestMain passes a value to resolver.Register before it runs tests.
type Names struct {
	resolver.Builder
	mu        sync.Mutex
	addresses map[string][]string // by name; guarded by mu
}

// NewNames returns a resolver without names.
func NewNames() *Names {
	return &Names{Builder: resolver.Get("dns"), addresses: make(map[string][]string)}
}

// Set makes a name resolve to addresses until the test ends.
func (n *Names) Set(tb wait.TB, name string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses[name] = addresses
	wait.Cleanup(tb, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.addresses, name)
	})
}

// Build implements resolver.Builder.
func (n *Names) Build(
	target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions,
) (resolver.Resolver, error) {
	n.mu.Lock()
	addresses, ok := n.addresses[strings.TrimPrefix(target.Endpoint(), "/")]
	n.mu.Unlock()
	if !ok {
		return n.Builder.Build(target, cc, opts)
	}
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	return fixed{}, cc.UpdateState(state)
}

// fixed is a resolver whose result does not change.
type fixed struct{}

// ResolveNow implements resolver.Resolver.
func (fixed) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements resolver.Resolver.
func (fixed) Close() {}
