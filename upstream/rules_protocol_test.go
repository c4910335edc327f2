package upstream_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// Log lines about an origin that does not implement Delta.
const (
	spokenSotW  = "INFO origin does not implement Delta ADS: using SotW"
	unsupported = "WARN origin does not implement this ADS variant"
)

// TestProtocol_AutoFallsBackToSotW: the relay uses SotW at once if an origin does not implement Delta, and logs that
// once.
func TestProtocol_AutoFallsBackToSotW(t *testing.T) {
	inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.membersAfter(0, "members without a delay", clusters, "a@1")
		for range 3 {
			r.Restart()
			r.pass(time.Minute)
		}
		r.put(clusters, "a@2")
		r.membersAfter(soon, "members", clusters, "a@2")
		if n := r.log.count(spokenSotW); n != 1 {
			t.Errorf("%d log lines about the use of SotW, want 1", n)
		}
		check.Equal(t, "warnings", r.log.count(unsupported), 0)
	})
}

// TestProtocol_AuxiliaryStream: both streams of a view use the variant of the origin.
func TestProtocol_AuxiliaryStream(t *testing.T) {
	inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(clusters, []string{"a"})
		r.namedAfter(time.Second, "named", clusters, "a@1")
		check.Equal(t, "log lines about Delta streams after the first", r.log.count("Unimplemented"), 0)
	})
}

// TestProtocol_Forced: a configured variant is the only one that the relay tries. The log names the variable.
func TestProtocol_Forced(t *testing.T) {
	tests := []struct {
		protocol upstream.Protocol
		sotw     bool // the origin implements only SotW, otherwise only Delta
		works    bool
	}{
		{upstream.ProtocolDelta, false, true},
		{upstream.ProtocolDelta, true, false},
		{upstream.ProtocolSotW, true, true},
		{upstream.ProtocolSotW, false, false},
	}
	for _, tt := range tests {
		inBubble(t, relaytest.Behaviour{SotW: tt.sotw, Wrap: true}, upstream.Config{Protocol: tt.protocol}, func(t *testing.T, r *rig) {
			r.put(clusters, "a@1")
			r.watch.SubscribeAll(clusters)
			r.pass(time.Minute)
			want := ""
			if tt.works {
				want = "a@1"
			}
			r.expect(tt.protocol.String(), r.members(clusters), want)
			// With delays of 1, 1.6, 2.56 … s there are about 7 attempts in a minute.
			n := r.log.count(unsupported)
			if tt.works != (n == 0) || n > 9 {
				t.Errorf("protocol %v, origin with sotw=%v: %d warnings, want some only if it does not work", tt.protocol, tt.sotw, n)
			}
			check.Equal(t, "warnings that name "+tt.protocol.String(), r.log.count("protocol="+tt.protocol.String()), n)
		})
	}
}

// TestProtocol_Neither: an origin that implements neither variant is retried in both, with the usual backoff.
func TestProtocol_Neither(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true, SotW: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		since := time.Now()
		var waits []time.Duration
		for range 6 {
			s := r.Accept(t.Context())
			waits = append(waits, time.Since(since))
			since = time.Now()
			s.Close(status.New(codes.Unimplemented, "neither variant"))
		}
		r.pass(0)
		r.expectBackoff(waits[1:])
		check.Equal(t, "warnings for 6 streams", r.log.count(unsupported), 6)
	})
}

// TestProtocol_Invalid: an undefined protocol is refused with an error that lists the constants.
func TestProtocol_Invalid(t *testing.T) {
	_, err := upstream.New(upstream.Config{Targets: []string{"x"}, Protocol: 3})
	if err == nil || !strings.Contains(err.Error(), "Protocol = 3, allowed: ") {
		t.Errorf("Protocol 3: error %v, want one with the value and the allowed constants", err)
	}
}
