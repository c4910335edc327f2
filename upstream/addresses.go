package upstream

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// addresses are the addresses that the name of a target resolves to, for an origin such as a headless Service. gRPC
// connects to one of them, and stays there as long as the connection is up, even if the server ends each stream. leave
// makes it connect to another one. The methods may be called from any goroutine.
type addresses struct {
	resolver.Builder // of the scheme of the target

	mu    sync.Mutex // also held while gRPC takes a state, so that states have one order
	cc    resolver.ClientConn
	state resolver.State     // the latest one of the resolver
	left  map[string]Failure // addresses of state that leave has excluded, and why
}

// dialOption returns the option with which the connection to a target uses a.
func (a *addresses) dialOption(target string) grpc.DialOption {
	scheme, _, _ := strings.Cut(target, ":")
	if a.Builder = resolver.Get(scheme); a.Builder == nil {
		a.Builder = resolver.Get("dns")
	}
	return grpc.WithResolvers(a)
}

// Build implements resolver.Builder.
func (a *addresses) Build(
	t resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions,
) (resolver.Resolver, error) {
	a.mu.Lock()
	a.cc = cc
	a.mu.Unlock()
	return a.Builder.Build(t, resolved{cc, a}, opts)
}

// resolved passes the states of a resolver to gRPC without the addresses that were left.
type resolved struct {
	resolver.ClientConn
	a *addresses
}

// UpdateState implements resolver.ClientConn.
func (r resolved) UpdateState(s resolver.State) error {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if s.Endpoints == nil {
		for _, address := range s.Addresses {
			s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{address}})
		}
	}
	r.a.state = s
	return r.a.update()
}

// update passes the latest state to gRPC, without the addresses in left. If none remains, it clears left. The caller
// must hold mu.
func (a *addresses) update() error {
	s, listed := a.state, make(map[string]Failure)
	s.Addresses, s.Endpoints = nil, slices.DeleteFunc(slices.Clone(s.Endpoints), func(e resolver.Endpoint) bool {
		return slices.ContainsFunc(e.Addresses, func(address resolver.Address) bool {
			why, isLeft := a.left[address.Addr]
			if isLeft {
				listed[address.Addr] = why
			}
			return isLeft
		})
	})
	if a.left = listed; len(s.Endpoints) == 0 {
		s, a.left = a.state, nil
	}
	return a.cc.UpdateState(s)
}

// leave makes gRPC close the connection and connect to an address that was not left yet. If there is none, it reports
// false, and gRPC connects to any address: behind a virtual IP address, a new connection may reach another server.
func (a *addresses) leave(address string, why Failure) (another bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cc == nil {
		return false // gRPC has not resolved the name
	}
	if a.left == nil {
		a.left = make(map[string]Failure)
	}
	a.left[address] = why
	_ = a.update() // an error means that gRPC needs other addresses, and asks the resolver for them
	if another = len(a.left) > 0; !another {
		a.reconnect()
	}
	return another
}

// reconnect makes gRPC close the connection and open a new one. The caller must hold mu.
func (a *addresses) reconnect() {
	none := a.state
	none.Addresses, none.Endpoints = nil, []resolver.Endpoint{}
	_ = a.cc.UpdateState(none) // always an error
	_ = a.cc.UpdateState(a.state)
}

// restore makes gRPC use all addresses again.
func (a *addresses) restore() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.left) > 0 {
		a.left = nil
		_ = a.update()
	}
}

// failed returns the addresses of the name of a target that gRPC does not use.
func (a *addresses) failed(target string) (all []FailedAddress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, address := range slices.Sorted(maps.Keys(a.left)) {
		all = append(all, FailedAddress{target, address, a.left[address]})
	}
	return all
}
