package relay_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/relaytest"
)

// viaNode is the node of a relay below, whose clients' requests came through others.
func viaNode(ids ...any) *corepb.Node {
	n := relaytest.EnvoyNode("below")
	n.Metadata, _ = structpb.NewStruct(map[string]any{"xds_relay": map[string]any{"via": ids}})
	return n
}

// viaShown returns the list in a node, with the relay's own id, which nobody else has,
// as "own" where it stands last.
func viaShown(n *corepb.Node) []string {
	var list []string
	for _, v := range n.GetMetadata().GetFields()["xds_relay"].GetStructValue().GetFields()["via"].GetListValue().GetValues() {
		list = append(list, v.GetStringValue())
	}
	if i := len(list) - 1; i >= 0 && strings.HasPrefix(list[i], "tender/test#") {
		list[i] = "own"
	}
	return list
}

// B.41: the origin is told through which relays requests come, and this one is the last
// of them. Clients that come different ways are one group still: the origin sees the
// longest list, on one stream, and nobody is sent anything when that changes.
func TestB41_ViaIsCarried(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		r := start(t, o, true)
		join := func(n *corepb.Node) *relaytest.Client {
			t.Helper()
			c := r.client(relaytest.ClientOptions{Variant: v, Node: n, AutoAck: true})
			c.Subscribe(streamCDS)
			c.Subscribe(streamEDS, "a", "b")
			time.Sleep(20 * time.Second)
			synctest.Wait()
			return c
		}
		shows := func(streams int, want ...string) {
			t.Helper()
			open := o.State().Open()
			if len(open) != 1 || len(o.State().Streams) != streams {
				t.Fatalf("%d streams, %d of them open; want %d and 1", len(o.State().Streams), len(open), streams)
			}
			if got := viaShown(open[0].Node); !slices.Equal(got, want) {
				t.Errorf("the origin was shown %q, want %q", got, want)
			}
		}
		envoy := join(relaytest.EnvoyNode("envoy"))
		shows(1, "own")
		told := len(envoy.Responses())
		first := join(viaNode("one"))
		shows(2, "one", "own")
		join(viaNode("two")) // no longer than what is shown
		shows(2, "one", "own")
		third := join(viaNode("four", "three"))
		shows(3, "four", "three", "own")

		// What nobody comes through any more is not said again.
		for _, c := range []*relaytest.Client{first, third} {
			if len(c.Responses()) == 0 {
				t.Errorf("%v was told nothing", c)
			}
			c.Close()
		}
		time.Sleep(2 * time.Minute)
		shows(3, "four", "three", "own")
		o.Restart()
		time.Sleep(20 * time.Second)
		shows(4, "two", "own")
		if all := envoy.Responses(); len(all) != told {
			t.Errorf("was told when nothing changed: %v", all[told:])
		}
	})
}

// B.41: who comes through this relay itself, or through too many, is refused, and told
// why; whoever says something else there is a client like any other.
func TestB41_CirclesAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(chainResources("1")...)
		r := start(t, o, true)
		c := r.client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("first")})
		c.Subscribe(streamCDS)
		c.Recv(t.Context())
		via := o.State().Last().Node.GetMetadata().AsMap()["xds_relay"].(map[string]any)["via"].([]any)
		own := via[0].(string)

		for _, tt := range []struct {
			name string
			node *corepb.Node
			code codes.Code // OK: served
			says []string
		}{
			{"four relays", viaNode("a", "b", "c", "d"), codes.OK, nil},
			{"five relays", viaNode("a", "b", "c", "d", "e"), codes.FailedPrecondition, []string{"too many", `["a" "b" "c" "d" "e"]`, own}},
			{"itself", viaNode("a", own), codes.FailedPrecondition, []string{"circle", own, `"a"`}},
			{"itself long ago", viaNode(own, "a"), codes.FailedPrecondition, []string{"circle"}},
			{"its id alone", viaNode("tender/test"), codes.FailedPrecondition, []string{"circle"}},
			{"another process of the same id", viaNode("tender/test#00000000x"), codes.OK, nil},
			{"a long id", viaNode(strings.Repeat("x", 5000)), codes.InvalidArgument, []string{"5000 bytes", "4096"}},
			{"many", viaNode(make([]any, 0)...), codes.OK, nil},
			{"no texts", viaNode(1.0, nil, true), codes.OK, nil},
			{"no list", &corepb.Node{Id: "x", UserAgentName: "envoy", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
				"xds_relay": structpb.NewStringValue("x")}}}, codes.OK, nil},
		} {
			c := r.client(relaytest.ClientOptions{Node: tt.node})
			c.Subscribe(streamCDS)
			if tt.code == codes.OK {
				if resp := c.Recv(t.Context()); len(resp.Resources) != 3 {
					t.Errorf("%s: was sent %v", tt.name, resp)
				}
				continue
			}
			err := c.WaitEnd(t.Context())
			if status.Code(err) != tt.code {
				t.Errorf("%s: ended with %v, want %v", tt.name, err, tt.code)
			}
			for _, text := range tt.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %q does not say %q", tt.name, err, text)
				}
			}
		}
		if got := r.Stats().Ended; got[downstream.EndedChain] != 4 || got[downstream.EndedInvalid] != 1 {
			t.Errorf("counted %d chains and %d invalid nodes, want 4 and 1", got[downstream.EndedChain], got[downstream.EndedInvalid])
		}
	})
}

