package interop_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest/instance"
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

// chain starts a chain of relays, which are stopped when the test ends. The first one connects to the origin, each
// other one to its predecessor, and the last one listens on an address.
func chain(t *testing.T, o origin, relays int, address string, env ...string) (last, first *instance.Relay) {
	t.Helper()
	opts := instance.Of(o)
	for i := range relays {
		listen := "127.0.0.1:0"
		if i == relays-1 {
			listen = address
		}
		last = relayOf(t, opts, append(env, "TENDER_LISTEN="+listen)...)
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
