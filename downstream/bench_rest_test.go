package downstream

import (
	"fmt"
	"net/http"
	"testing"

	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// BenchmarkREST measures one poll for 1,000 routes of half a KiB: with the current version, with an old version, and
// with an old version of routes that were not encoded as JSON before. The last is the cost of each poll if resources
// did not cache their JSON.
func BenchmarkREST(b *testing.B) {
	routes := func() (u wire.Update) {
		u.TypeURL = wire.RouteType
		for i := range 1000 {
			name := fmt.Sprintf("%0500d", i)
			value := check.Must(proto.Marshal(&routepb.RouteConfiguration{Name: name}))
			r := check.Must(wire.NewResource(wire.RouteType, name, "", value))
			u.Resources = append(u.Resources, r)
		}
		return u
	}
	for _, bb := range []struct {
		name    string
		current bool
		fresh   bool
		status  int
	}{
		{"current", true, false, http.StatusNotModified},
		{"due", false, false, http.StatusOK},
		{"due-not-encoded", false, true, http.StatusOK},
	} {
		b.Run(bb.name, func(b *testing.B) {
			view, w := cache.New(cache.Config{})
			w.Apply(cache.Wildcard, routes())
			w.SetPhase(wire.RouteType, cache.Confirmed)
			server := check.Must(New(Config{Views: oneView{view}}))
			body := `{"node":{},"resource_names":["*"]}`
			if bb.current {
				version := view.Generation().Type(wire.RouteType).Wildcard.Sum().Version("")
				body = `{"node":{},"resource_names":["*"],"version_info":"` + version + `"}`
			}
			restPoll(b.Context(), server, "0", `{"node":{},"resource_names":["*"]}`)
			bytes := 0
			b.ReportAllocs()
			for b.Loop() {
				if bb.fresh {
					b.StopTimer()
					w.ForgetWildcard(wire.RouteType)
					w.Apply(cache.Wildcard, routes())
					w.SetPhase(wire.RouteType, cache.Confirmed)
					b.StartTimer()
				}
				reply := restPoll(b.Context(), server, "0", body)
				if reply.Code != bb.status {
					b.Fatalf("status %d %.200s, want %d", reply.Code, reply.Body, bb.status)
				}
				bytes += reply.Body.Len()
				w.TakeDemand()
			}
			b.ReportMetric(float64(bytes)/float64(b.N), "B-body/op")
		})
	}
}
