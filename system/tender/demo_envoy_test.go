package tender_test

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/demo"
	"github.com/xdstender/tender/relay/envoytest"
)

// TestDemo_WithEnvoy checks that an Envoy serves the shop of the demo without a failed request while the shop changes.
func TestDemo_WithEnvoy(t *testing.T) {
	var out bytes.Buffer
	err := demo.Run(t.Context(), demo.Options{
		Clients: 4, Rate: 20, For: 200 * time.Millisecond, Listen: "127.0.0.1:0", Envoy: envoytest.Binary(t), Out: &out,
	})
	if err != nil {
		t.Errorf("demo: %v", err)
	}
	inOrder := regexp.MustCompile(`(?s)An Envoy starts below the relay: ` +
		`.*All 4 clients are in sync with the origin after \d+\.\ds\. Envoy serves the shop:` +
		`.*  curl http://127\.0\.0\.1:\d+/   # and /cart, /products, /search` +
		`.*Now the origin changes\.` +
		`.*Requests through Envoy since its first answer: [1-9]\d* answered, 0 failed\.` +
		`.*All 4 clients agree with the origin: yes`)
	if !inOrder.Match(out.Bytes()) {
		t.Errorf("the demo printed, want it to match %s:\n%s", inOrder, out.String())
	}
}
