package admin

import (
	"crypto/tls"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestH09_OperatorOfFreeze verifies that the operator is the identity of the certificate. Without one, it is the user
// that the client names, with the address.
func TestH09_OperatorOfFreeze(t *testing.T) {
	for _, tt := range []struct {
		tls          bool
		remote, user string
		want         string
	}{
		{tls: true, remote: "192.0.2.1:4711", user: "mallory", want: "spiffe://example.org/ops"},
		{remote: "127.0.0.1:4711", user: "alice", want: "alice at 127.0.0.1"},
		{remote: "[::1]:4711", want: "::1"},
		{remote: "@", user: "alice", want: "alice"},
		{remote: "", want: "local"},
	} {
		r := &http.Request{RemoteAddr: tt.remote}
		identity := "local"
		if tt.tls {
			r.TLS, identity = new(tls.ConnectionState), "spiffe://example.org/ops"
		}
		if got := newCaller(r, identity).By(tt.user); got != tt.want {
			t.Errorf("user %q at %q, TLS %v: operator %q, want %q", tt.user, tt.remote, tt.tls, got, tt.want)
		}
	}
}

// TestH09_ArgumentsOfFreeze verifies that the error about an invalid argument begins with its name.
func TestH09_ArgumentsOfFreeze(t *testing.T) {
	for _, tt := range []struct {
		args FreezeScope
		want string // invalid argument; empty if all are valid
	}{
		{FreezeScope{}, ""},
		{FreezeScope{Why: Why{Reason: strings.Repeat("x", MaxReasonBytes), User: "alice"}, ForSeconds: 7200}, ""},
		{FreezeScope{Why: Why{Reason: strings.Repeat("x", MaxReasonBytes+1)}}, "reason"},
		{FreezeScope{Why: Why{Reason: "two\nlines"}}, "reason"},
		{FreezeScope{Why: Why{User: "\x1b[31m"}}, "user"},
		{FreezeScope{ForSeconds: -1}, "for_seconds"},
		{FreezeScope{ForSeconds: 0.5}, "for_seconds"},
		{FreezeScope{ForSeconds: 1e12}, "for_seconds"},
		{FreezeScope{ForSeconds: math.NaN()}, "for_seconds"},
	} {
		err := tt.args.Check()
		expectInvalid(t, tt.args, err, tt.want)
	}
}

// expectInvalid fails unless an error is about the argument want, with the code 400; or nil if want is empty.
func expectInvalid(t *testing.T, args any, err error, want string) {
	t.Helper()
	if err == nil && want == "" {
		return
	}
	if err == nil || want == "" || !strings.HasPrefix(err.Error(), want+":") || CodeOf(err) != http.StatusBadRequest {
		t.Errorf("%+v: error %v with code %d, want 400 about %q", args, err, CodeOf(err), want)
	}
}

// TestArgumentsOfRolloutCommands verifies that the error about an invalid argument begins with its name.
func TestArgumentsOfRolloutCommands(t *testing.T) {
	for want, args := range map[string]RolloutScope{
		"":       {Origin: "o", All: true, Why: Why{Reason: "errors", User: "alice"}},
		"reason": {Why: Why{Reason: "two\nlines"}},
		"user":   {Why: Why{User: "\x1b[31m"}},
	} {
		expectInvalid(t, args, args.Check(), want)
	}
}

// TestH09_DescribeFreeze verifies that the description has the operator, the time, the duration and the reason.
func TestH09_DescribeFreeze(t *testing.T) {
	now := time.Now()
	f := Freezing{By: "alice", Since: now.Add(-5 * time.Minute)}
	if got, want := f.Describe(now), "frozen by alice 5m0s ago"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	f.Until, f.Reason = now.Add(2*time.Hour), "bad routes"
	if got, want := f.Describe(now), "frozen by alice 5m0s ago, for another 2h0m: bad routes"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
