package subscription

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A rolloutClient is the client of a transcript player whose answers to changes a rollout reads.
type rolloutClient struct {
	*player
	key string // of all changes
}

// do plays an event, without a turn of the client's stream.
func (c *rolloutClient) do(event string) {
	if event != "" {
		c.Play(event)
	}
}

// change makes the origin change resources, and returns that as a Change.
func (c *rolloutClient) change(origin string, resources ...string) Change {
	after := c.view.Generation().Seq
	c.do(origin + " " + strings.Join(resources, " "))
	of := Change{Key: c.key, After: after, UpTo: c.view.Generation().Seq}
	for _, r := range resources {
		name, _, _ := strings.Cut(strings.TrimPrefix(r, "-"), "@")
		of.Names = append(of.Names, name)
	}
	slices.Sort(of.Names)
	return of
}

func (c *rolloutClient) want(when string, of Change, want ResourceState) {
	c.t.Helper()
	got, wants := c.sub.At(c.view.Generation()).Answer(&of)
	if !wants || got != want {
		c.t.Errorf("%s: the change to %q is %v (wanted: %v), want %v", when, of.Names, got, wants, want)
	}
}

func (c *rolloutClient) wantNot(when string, of Change) {
	c.t.Helper()
	if got, wants := c.sub.At(c.view.Generation()).Answer(&of); wants {
		c.t.Errorf("%s: the client subscribes to the change to %q, which is %v; want no subscription", when, of.Names, got)
	}
}

// wantState fails the test unless the client has the state of acceptance.
func (c *rolloutClient) wantState(when string, accepted, rejects bool) {
	c.t.Helper()
	at := c.sub.At(c.view.Generation())
	if at.AcceptedAll() != accepted || at.HasActiveRejection() != rejects {
		c.t.Errorf("%s: accepted all: %v, active rejection: %v; want %v, %v", when, at.AcceptedAll(), at.HasActiveRejection(), accepted, rejects)
	}
}

// rolloutClients are clients that subscribe to two resources in each possible way.
var rolloutClients = []struct {
	name, client, subscribe, origin, a, b string
	key                                   string
	whole                                 bool   // each response holds the complete set
	others                                string // further resources of the origin
}{
	{"delta wildcard", "client delta lds", "subscribe *", "origin", "a", "b", wire.ListenerType, false, ""},
	{"delta clusters", "client delta cds", "subscribe *", "origin", "a", "b", wire.ClusterType, false, ""},
	{"delta names", "client delta rds", "subscribe a b", "origin by name", "a", "b", wire.RouteType, false, ""},
	{"delta wildcard and names", "client delta rds", "subscribe * a b", "origin by name", "a", "b", wire.RouteType, false, "origin x@1"},
	{"delta glob", "client delta lds", "subscribe " + lobbyGlob, "origin of " + lobbyGlob, lobby + "a", lobby + "b", lobbyKey, false, ""},
	{"sotw wildcard", "client sotw lds", "list *", "origin", "a", "b", wire.ListenerType, true, ""},
	{"sotw clusters", "client sotw cds", "list *", "origin", "a", "b", wire.ClusterType, true, ""},
	{"sotw names of a set", "client sotw lds", "list a b", "origin by name", "a", "b", wire.ListenerType, true, ""},
	{"sotw names", "client sotw rds", "list a b", "origin by name", "a", "b", wire.RouteType, false, ""},
	{"sotw group", "client sotw rtds envoy", "list a b", "origin by name", "a", "b", wire.RuntimeType, false, ""},
	{"sotw glob", "client sotw lds", "list " + lobbyGlob, "origin of " + lobbyGlob, lobby + "a", lobby + "b", lobbyKey, true, ""},
}

