package conformance_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// The status of a cold stream has the reason: the origin is unreachable, or its error.
func TestB8_ColdStreamsReportTheCause(t *testing.T) {
	for _, tt := range []struct {
		code codes.Code // status of the origin's streams; OK if it is down
		want string
	}{
		{codes.OK, "control plane unreachable and no cached configuration for this subscription: "},
		{codes.InvalidArgument,
			"control plane refused the request (InvalidArgument: error of the origin) " +
				"and no cached configuration for this subscription"},
	} {
		t.Run(tt.code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				noLeaks(t)
				o, code := refusingOrigin(t, "x")
				code.Store(uint32(tt.code))
				if tt.code == codes.OK {
					o.Stop()
				}
				r := start(t, o, "TENDER_COLD_WAIT=1s")
				c := r.Client(relaytest.ClientOptions{})
				c.Subscribe(typeCDS)
				if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("the stream ended with %v, want %v: %s", err, codes.Unavailable, tt.want)
				}
			})
		})
	}
}
