package wire

import (
	"strings"
	"testing"
)

// TestB43_TraceOfAResponse: the trace that a relay adds to a response is read in both variants. One of another length is no trace,
// and no error either.
func TestB43_TraceOfAResponse(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, sotw := range []bool{false, true} {
		body := NewDeltaBody(ClusterType, "1")
		if sotw {
			body = NewSotWBody(ClusterType, "1", Unwrapped)
		}
		for sent, want := range map[string]string{"": "", parent: parent, strings.Repeat("x", 56): ""} {
			response := Response{Body: body, Nonce: "7", TraceParent: sent}
			msg := response.buffers().Materialize()
			u, err := Decoder{}.decode(msg, sotw)
			if err != nil || u.TraceParent != want || u.Nonce != "7" || u.TypeURL != ClusterType {
				t.Errorf("sotw %t, trace %q: got %+v, error %v, want the trace %q", sotw, sent, u, err, want)
			}
		}
	}
}
