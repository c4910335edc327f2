package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// A playedLoad handles the load reports of a scene with TENDER_LRS.
//
//	> a opens reports              (also: …, by name: without send_all_clusters; …, of cluster far)
//	> a reports one z:1+5, two z:2+0 (issued and in-progress requests in the locality z of each cluster)
//	> a stops reporting
//	> origin asks edge for 10s one two (on the newest stream of a node's cluster; no names: all clusters)
//
// "a < 10s one+two" means that the client got a request for the load of these clusters. "origin < edge one z:1+5
// -0 in 10s" means that the origin got this report, see showLoad.
type playedLoad struct {
	origin  *loadOrigin
	streams []int // requests already written, by stream of the origin
	peers   map[string]*loadPeer
	names   []string // of peers, in the order of connection
	written map[string]int
	ended   map[string]bool
}

// playLoad is worldBubble with an origin that accepts load reports.
func playLoad(t *testing.T, env []string, f func(w *world, l *playedLoad)) {
	t.Helper()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		w := &world{t: t, origin: o, n: transcript.NewNotation(t)}
		w.relay = start(t, o, env...)
		f(w, &playedLoad{origin: loads, peers: make(map[string]*loadPeer), written: make(map[string]int),
			ended: make(map[string]bool)})
	})
}

// events returns the messages on streams of load reports since the last call.
func (l *playedLoad) events(t testing.TB) (lines []string) {
	for _, name := range l.names {
		p := l.peers[name]
		for _, request := range strings.Split(p.requestedReports(), ", ")[l.written[name]:] {
			if request != "" {
				lines = append(lines, name+" < "+request)
				l.written[name]++
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

// request has the origin request reports on the newest stream of a node's cluster, such as "edge for 10s one two".
func (l *playedLoad) request(t testing.TB, what string) {
	t.Helper()
	cluster, rest, _ := strings.Cut(what, " for ")
	words := strings.Fields(rest)
	for n := l.origin.streamCount() - 1; n >= 0; n-- {
		if st := l.origin.stream(t, n); st.requests()[0].GetNode().GetCluster() == cluster {
			st.requestReports(t, check.Must(time.ParseDuration(words[0])), words[1:]...)
			return
		}
	}
	t.Fatalf("origin asks %s: no stream of this cluster", what)
}

// peer plays an event of a client's stream of load reports. It reports false if the event is not about load
// reports.
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
			if n, _ := fmt.Sscanf(strings.Replace(part, ":", " ", 1), "%s %s %d+%d", &cluster, &locality, &issued,
				&inProgress); n == 4 {
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