// TestAnswer checks the states of a change at a client.
func TestAnswer(t *testing.T) {
	for _, tt := range rolloutClients {
		t.Run(tt.name, func(t *testing.T) {
			c := &rolloutClient{player: newPlayer(t), key: tt.key}
			c.do(tt.client)
			c.do(tt.subscribe)
			c.wantState("asked", false, false)
			c.do(tt.others)
			first := c.change(tt.origin, tt.a+"@1", tt.b+"@1")
			c.want("not sent", first, NotSent)
			c.wantState("not sent", false, false)
			c.turn()
			c.want("sent", first, Sent)
			c.wantState("sent", false, false)
			c.do("ack")
			c.want("accepted", first, Accepted)
			c.wantState("accepted", true, false)
			c.turn()

			second := c.change(tt.origin, tt.a+"@2")
			c.want("another change", first, Accepted)
			c.want("another change", second, NotSent)
			c.turn()
			c.want("sent, too", first, Accepted)
			c.want("sent, too", second, Sent)
			c.do("nack")
			c.want("rejected", first, Accepted)
			c.want("rejected", second, Rejected)
			c.wantState("rejected", true, true)
			c.turn()

			third := c.change(tt.origin, tt.a+"@3")
			c.want("after a rejection", third, NotSent)
			c.turn()
			c.want("after a rejection", third, Sent)
			c.do("ack")
			c.want("after a rejection", third, Accepted)
			c.wantState("after a rejection", true, false)
			if !tt.whole {
				c.want("superseded", second, Rejected)
			}
			c.turn()
			if tt.subscribe != "subscribe *" && tt.subscribe != "list *" && tt.key != lobbyKey && tt.name != "delta wildcard and names" {
				c.wantNot("of another name", Change{Key: tt.key, UpTo: third.UpTo, Names: []string{"c"}})
			}
			if tt.key == lobbyKey {
				c.wantNot("of the type", Change{Key: wire.ListenerType, UpTo: third.UpTo, Names: third.Names})
				c.wantNot("of another glob", Change{Key: cache.Collection(wire.ListenerType, lobby+"x/*"), UpTo: third.UpTo, Names: third.Names})
			}
		})
	}
}

// TestAnswerOfRemovals: a delayed removal counts as sent only once it was sent (B.11).
func TestAnswerOfRemovals(t *testing.T) {
	for _, tt := range rolloutClients {
		if strings.Contains(tt.name, "sotw names") && !tt.whole || strings.Contains(tt.name, "group") {
			continue // no response can contain a removal
		}
		t.Run(tt.name, func(t *testing.T) {
			c := &rolloutClient{player: newPlayer(t), key: tt.key}
			c.do(tt.client)
			c.do(tt.subscribe)
			c.do(tt.others)
			c.change(tt.origin, tt.a+"@1", tt.b+"@1")
			c.turn()
			c.do("ack")
			c.turn()
			gone := c.change(tt.origin, "-"+tt.a)
			c.want("not sent", gone, NotSent)
			g := c.view.Generation()
			r, _, err := c.sub.Next(&Turn{Newest: g, Cut: g, Now: time.Now()}, g.Seq)
			if check.OK(t, err); c.sub.LateRemovals() {
				if r.Body != nil {
					t.Fatal("the removal was sent before changes to referring resources")
				}
				c.want("late", gone, NotSent)
			} else if tt.key != lobbyKey {
				c.sub.RecordSent(&r, "early", c.view, 0, time.Now())
				c.want("sent", gone, Sent)
				c.do("ack early")
			}
			if c.turn(); c.sub.Pending() {
				c.want("sent", gone, Sent)
				c.do("ack")
			}
			c.want("accepted", gone, Accepted)
		})
	}
}

// TestAnswerForLaterSubscriptions: the change was made before the client subscribed to the name.
func TestAnswerForLaterSubscriptions(t *testing.T) {
	for name, tt := range map[string]struct{ client, subscribe, more string }{
		"delta":         {"client delta rds", "subscribe a b", "subscribe c"},
		"delta, again":  {"client delta rds", "subscribe a b c", "subscribe c"},
		"sotw":          {"client sotw rds", "list a b", "list a b c"},
		"sotw of a set": {"client sotw lds", "list a b", "list a b c"},
		"sotw group":    {"client sotw rtds envoy", "list a b", "list a b c"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &rolloutClient{player: newPlayer(t)}
			c.do(tt.client)
			c.key = c.sub.Key
			c.view.Watch().Subscribe(c.key, []string{"a", "b", "c"})
			c.do(tt.subscribe)
			before := c.change("origin by name", "a@1")
			asked := c.change("origin by name", "c@1")
			after := c.change("origin by name", "b@1")
			c.turn()
			c.do("ack")
			c.turn()
			c.do(tt.more)
			c.turn()
			c.want("sent", asked, Sent)
			c.want("sent", after, Accepted)
			c.do("nack")
			if r := c.sub.Rejection(); r == nil || !r.HasChange(asked.After, asked.UpTo) || r.HasChange(before.After, before.UpTo) {
				t.Errorf("the rejection %+v is not that of %+v alone", r, asked)
			}
			c.want("rejected", asked, Rejected)
			c.want("rejected", before, Accepted)
			c.turn()
			c.do("ack")
			c.want("rejected", after, Accepted)
		})
	}
}

