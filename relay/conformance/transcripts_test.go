package conformance_test

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

var update = flag.Bool("update", false, "write the transcripts")

// TestTranscripts plays the conversations under testdata/transcripts and compares
// what the relay says with what is written there; -update writes it anew, and the
// review is the diff.
//
// A line that begins with ">" is something that happens; the lines below it are
// what the clients are told then, before anything else happens. "envoy < cds web@1
// -old" reads: the client named envoy is sent revision 1 of the cluster web, and
// told that old is removed. SotW responses have braces: they have no removals.
//
//	> relay TENDER_ACK_WAIT=1s        (first, if at all)
//	> envoy connects, delta           (or sotw; "grpc" begins the names of gRPC clients)
//	> envoy/eds/2 connects, delta     (a stream of one type of the same Envoy)
//	> origin cds web@1, eds -web      (a revision appears, a resource goes; all at once)
//	> origin stops, starts, or is silent on missing names
//	> origin has virtual hosts on demand (all but rc/base; others mean nothing)
//	> envoy subscribes cds a b        (no names: the legacy wildcard; also: unsubscribes)
//	> envoy acks cds                  (also: eds …; nacks)
//	> envoy closes its stream
//	> wait 5s
func TestTranscripts(t *testing.T) {
	t.Parallel()
	check.Transcripts(t, "testdata/transcripts/*.txt", *update, play)
}

// play has the events of a transcript happen, and returns it with what was said.
func play(t *testing.T, lines []string) string {
	t.Helper()
	var env []string
	for _, line := range lines {
		if set, ok := strings.CutPrefix(line, "> relay "); ok {
			env = append(env, strings.Fields(set)...)
		}
	}
	var out strings.Builder
	orderBubble(t, env, func(w *orderWorld) {
		p := &player{w: w, clients: make(map[string]*orderClient)}
		for _, line := range lines {
			out.WriteString(line + "\n")
			event, ok := strings.CutPrefix(line, "> ")
			if !ok {
				continue
			}
			p.happen(event)
			for _, said := range p.said() {
				out.WriteString("  " + said + "\n")
			}
		}
	})
	return out.String()
}

// A player plays one transcript.
type player struct {
	w       *orderWorld
	clients map[string]*orderClient
	names   []string // of the clients, in the order of their coming
}

// said returns what the clients were told since the last time.
func (p *player) said() (lines []string) {
	for _, name := range p.names {
		for _, response := range p.clients[name].heard() {
			lines = append(lines, name+" < "+response)
		}
	}
	return lines
}

func (p *player) happen(event string) {
	p.w.t.Helper()
	who, what, _ := strings.Cut(event, " ")
	switch who {
	case "relay":
	case "wait":
		d, err := time.ParseDuration(what)
		if err != nil {
			p.w.t.Fatal(err)
		}
		p.w.pass(d)
	case "origin":
		p.origin(what)
	default:
		p.client(who, strings.Fields(what))
	}
}

func (p *player) origin(what string) {
	switch what {
	case "stops":
		p.w.stop()
	case "starts":
		p.w.origin.Restart()
		p.w.pass(0)
	case "has virtual hosts on demand":
		p.w.onDemand()
	case "is silent on missing names":
		p.w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
	default:
		p.w.change(strings.Split(what, ", ")...)
	}
}

func (p *player) client(name string, does []string) {
	p.w.t.Helper()
	c := p.clients[name]
	if len(does) < 2 || c == nil && does[0] != "connects," {
		p.w.t.Fatalf("event %q of %q: not understood", does, name)
	}
	switch does[0] {
	case "connects,":
		p.clients[name], p.names = p.w.dial(playerOptions(name, does[1])), append(p.names, name)
	case "subscribes":
		c.subscribe(does[1], strings.Join(does[2:], " "))
	case "unsubscribes":
		c.Unsubscribe(orderTypes[does[1]], does[2:]...)
	case "acks":
		c.ack(does[1:]...)
	case "nacks":
		c.nack(does[1])
	case "closes":
		c.Close()
	default:
		p.w.t.Fatalf("%s %q: not understood", name, does)
	}
}

// playerOptions returns how the client of a name connects.
func playerOptions(name, variant string) relaytest.ClientOptions {
	id, stream, _ := strings.Cut(name, "/")
	short, _, _ := strings.Cut(stream, "/")
	opts := relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode(id), TypeURL: orderTypes[short]}
	if variant == "delta" {
		opts.Variant = relaytest.Delta
	}
	if strings.HasPrefix(id, "grpc") {
		opts.Node = relaytest.GRPCNode(id)
	}
	return opts
}
