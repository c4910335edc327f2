package relay

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Where a Node says through which relays a request came: the object xds_relay of its
// metadata holds a list via, of the ids of the relays, the one nearest to the client
// first. Each relay appends its own, so that one that finds itself in the list knows
// that it is its own origin (B.41).
const (
	viaObject = "xds_relay"
	viaList   = "via"
)

const (
	// maxVia bounds a list. A loop of relays that do not know their own ids any more, since
	// they were restarted, makes it longer with each turn.
	maxVia = 4

	// maxViaBytes bounds an id in it, which is sent on.
	maxViaBytes = 4 << 10
)

// viaKept is how long a client's list counts once the client has left. Relays that wait
// for each other in vain have a stream only now and then, at most half a minute apart:
// they would not meet.
const viaKept = time.Minute

// viaOf returns the list of a node; nothing of a client that is no relay. What is no list
// of texts is none.
func viaOf(n *corepb.Node) (list []string) {
	values := n.GetMetadata().GetFields()[viaObject].GetStructValue().GetFields()[viaList].GetListValue().GetValues()
	for _, v := range values {
		if id, ok := v.GetKind().(*structpb.Value_StringValue); ok {
			list = append(list, id.StringValue)
		}
	}
	return list
}

// withVia returns a node with a list in its metadata, in the place of any other.
func withVia(n *corepb.Node, list []string) *corepb.Node {
	n = proto.CloneOf(n)
	if n.GetMetadata() == nil {
		n.Metadata = &structpb.Struct{}
	}
	values := &structpb.ListValue{}
	for _, id := range list {
		values.Values = append(values.Values, structpb.NewStringValue(id))
	}
	put(n.Metadata, []string{viaObject}, structpb.NewStructValue(&structpb.Struct{
		Fields: map[string]*structpb.Value{viaList: structpb.NewListValue(values)},
	}))
	return n
}

// through returns the list of a node, or why it cannot be served, which is logged once.
func (g *groups) through(n *corepb.Node) ([]string, error) {
	list := viaOf(n)
	err := g.admit(list)
	if err != nil {
		g.circle.Do(func() {
			g.log.Warn("refused a relay as a client", slog.String("node", n.GetId()), slog.Any("err", err))
		})
	}
	return list, err
}

// admit returns why a client with a list cannot be served: it would be told what it says
// itself.
func (g *groups) admit(list []string) error {
	if i := slices.IndexFunc(list, func(id string) bool { return len(id) > maxViaBytes }); i >= 0 {
		return status.Errorf(codes.InvalidArgument, "node.metadata.%s.%s[%d] is an id of %d bytes, at most %d are allowed",
			viaObject, viaList, i, len(list[i]), maxViaBytes)
	}
	switch {
	case slices.Contains(list, g.id), slices.Contains(list, ownID(g.cfg)): // with and without what tells processes apart
		return status.Errorf(codes.FailedPrecondition,
			"relays go round in a circle: this one is %q, and the request came through %s (node.metadata.%s.%s); "+
				"TENDER_ORIGIN of one of them must name a control plane", g.id, viaText(list), viaObject, viaList)
	case len(list) > maxVia:
		return status.Errorf(codes.FailedPrecondition,
			"too many relays in a row: the request came to %q through %s (node.metadata.%s.%s), at most %d may stand before it; "+
				"they may also go round in a circle", g.id, viaText(list), viaObject, viaList, maxVia)
	}
	return nil
}

func viaText(list []string) string {
	if len(list) > 2*maxVia {
		return fmt.Sprintf("%q and %d others", list[:2*maxVia], len(list)-2*maxVia)
	}
	return fmt.Sprintf("%q", list)
}

// behind returns a node as relays above are shown it, for clients that come through others
// below.
func (g *groups) behind(n *corepb.Node, below []string) *corepb.Node {
	return withVia(n, append(slices.Clip(below), g.id))
}

// announce has the origin told that clients of a group come through more relays than it
// knows of. Locked.
func (g *groups) announce(gr *group) {
	gr.who.Announce(g.behind(gr.node, gr.below.longest))
	for _, s := range gr.shares {
		if len(gr.below.longest) > len(s.via) {
			s.via = gr.below.longest
			s.who.Announce(g.behind(s.node, s.via))
		}
	}
}

// forget counts out a client that has left, so that the origin is told of it no longer,
// from the next stream on.
func (g *groups) forget(gr *group, via []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !gr.below.remove(via) {
		return
	}
	gr.who.Change(g.behind(gr.node, gr.below.longest))
	for _, s := range gr.shares {
		s.via = nil
		for _, other := range s.groups {
			if len(other.below.longest) > len(s.via) {
				s.via = other.below.longest
			}
		}
		s.who.Change(g.behind(s.node, s.via))
	}
}

// A tally counts the lists of the clients that are there. Of these one is shown to
// the origin, the longest: it need not see them all to notice a loop, since a list
// grows with each turn of it, and a tier of many relays must not be many groups.
type tally struct {
	counts  map[string]int // by the list's text
	longest []string
}

// add counts a client in, and reports whether the longest list is another one.
func (t *tally) add(list []string) (grew bool) {
	if len(list) == 0 {
		return false
	}
	if t.counts == nil {
		t.counts = make(map[string]int)
	}
	t.counts[viaKey(list)]++
	if len(list) <= len(t.longest) {
		return false
	}
	t.longest = list
	return true
}

// remove counts a client out, and reports whether the longest list is another one.
func (t *tally) remove(list []string) (changed bool) {
	if len(list) == 0 {
		return false
	}
	key := viaKey(list)
	if t.counts[key]--; t.counts[key] > 0 {
		return false
	}
	delete(t.counts, key)
	if key != viaKey(t.longest) {
		return false
	}
	t.longest = nil
	for key := range t.counts {
		if other := strings.Split(key, viaSeparator); len(other) > len(t.longest) {
			t.longest = other
		}
	}
	return true
}

// viaSeparator is in no id: a protobuf string may hold it, but then two lists count as
// one, and no harm is done.
const viaSeparator = "\x00"

func viaKey(list []string) string { return strings.Join(list, viaSeparator) }