// TestAnswerOfReturningClients: a client that returns with the current state is sent nothing, and counts as accepted.
func TestAnswerOfReturningClients(t *testing.T) {
	for name, events := range map[string][]string{
		"delta wildcard": {"client delta lds", "origin a@1 b@1", "subscribe *", "ack", "reconnect", "subscribe *"},
		"delta names":    {"client delta rds", "subscribe a b", "origin by name a@1 b@1", "ack", "reconnect", "subscribe a b"},
		"sotw wildcard":  {"client sotw lds", "origin a@1 b@1", "list *", "ack", "reconnect", "list *"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &rolloutClient{player: newPlayer(t)}
			for _, event := range events {
				c.do(event)
				c.turn()
			}
			if c.sub.SentAny() {
				t.Fatal("the client was sent resources that it has")
			}
			c.want("returned", Change{Key: c.sub.Key, UpTo: c.view.Generation().Seq, Names: []string{"a", "b"}}, Accepted)
			c.wantState("returned", true, false)
		})
	}
}

// TestAnswerAllocatesNothing, no matter whether the client or the change has more names.
func TestAnswerAllocatesNothing(t *testing.T) {
	var many []string
	for i := range 1000 {
		many = append(many, benchedName(i))
	}
	for name, tt := range map[string]struct{ subscribed, changed []string }{
		"few of many": {many, many[500:501]},
		"many of few": {many[500:501], many},
	} {
		c := &rolloutClient{player: newPlayer(t), key: wire.RouteType}
		c.do("client delta rds")
		c.do("subscribe " + strings.Join(tt.subscribed, " "))
		of := c.change("origin by name", many[500]+"@1")
		c.turn()
		c.do("nack")
		of.Names = tt.changed
		c.want(name, of, Rejected)
		at := c.sub.At(c.view.Generation())
		if got := testing.AllocsPerRun(100, func() { at.Answer(&of) }); got > 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
}

func benchedName(i int) string {
	return "name-" + string(rune('a'+i/100)) + string(rune('a'+i/10%10)) + string(rune('a'+i%10))
}

// TestRejectionExcludesLaterChanges: a change that was made while a response was unanswered is not part of its rejection.
func TestRejectionExcludesLaterChanges(t *testing.T) {
	for _, client := range []string{"client delta rds", "client sotw rds"} {
		synctest.Test(t, func(t *testing.T) {
			c := &rolloutClient{player: newPlayer(t), key: wire.RouteType}
			c.do(client)
			c.view.Watch().Subscribe(wire.RouteType, []string{"x"})
			if c.sub.Delta {
				c.do("subscribe a b")
			} else {
				c.do("list a b")
			}
			sent := c.change("origin by name", "a@1")
			c.want("unsent, and not of the change", Change{Key: c.key, After: sent.UpTo, UpTo: sent.UpTo + 1, Names: []string{"a"}}, Accepted)
			c.turn()
			passed := c.change("origin by name", "x@1")
			time.Sleep(6 * time.Second) // ends the wait for the answer
			c.turn()
			if c.do("nack"); !c.sub.Rejection().HasChange(sent.After, sent.UpTo) || c.sub.Rejection().HasChange(passed.After, passed.UpTo) {
				t.Errorf("%s: the rejection %+v is not that of %+v alone", client, c.sub.Rejection(), sent)
			}
		})
	}
}

// TestRejectionHasChange: a rejected response has the changes after the end of the response before, up to its own end.
func TestRejectionHasChange(t *testing.T) {
	r := &Rejection{span: span{10, 20}}
	for _, tt := range []struct {
		after, upTo cache.Seq
		want        bool
	}{
		{0, 10, false},
		{0, 11, true},
		{12, 13, true},
		{10, 20, true},
		{19, 30, true},
		{20, 30, false},
		{15, 15, false}, // nothing
	} {
		if got := r.HasChange(tt.after, tt.upTo); got != tt.want {
			t.Errorf("after %d up to %d: %v, want %v", tt.after, tt.upTo, got, tt.want)
		}
	}
	if (&Rejection{span: span{15, 15}}).HasChange(10, 20) {
		t.Error("HasChange is true for a response without changes")
	}
}
