package demo

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xdstender/tender/relay/envoytest"
)

// TestRunWithEnvoy checks that an Envoy serves the shop without a failed request while the shop changes.
func TestRunWithEnvoy(t *testing.T) {
	envoy := envoytest.Binary(t)
	text := run(t, t.Context(), Options{Clients: 4, Rate: 20, For: 200 * time.Millisecond, Envoy: envoy}, new(output))
	expect(t, text,
		`An Envoy starts below the relay: .*`,
		`All 4 clients are in sync with the origin after \d+\.\ds\. Envoy serves the shop:`,
		`  curl http://127\.0\.0\.1:\d+/   # and /cart, /products, /search`,
		`Now the origin changes\.`,
		`Requests through Envoy since its first answer: [1-9]\d* answered, 0 failed\.`,
		`All 4 clients agree with the origin: yes`,
	)
}

func TestRunWithoutAnEnvoyThatStarts(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for binary, want := range map[string]string{
		"/nonexistent/envoy": "start Envoy: fork/exec /nonexistent/envoy: no such file or directory",
		"/bin/false":         "/bin/false ended: exit status 1",
	} {
		err := Run(t.Context(), Options{Clients: 1, Listen: "127.0.0.1:0", Envoy: binary, Out: new(output)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run with Envoy %s: %v, want %q", binary, err, want)
		}
	}
}
