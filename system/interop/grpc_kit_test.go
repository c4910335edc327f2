package interop_test

import (
	"net"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// An origin is a control plane that can be stopped and restarted on its address.
type origin interface {
	instance.Origin
	Put(msgs ...proto.Message)
	Stop()
	Restart()
}

// relayOf starts a relay with further variables. It is stopped when the test ends.
func relayOf(t *testing.T, opts instance.Options, env ...string) *instance.Relay {
	t.Helper()
	opts.Env = append(env, "TENDER_DRAIN=1s")
	return instance.Start(t, opts)
}

// relayAt is relayOf for a relay that listens on a reserved address, again or for the first time.
func relayAt(t *testing.T, address string, opts instance.Options, env ...string) *instance.Relay {
	t.Helper()
	l, err := proxy.ListenAgain(address)
	if err != nil {
		t.Fatal(err)
	}
	opts.Options.Listeners = []net.Listener{l}
	return relayOf(t, opts, env...)
}

// chain starts a chain of relays, which are stopped when the test ends. The first one connects to the origin, each
// other one to its predecessor, and the last one listens on an address.
func chain(t *testing.T, o origin, relays int, address string, env ...string) (last, first *instance.Relay) {
	t.Helper()
	opts := instance.Of(o)
	for i := range relays {
		if i == relays-1 {
			last = relayAt(t, address, opts, env...)
		} else {
			last = relayOf(t, opts, env...)
		}
		if i == 0 {
			first = last
		}
		opts = instance.Options{Target: last.Target}
	}
	return last, first
}

// noLeaks fails the test if it leaks goroutines. It must be called first, so that its cleanup runs last.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
