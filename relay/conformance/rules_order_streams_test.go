package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// A streamsScript is a scripted origin that sends a new cluster, and routes to it, in each generation. Its clients
// share a group: Envoys, and a gRPC client that subscribes to one cluster by name.
type streamsScript struct {
	*world
	streams  []*relaytest.OriginStream
	envoys   []*worldClient
	received map[*worldClient][]string // resources in the order of arrival
	gen      int
}

// acceptNew accepts the streams that the relay has opened since the last call.
func (s *streamsScript) acceptNew() {
	for range len(s.origin.State().Streams) - len(s.streams) {
		s.streams = append(s.streams, s.origin.Accept(s.t.Context()))
	}
}

// open returns the open streams.
func (s *streamsScript) open() []*relaytest.OriginStream {
	s.acceptNew()
	return slices.DeleteFunc(slices.Clone(s.streams), func(o *relaytest.OriginStream) bool { return o.State().Ended })
}

// cluster returns the name of the cluster that the generation's routes use.
func (s *streamsScript) cluster() string { return fmt.Sprint("cluster-", s.gen) }

// sendAll sends the generation's resources that a stream subscribes to, clusters first, and waits until the
// clients have them. So only the choice of the stream determines the order.
func (s *streamsScript) sendAll(o *relaytest.OriginStream) {
	s.t.Helper()
	for _, of := range []struct{ short, name string }{
		{"cds", "only"}, {"cds", s.cluster()}, {"eds", s.cluster()}, {"lds", "l"}, {"rds", "r"},
	} {
		t := o.State().Types[typeURLs[of.short]]
		if t == nil {
			continue
		}
		if _, named := t.Names[of.name]; !named && (!t.Wildcard || of.name == "only") {
			continue
		}
		s.send(o, fmt.Sprintf("%s %s@%d", of.short, of.name, s.gen))
		s.drain()
	}
}

// drain records the Envoys' responses, and subscribes them to the endpoints of new clusters.
func (s *streamsScript) drain() {
	s.t.Helper()
	for _, c := range s.envoys {
		for _, text := range c.received() {
			short, rest, _ := strings.Cut(strings.NewReplacer("{", "", "}", "").Replace(text), " ")
			for resource := range strings.FieldsSeq(rest) {
				s.received[c] = append(s.received[c], short+" "+resource)
				if name, _, _ := strings.Cut(resource, "@"); short == "cds" {
					c.subscribe("eds", name)
				}
			}
		}
	}
	s.sleep(time.Second)
}

// generation changes all resources on all streams, in reverse order of the streams if reversed.
func (s *streamsScript) generation(reversed bool) {
	s.t.Helper()
	s.gen++
	streams := s.open()
	if reversed {
		slices.Reverse(streams)
	}
	for _, o := range streams {
		s.sendAll(o)
	}
	for _, c := range s.envoys {
		received := s.received[c]
		route := slices.Index(received, fmt.Sprint("rds r@", s.gen))
		for _, needed := range []string{"cds ", "eds "} {
			needed += fmt.Sprint(s.cluster(), "@", s.gen)
			if at := slices.Index(received, needed); at < 0 || route < at {
				s.t.Fatalf("%v: generation %d: want %q before its route, got:\n%q\n%v",
					c.Client, s.gen, needed, received, s.origin.State())
			}
		}
	}
}

// Clusters and endpoints are subscribed to on the same origin stream as routes, so they arrive before the routes
// that need them. This also holds after reconnects, and if a client subscribed to a cluster by name before the
// Envoys connected.
func TestH05_RoutesArriveAfterTheirClusters(t *testing.T) {
	for _, reversed := range []bool{false, true} {
		t.Run(fmt.Sprint("reversed=", reversed), func(t *testing.T) {
			worldBubble(t, []string{"TENDER_NODE_GROUP_BY=none"}, func(w *world) {
				w.manualOrigin()
				s := &streamsScript{world: w, received: make(map[*worldClient][]string), gen: 1}
				node := relaytest.GRPCNode("g")
				node.ClientFeatures = nil // these features would make a group (R143)
				grpc := w.dial(relaytest.ClientOptions{Node: node, AutoAck: true}).subscribe("cds", "only")
				w.sleep(time.Second)
				s.sendAll(s.open()[0])
				grpc.expect("cds only@1")
				for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
					s.envoys = append(s.envoys, w.autoClient(v).subscribe("cds", "").subscribe("lds", "").subscribe("rds", "r"))
				}
				w.sleep(time.Second)
				for _, o := range s.open() {
					s.sendAll(o)
				}
				s.settle()
				for range 4 {
					for range 5 {
						s.generation(reversed)
						grpc.expect(fmt.Sprint("cds only@", s.gen))
					}
					w.stop()
					w.restart()
				}
				for _, c := range s.envoys {
					if slices.ContainsFunc(s.received[c], func(text string) bool { return strings.HasPrefix(text, "cds only") }) {
						t.Errorf("%v got a cluster outside its wildcard: %q", c.Client, s.received[c])
					}
				}
			})
		})
	}
}
