package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// A streamsScript is an origin by hand that has a new cluster in each generation, and routes
// that lead to it. It has the clients of one group: Envoys, and a gRPC client that names a
// cluster.
type streamsScript struct {
	*world
	streams []*relaytest.OriginStream
	envoys  []*worldClient
	heardBy map[*worldClient][]string // all resources that came, in order
	gen     int
}

// take accepts the streams that the relay has opened meanwhile, and forgets those that ended.
func (s *streamsScript) take() {
	for range len(s.origin.State().Streams) - s.accepted() {
		s.streams = append(s.streams, s.origin.Accept(s.t.Context()))
	}
}

func (s *streamsScript) accepted() int { return len(s.streams) }

// open returns the streams that are open.
func (s *streamsScript) open() []*relaytest.OriginStream {
	s.take()
	return slices.DeleteFunc(slices.Clone(s.streams), func(o *relaytest.OriginStream) bool { return o.State().Ended })
}

// cluster is the one that a generation's routes lead to.
func (s *streamsScript) cluster() string { return fmt.Sprint("cluster-", s.gen) }

// say has one stream tell all that is new on it, clusters first, and waits until the clients
// have taken it: so nothing but the choice of the stream decides what comes first.
func (s *streamsScript) say(o *relaytest.OriginStream) {
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
		s.world.send(o, fmt.Sprintf("%s %s@%d", of.short, of.name, s.gen))
		s.listen()
	}
}

// listen takes down what the Envoys were told; they ask for the endpoints of new clusters.
func (s *streamsScript) listen() {
	s.t.Helper()
	for _, c := range s.envoys {
		for _, text := range c.received() {
			short, rest, _ := strings.Cut(strings.NewReplacer("{", "", "}", "").Replace(text), " ")
			for resource := range strings.FieldsSeq(rest) {
				s.heardBy[c] = append(s.heardBy[c], short+" "+resource)
				if name, _, _ := strings.Cut(resource, "@"); short == "cds" {
					c.subscribe("eds", name)
				}
			}
		}
	}
	s.sleep(time.Second)
}

// generation has the origin change everything at once. Of its streams the last one speaks
// first if reversed.
func (s *streamsScript) generation(reversed bool) {
	s.t.Helper()
	s.gen++
	streams := s.open()
	if reversed {
		slices.Reverse(streams)
	}
	for _, o := range streams {
		s.say(o)
	}
	for _, c := range s.envoys {
		heard := s.heardBy[c]
		route := slices.Index(heard, fmt.Sprint("rds r@", s.gen))
		for _, needed := range []string{"cds ", "eds "} {
			needed += fmt.Sprint(s.cluster(), "@", s.gen)
			if at := slices.Index(heard, needed); at < 0 || route < at {
				s.t.Fatalf("%v: generation %d: %q came after its route, or one of them never:\n%q\n%v",
					c.Client, s.gen, needed, heard, s.origin.State())
			}
		}
	}
}

// TestH05_RoutesArriveAfterTheirClusters: in a group where a client names a cluster before
// Envoys arrive, clusters and endpoints come on the stream of the origin that routes come on,
// and so before the routes that need them, also after reconnects.
func TestH05_RoutesArriveAfterTheirClusters(t *testing.T) {
	for _, reversed := range []bool{false, true} {
		t.Run(fmt.Sprint("reversed=", reversed), func(t *testing.T) {
			worldBubble(t, []string{"TENDER_NODE_GROUP_BY=none"}, func(w *world) {
				w.manualOrigin()
				s := &streamsScript{world: w, heardBy: make(map[*worldClient][]string), gen: 1}
				node := relaytest.GRPCNode("g")
				node.ClientFeatures = nil // which would make a group of its own (R143)
				grpc := w.dial(relaytest.ClientOptions{Node: node, AutoAck: true}).subscribe("cds", "only")
				w.sleep(time.Second)
				s.say(s.open()[0])
				grpc.expect("cds only@1")
				for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
					s.envoys = append(s.envoys, w.autoClient(v).subscribe("cds", "").subscribe("lds", "").subscribe("rds", "r"))
				}
				w.sleep(time.Second)
				for _, o := range s.open() {
					s.say(o)
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
					if slices.ContainsFunc(s.heardBy[c], func(text string) bool { return strings.HasPrefix(text, "cds only") }) {
						t.Errorf("%v was told of a cluster that is no member: %q", c.Client, s.heardBy[c])
					}
				}
			})
		})
	}
}