// B.41: load reports that are passed through go round in a circle no more than ADS does: it is
// their only stream to the origin that says through whom they came.
func TestB41_LoadReportsInACircle(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, true, "TENDER_LRS=passthrough")
		first := r.reports(viaNode("a", "b"))
		st := loads.stream(t, 0)
		node := st.requests()[0].GetNode()
		if via := viaShown(node); !slices.Equal(via, []string{"a", "b", "own"}) {
			t.Fatalf("came through %q, want a, b and this relay", via)
		}
		own := node.GetMetadata().AsMap()["xds_relay"].(map[string]any)["via"].([]any)[2]
		first.leave()
		r.reports(viaNode("a", own)).expectEnd(codes.FailedPrecondition)
		r.reports(viaNode("a", "b", "c", "d", "e")).expectEnd(codes.FailedPrecondition)
		if n := loads.count(); n != 1 {
			t.Errorf("the origin had %d streams, want the first alone", n)
		}
		if got := r.Stats().Ended; got[downstream.EndedChain] != 2 {
			t.Errorf("counted %d chains, want 2", got[downstream.EndedChain])
		}
	})
}

// B.41: load reports that are summed say which relays they came through, those that came since the
// stream began included: two relays would add each other's sums up for ever.
func TestB41_SummedLoadsSayTheirWay(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, true, "TENDER_LRS=aggregate")
		node := viaNode()
		r.reports(node)
		loadPass(time.Second)
		loads.stream(t, 0).ask(t, 10*time.Second)
		r.reports(viaNode("a", "b"))
		loadPass(time.Second)
		for i, want := range [][]string{{"own"}, {"a", "b", "own"}} {
			if via := viaShown(loads.stream(t, i).requests()[0].GetNode()); !slices.Equal(via, want) {
				t.Errorf("stream %d came through %q, want %q", i, via, want)
			}
		}
		if !loads.stream(t, 0).over() || loads.stream(t, 1).over() || loads.count() != 2 {
			t.Errorf("%d streams, want the first over and the second open", loads.count())
		}
	})
}

// B.41: two relays that name each other are told so, both by the log and by the
// clients' streams, which end as those of any relay without an origin. Once one has an
// origin that is a control plane, it serves. (The other does once the first has forgotten
// that it came through that; that is TestB41_ViaIsCarried.)
func TestB41_TwoRelaysOfEachOther(t *testing.T) {
	t.Parallel() // it waits for relays that back off
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(chainResources("1")...)
	link := relaytest.NewProxy(t, "127.0.0.1:1")
	a, log := interopStart(t, link.Addr(), "", nil, "TENDER_COLD_WAIT=1s")
	b, below := interopStart(t, a.target, "", nil, "TENDER_COLD_WAIT=1s")
	link.Forward(b.Addrs()[0].String())
	for _, r := range []*running{a, b} {
		c := r.client(relaytest.ClientOptions{})
		c.Subscribe(streamCDS)
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("ended with %v, want %v", err, codes.Unavailable)
		}
	}
	below.await(t, 0, "the origin refuses this relay")
	log.await(t, 0, "refused a relay as a client")

	link.Forward(o.Addr())
	link.Cut()
	log.await(t, log.mark(), "response applied")
	c := a.client(relaytest.ClientOptions{})
	c.Subscribe(streamCDS)
	streamTake(t, c, streamCDS, "a", "b", "c")
}
