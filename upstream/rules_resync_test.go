package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// changeWhileDown stops the origin, changes its resources, and starts it again.
func (r *rig) changeWhileDown(change func(tx *relaytest.Tx)) {
	r.Stop()
	r.Apply(change)
	r.pass(time.Second)
	r.Restart()
}

// removing returns a change that removes resources.
func removing(typeURL string, names ...string) func(*relaytest.Tx) {
	return func(tx *relaytest.Tx) {
		for _, name := range names {
			tx.Remove(typeURL, name)
		}
	}
}

// numbered returns n resources name@1 with sorted names.
func numbered(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%03d@1", i)
	}
	return out
}

// nameOnly returns resources, each written name@version, without their versions.
func nameOnly(resources []string) []string {
	out := make([]string, len(resources))
	for i, text := range resources {
		out[i], _, _ = strings.Cut(text, "@")
	}
	return out
}

// confirmed is a time after which a set with a response is confirmed.
const confirmed = 12 * time.Second

// TestB15_C21_VersionsExceedRequestSize: versions are not reported if they take more than 3.5 MB.
func TestB15_C21_VersionsExceedRequestSize(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		const n = 36
		r.Apply(func(tx *relaytest.Tx) {
			for i := range n {
				putIn(tx, clusters, fmt.Sprintf("%02d%s@1", i, strings.Repeat("x", 100_000)))
			}
		})
		r.watch.SubscribeAll(clusters)
		r.pass(confirmed)
		r.Restart()
		r.pass(confirmed)
		r.expect("stream after a restart", r.conversation(1), "[cds node] [cds ACK 1]")
		check.Equal(t, "members", r.view.Generation().Type(clusters).Wildcard.Count(), n)
	})
}
