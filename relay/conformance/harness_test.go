package conformance_test

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// checkRandom is rapid.Check with n random inputs, see check.RoundsOfRapid. The test must not run in parallel with another
// one, because rapid has one number of inputs for all tests.
func checkRandom(t *testing.T, n int, prop func(rt *rapid.T)) {
	t.Helper()
	defer check.RoundsOfRapid(n)()
	rapid.Check(t, prop)
}

// operated gives a relay an admin address. Such a relay also records its state every few seconds of virtual time.
const operated = "TENDER_ADMIN_LISTEN=127.0.0.1:0"

// A running is a relay with helpers for these tests.
type running struct {
	*instance.Relay
	t testing.TB
}

// start runs a relay of an origin, with further environment variables, until the test ends.
func start(t testing.TB, o *relaytest.Origin, env ...string) *running {
	t.Helper()
	return startRelay(t, instance.Of(o), env...)
}

// startMuted is start without a log, for tests in which the log would use much memory.
func startMuted(t testing.TB, o *relaytest.Origin, env ...string) *running {
	t.Helper()
	opts := instance.Of(o)
	opts.Options.Logger = slog.New(slog.DiscardHandler)
	return startRelay(t, opts, env...)
}

// bothVariants returns a client of each variant that ACKs every response. It applies opts and subscribe to each.
func (r *running) bothVariants(opts relaytest.ClientOptions,
	subscribe func(*relaytest.Client)) (clients []*relaytest.Client) {
	r.t.Helper()
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		opts.Variant, opts.AutoAck = v, true
		c := r.Client(opts)
		subscribe(c)
		clients = append(clients, c)
	}
	return clients
}

// downstreamRelay runs another relay, whose origin is r, until the test ends.
func (r *running) downstreamRelay(env ...string) *running {
	r.t.Helper()
	return startRelay(r.t, instance.Options{Above: r.Relay}, append(env, "TENDER_NODE_ID=tender/below")...)
}

// startFiles runs a relay that serves a directory, until the test ends.
func startFiles(t testing.TB, dir string, env ...string) *running {
	t.Helper()
	return startRelay(t, instance.Options{Target: "file://" + dir}, env...)
}

// startRelay is instance.Start with defaults for tests of many virtual hours without TLS.
func startRelay(t testing.TB, opts instance.Options, env ...string) *running {
	t.Helper()
	opts.Env = slices.Concat(env, opts.Env,
		[]string{"TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_CONNECTION_AGE=off", "TENDER_SECRETS=loopback"})
	return &running{Relay: instance.Start(t, opts), t: t}
}

// sleep lets virtual time pass in a bubble, and waits until all goroutines are idle.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// noLeaks fails the test if goroutines remain after it. Call it first, so that its cleanup runs last.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
