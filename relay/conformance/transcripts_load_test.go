package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A playedLoad is what a scene with TENDER_LRS has of load reports.
//
//	> a opens reports              (also: …, by name: it cannot be asked for all clusters; …, of cluster far)
//	> a reports one z:1+5, two z:2+0 (the requests issued and in progress in the locality z of each cluster)
//	> a stops reporting
//	> origin asks edge for 10s one two (the newest stream of a node's cluster; no names: all clusters)
//
// "a < 10s one+two" reads: the client is asked for these clusters, and "origin < edge one z:1+5 -0 in 10s": the origin
// is sent this report, as showLoad has it.
type playedLoad struct {
	origin  *loadOrigin
	streams []int // requests that were said, of each stream of the origin
	peers   map[string]*loadPeer
	names   []string // of peers, as they came
	asked   map[string]int
	ended   map[string]bool
}

// playLoad is worldBubble of an origin that takes load reports.
func playLoad(t *testing.T, env []string, f func(w *world, l *playedLoad)) {
	t.Helper()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		w := &world{t: t, origin: o, revs: make(map[relaytest.Digest]string)}
		w.relay = start(t, o, env...)
		f(w, &playedLoad{origin: loads, peers: make(map[string]*loadPeer), asked: make(map[string]int), ended: make(map[string]bool)})
	})
}

// said returns what was said on streams of load reports since the last time.
func (l *playedLoad) said(t testing.TB) (lines []string) {
	for _, name := range l.names {
		p := l.peers[name]
		for _, ask := range strings.Split(p.requestedReports(), ", ")[l.asked[name]:] {
			if ask != "" {
				lines = append(lines, name+" < "+ask)
				l.asked[name]++
			}
		}
		if code, ended := p.code(); ended && !l.ended[name] {
			l.ended[name] = true
			lines = append(lines, name+" reports no more: "+code.String())
		}
	}
	for n := range l.origin.streamCount() {
		if n == len(l.streams) {
			l.streams = append(l.streams, 0)
		}
		requests := l.origin.stream(t, n).requests()
		for _, r := range requests[l.streams[n]:] {
			of := "origin < " + requests[0].GetNode().GetCluster() + " "
			if l.streams[n]++; l.streams[n] == 1 {
				lines = append(lines, of+"opens, as "+r.GetNode().GetId()+" "+strings.Join(r.GetNode().GetClientFeatures(), " "))
			} else {
				lines = append(lines, strings.TrimSpace(of+showLoad(r)))
			}
		}
	}
	return lines
}

// ask has the origin ask on the newest stream of a node's cluster: "edge for 10s one two".
func (l *playedLoad) ask(t testing.TB, what string) {
	t.Helper()
	cluster, rest, _ := strings.Cut(what, " for ")
	words := strings.Fields(rest)
	for n := l.origin.streamCount() - 1; n >= 0; n-- {
		if st := l.origin.stream(t, n); st.requests()[0].GetNode().GetCluster() == cluster {
			st.requestReports(t, check.Must(time.ParseDuration(words[0])), words[1:]...)
			return
		}
	}
	t.Fatalf("origin asks %s: there is no such stream", what)
}

// peer has a client do something on its stream of load reports. It reports false if that is not about load reports.
func (l *playedLoad) peer(r *running, name, what string) bool {
	switch does, rest, _ := strings.Cut(what, " "); does {
	case "opens":
		node := loadNode(name)
		if strings.HasSuffix(rest, ", by name") {
			node = relaytest.EnvoyNode(name)
		} else if _, cluster, ok := strings.Cut(rest, ", of cluster "); ok {
			node.Cluster = cluster
		}
		l.names, l.peers[name] = append(l.names, name), r.reports(node)
	case "reports":
		var stats []*endpointpb.ClusterStats
		for part := range strings.SplitSeq(strings.TrimSpace(rest), ", ") {
			var cluster, locality string
			var issued, inProgress uint64
			if n, _ := fmt.Sscanf(strings.Replace(part, ":", " ", 1), "%s %s %d+%d", &cluster, &locality, &issued, &inProgress); n == 4 {
				stats = append(stats, load(cluster, locality, issued, inProgress))
			}
		}
		l.peers[name].report(stats...)
	case "stops":
		l.peers[name].disconnect()
		l.ended[name] = true
	default:
		return false
	}
	return true
}
