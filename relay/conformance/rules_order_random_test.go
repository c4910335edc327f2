package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// orderedTypes are the types whose order TestB11_H06_RandomChangesArriveInOrder checks.
var orderedTypes = []string{"cds", "eds", "lds", "rds"}

// orderedNames are the names of the resources that change, by type.
var orderedNames = map[string]string{"cds": "a", "eds": "a", "lds": "l", "rds": "r"}

// An orderedClient is an Envoy that answers after random delays, and checks the order of what it is sent.
type orderedClient struct {
	*worldClient
	random  *rand.Rand
	slowest time.Duration // delay of an answer
	warms   bool          // it answers for clusters once it was sent their endpoints, as an Envoy does over ADS

	newest  map[string]int // received revisions, by type and, of endpoints of another cluster, "b"
	answers []delayedAnswer
	warming *relaytest.Response // response of clusters that waits for endpoints
	log     []string

	changed map[int]time.Time        // when the origin made each revision
	waited  map[string]time.Duration // longest time between that and the response that supersedes it, by type
}

type delayedAnswer struct {
	at time.Time
	to *relaytest.Response
}

// receive receives responses.
func (c *orderedClient) receive() {
	for i, got := range c.received() {
		c.log = append(c.log, got)
		c.check(got)
		r := c.batch[i]
		switch {
		case c.warms && r.TypeURL == relaytest.ClusterType:
			c.warming = r
			continue
		case r.TypeURL == relaytest.EndpointType && slices.Contains(r.Names(), "a"):
			if c.warming != nil {
				c.answerLater(c.warming)
			}
			c.warming = nil
		}
		c.answerLater(r)
	}
}

// answer sends the answers that are due, and receives what they cause.
func (c *orderedClient) answer() {
	c.answers = slices.DeleteFunc(c.answers, func(a delayedAnswer) bool {
		due := !time.Now().Before(a.at)
		if due {
			c.log = append(c.log, "ack "+shortName(a.to.TypeURL))
			c.Ack(a.to)
		}
		return due
	})
	c.receive()
}

func (c *orderedClient) answerLater(r *relaytest.Response) {
	c.answers = append(c.answers, delayedAnswer{time.Now().Add(time.Duration(c.random.Int64N(int64(c.slowest)))), r})
}

// awaits reports whether a response of a type is unanswered.
func (c *orderedClient) awaits(typeURL string) bool {
	return slices.ContainsFunc(c.answers, func(a delayedAnswer) bool { return a.to.TypeURL == typeURL })
}

// check fails the test if a response has a revision of which an earlier type was not sent yet.
func (c *orderedClient) check(got string) {
	c.w.t.Helper()
	short, rest, _ := strings.Cut(got, " ")
	for part := range strings.FieldsSeq(strings.Trim(rest, "{}")) {
		name, at, _ := strings.Cut(part, "@")
		rev := check.Must(strconv.Atoi(at))
		if name == "b" {
			c.newest["b"] = rev
			continue
		}
		if last := c.newest[short]; rev > last {
			c.newest[short], c.waited[short] = rev, max(c.waited[short], time.Since(c.changed[last+1]))
		}
		for _, before := range orderedTypes[:slices.Index(orderedTypes, short)] {
			if c.newest[before] < rev {
				c.w.t.Fatalf("got %s before revision %d of %s, after\n%s", got, rev, before, strings.Join(c.log[max(0, len(c.log)-20):], "\n"))
			}
		}
	}
}

// B.11: clusters, endpoints, listeners and routes that the origin changes one after another arrive in this order in each of 100
// changes, also if a change precedes the answer to the one before. Endpoints of a cluster that does not change are never delayed by
// the others: they wait only for the answer to earlier endpoints. A change is sent after the answers to at most three responses, or
// their timeouts.
func TestB11_H06_RandomChangesArriveInOrder(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		for seed := range check.Rounds(4) {
			worldBubble(t, nil, func(w *world) {
				w.change("eds b@1", "cds b@1")
				c := &orderedClient{
					worldClient: configuredEnvoy(w, v), random: rand.New(rand.NewPCG(uint64(seed), 11)),
					newest:  map[string]int{"cds": 1, "eds": 1, "lds": 1, "rds": 1, "b": 1},
					slowest: []time.Duration{40 * time.Millisecond, 7 * time.Second}[seed/2%2], warms: seed%2 == 1,
				}
				c.changed, c.waited = make(map[int]time.Time), make(map[string]time.Duration)
				b := 1
				for rev := 2; rev < 102; rev++ {
					c.log = append(c.log, fmt.Sprint("origin ", rev))
					c.changed[rev] = time.Now()
					for _, short := range orderedTypes {
						w.change(fmt.Sprintf("%s %s@%d", short, orderedNames[short], rev))
						if c.random.IntN(2) == 0 {
							c.receive()
							c.answer()
						}
					}
					for range c.random.IntN(4) {
						w.sleep(c.slowest / 4)
						c.receive()
						c.answer()
						if !c.awaits(relaytest.EndpointType) {
							b++
							w.change(fmt.Sprint("eds b@", b))
							if c.receive(); c.newest["b"] != b {
								t.Fatalf("no endpoints of another cluster, after\n%s", strings.Join(c.log[max(0, len(c.log)-20):], "\n"))
							}
						}
					}
				}
				for range 20 {
					w.sleep(c.slowest)
					c.receive()
					c.answer()
				}
				const ackWait = 5 * time.Second
				longest := 3*min(ackWait, c.slowest) + c.slowest/4 // for the answers to three responses, as the test reads at intervals
				for _, short := range orderedTypes {
					if c.waited[short] > longest {
						t.Errorf("%s: a change took %v, want at most %v", short, c.waited[short], longest)
					}
					if c.newest[short] != 101 {
						t.Errorf("%s: got revision %d in the end, want 101", short, c.newest[short])
					}
				}
			})
		}
	})
}
