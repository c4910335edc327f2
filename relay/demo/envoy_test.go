package demo

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

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
