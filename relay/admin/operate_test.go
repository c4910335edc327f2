package admin

import (
	"crypto/tls"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestH09_WhoFreezes: the identity of a certificate counts alone; without one the user that the
// client claims is shown with the address.
func TestH09_WhoFreezes(t *testing.T) {
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
		who := "local"
		if tt.tls {
			r.TLS, who = new(tls.ConnectionState), "spiffe://example.org/ops"
		}
		if got := newCaller(r, who).By(tt.user); got != tt.want {
			t.Errorf("by %q from %q, TLS %v: %q, want %q", tt.user, tt.remote, tt.tls, got, tt.want)
		}
	}
}

// TestH09_ArgumentsOfFreeze are refused with their name if they cannot be.
func TestH09_ArgumentsOfFreeze(t *testing.T) {
	for _, tt := range []struct {
		of   FreezeScope
		want string // empty if it is allowed
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
		err := tt.of.Check()
		if (err == nil) != (tt.want == "") || err != nil && (!strings.HasPrefix(err.Error(), tt.want+":") || CodeOf(err) != http.StatusBadRequest) {
			t.Errorf("%+v: %v, want a refusal of %q", tt.of, err, tt.want)
		}
	}
}

// TestArgumentsOfRolloutCommands are refused as those of freeze are.
func TestArgumentsOfRolloutCommands(t *testing.T) {
	for want, of := range map[string]RolloutScope{"": {Origin: "o", All: true, Why: Why{Reason: "errors", User: "alice"}}, "reason": {Why: Why{Reason: "two\nlines"}}, "user": {Why: Why{User: "\x1b[31m"}}} {
		err := of.Check()
		if (err == nil) != (want == "") || err != nil && (!strings.HasPrefix(err.Error(), want+":") || CodeOf(err) != http.StatusBadRequest) {
			t.Errorf("%+v: %v, want a refusal of %q", of, err, want)
		}
	}
}

// TestH09_DescribeFreeze tells operators who, when, for how long and why.
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
