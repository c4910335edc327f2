package conformance_test

import (
	"flag"
	"log/slog"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestMain has properties checked by 50 histories each, unless -rapid.checks says otherwise: the race
// detector makes one of virtual hours half a second, and each run takes others.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "50"); err != nil {
			panic(err) // there is this flag
		}
	}
	os.Exit(m.Run())
}

// operated gives a relay an admin address. Such a relay keeps a record every few seconds, also of virtual hours.
const operated = "TENDER_ADMIN_LISTEN=127.0.0.1:0"

// running is a relay with helpers of these tests.
type running struct {
	*relaytest.Relay
	t testing.TB
}

// start runs a relay of an origin with further variables until the test ends.
func start(t testing.TB, o *relaytest.Origin, env ...string) *running {
	t.Helper()
	return startRelay(t, o.RelayOptions(), env...)
}

// startMuted is start of a relay that logs nothing, for tests in which a log would take much memory.
func startMuted(t testing.TB, o *relaytest.Origin, env ...string) *running {
	t.Helper()
	opts := o.RelayOptions()
	opts.Options.Logger = slog.New(slog.DiscardHandler)
	return startRelay(t, opts, env...)
}

// below runs another relay, whose origin is this one, until the test ends.
func (r *running) downstreamRelay(env ...string) *running {
	r.t.Helper()
	return startRelay(r.t, relaytest.RelayOptions{Above: r.Relay}, append(env, "TENDER_NODE_ID=tender/below")...)
}

// startFiles runs a relay of a directory until the test ends.
func startFiles(t testing.TB, dir string, env ...string) *running {
	t.Helper()
	return startRelay(t, relaytest.RelayOptions{Target: "file://" + dir}, env...)
}

// startRelay is relaytest.StartRelay with defaults for tests that take virtual hours and have no TLS.
func startRelay(t testing.TB, opts relaytest.RelayOptions, env ...string) *running {
	t.Helper()
	opts.Env = slices.Concat(env, opts.Env, []string{"TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_CONNECTION_AGE=off", "TENDER_SECRETS=loopback"})
	return &running{Relay: relaytest.StartRelay(t, opts), t: t}
}

// noLeaks fails the test if it leaves goroutines behind. It is called first, so that it looks last.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
