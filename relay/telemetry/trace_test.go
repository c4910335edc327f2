package telemetry

import (
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// TestB43_RemoteParent: a trace context of a relay above is the parent of a change; another text is ignored.
func TestB43_RemoteParent(t *testing.T) {
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for parent, want := range map[string]bool{
		"00-" + traceID + "-" + spanID + "-01": true,
		"00-" + traceID + "-" + spanID + "-00": true,
		"":                                     false,
		"00-" + traceID + "-" + spanID:         false,
		"00-00000000000000000000000000000000-" + spanID + "-01": false,
		"\x00\xff": false,
	} {
		got := trace.SpanContextFromContext(remoteParent(parent))
		if got.IsValid() != want || want && (got.TraceID().String() != traceID || got.SpanID().String() != spanID) {
			t.Errorf("parent %q: %+v, want valid: %t", parent, got, want)
		}
	}
}
