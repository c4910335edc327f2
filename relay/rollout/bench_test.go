package rollout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// BenchmarkMentioned measures the search of the error of one NACK for the 1,000 names of an edition. The error names the last of them,
// or none and is as long as the relay keeps it.
func BenchmarkMentioned(b *testing.B) {
	names := make(map[string]wire.Digest)
	for i := range 1000 {
		names[fmt.Sprintf("outbound|8080||service-%d.namespace.svc.cluster.local", i)] = wire.Digest{}
	}
	for name, detail := range map[string]string{
		"named": "Error adding/updating listener(s) outbound|8080||service-999.namespace.svc.cluster.local: it is bad",
		"long":  strings.Repeat("outbound|8080||service- is no name of them. ", 2048/44),
		"short": strings.Repeat("x ", 1024),
	} {
		b.Run(name, func(b *testing.B) {
			found, set := 0, newNameSet(names)
			for b.Loop() {
				if set.isMentioned(detail, wordsOf(detail)) {
					found++
				}
			}
			b.ReportMetric(float64(found)/float64(b.N), "found/op")
		})
	}
}
