package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// H10: the lag of a client that ACKs later than the ACK timeout is limited, also in the metric that an alert uses.
func TestH10_TheMetricOfASlowClient(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, operated, "TENDER_ACK_WAIT=5s")
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		const slow, every = 12 * time.Second, 3 * time.Second
		var unanswered []*relaytest.Response
		var most float64
		for i := range 20 {
			o.Put(relaytest.Cluster("a", fmt.Sprint(i)))
			synctest.Wait()
			for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
				unanswered = append(unanswered, resp)
			}
			for len(unanswered) > 0 && time.Since(unanswered[0].At) >= slow {
				c.Ack(unanswered[0])
				unanswered = unanswered[1:]
			}
			sleep(every)
			for _, lag := range metricsWith(t, r, "tender_client_lag_seconds") {
				most = max(most, lag)
			}
		}
		if bound := (slow + 3*every).Seconds(); most < 5 || most > bound {
			t.Errorf("the metric reached %vs, want between 5s and %vs", most, bound)
		}
	})
}

// metricsWith returns the values of all series of a metric.
func metricsWith(t *testing.T, r *running, name string) (values []float64) {
	t.Helper()
	for key, value := range metricsOf(t, r) {
		if strings.HasPrefix(key, name+" ") {
			values = append(values, value)
		}
	}
	return values
}
