package downstream

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// countedView serves one view and counts who is in it.
type countedView struct {
	view    *cache.View
	members int
}

func (v *countedView) Join(*node, Caller) (Group, error) {
	v.members++
	return Group{View: v.view, Key: "all", Leave: func() { v.members-- }}, nil
}

// restServer returns a server of an empty view whose origin is there and says nothing.
func restServer(t *testing.T) (*Server, *countedView, *cache.Writer) {
	t.Helper()
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	v := &countedView{view: view}
	s := check.Must(New(Config{Views: v}))
	return s, v, w
}

// restPoll polls for routes and waits for the answer.
func restPoll(ctx context.Context, s *Server, hold, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v3/discovery:routes", strings.NewReader(body))
	r.Header.Set(timeoutHeader, hold)
	reply := httptest.NewRecorder()
	s.REST().ServeHTTP(reply, r)
	return reply
}

// B.27: a poll leaves nothing behind, whether it was answered or its client left: no
// place in the group, no interest, no stream.
func TestB27_PollReleasesEverything(t *testing.T) {
	s, v, w := restServer(t)
	left, leave := context.WithCancel(t.Context())
	leave()
	for name, poll := range map[string]func() *httptest.ResponseRecorder{
		"answered": func() *httptest.ResponseRecorder {
			return restPoll(t.Context(), s, "0", `{"node":{},"resource_names":["a","*"]}`)
		},
		"left": func() *httptest.ResponseRecorder {
			return restPoll(left, s, "30000", `{"node":{},"resource_names":["a","*"]}`)
		},
		"refused": func() *httptest.ResponseRecorder { return restPoll(t.Context(), s, "0", `{}`) },
	} {
		if reply := poll(); reply.Code == http.StatusOK {
			t.Errorf("%s: status 200 %s, want none", name, reply.Body)
		}
		for _, d := range w.TakeDemand() {
			if d.Wanted {
				t.Errorf("%s: %v is wanted still", name, d)
			}
		}
		if v.members != 0 || s.Streams() != 0 {
			t.Errorf("%s: %d in the group and %d streams are left, want none", name, v.members, s.Streams())
		}
	}
}

// B.43: a poll is counted as the streams are, and its answer as a delivery, but for one that
// says that nothing has changed.
func TestB43_PollsAreCounted(t *testing.T) {
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	g := &countedGroup{view: view}
	s := check.Must(New(Config{Views: g}))
	view.Watch().Subscribe(wire.RouteType, []string{"a"})
	w.TakeDemand()
	route := check.Must(wire.NewResource(wire.RouteType, "a", "1", []byte("\n\x01a")))
	w.Apply(cache.ByName, wire.Update{TypeURL: wire.RouteType, Resources: []*wire.Resource{route}})
	first := restPoll(t.Context(), s, "0", `{"node":{},"resource_names":["a"]}`)
	_, version, _ := strings.Cut(first.Body.String(), `"versionInfo":"`)
	version, _, _ = strings.Cut(version, `"`)
	second := restPoll(t.Context(), s, "0", `{"node":{},"resource_names":["a"],"version_info":"`+version+`"}`)
	if first.Code != http.StatusOK || second.Code != http.StatusNotModified {
		t.Fatalf("answered %d %s, then %d; want 200 and 304", first.Code, first.Body, second.Code)
	}
	got := g.counts.Types()[wire.RouteType]
	if want := (TypeStats{Responses: 1, Bytes: int64(first.Body.Len())}); got != want || s.Stats().Accepted != 2 {
		t.Errorf("counted %+v and %d polls, want %+v and 2", got, s.Stats().Accepted, want)
	}
}

// R134: a server that drains answers a new poll at once, and ends its connection.
func TestR134_RESTAfterDrain(t *testing.T) {
	s, _, _ := restServer(t)
	s.Drain(0)
	reply := restPoll(t.Context(), s, "30000", `{"node":{},"resource_names":["a"]}`)
	if reply.Code != http.StatusServiceUnavailable || reply.Header().Get("Connection") != "close" ||
		reply.Header().Get("Retry-After") == "" {
		t.Errorf("status %d with %v, want 503, Retry-After and an end of the connection", reply.Code, reply.Header())
	}
}

// B.11: a poll for everything is told the complete set, and keeps no removal in memory
// while it is held.
func TestB11_RESTNeedsNoRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, v, w := restServer(t)
		var both []*wire.Resource
		for _, name := range []string{"a", "b"} {
			r := check.Must(wire.NewResource(wire.RouteType, name, "", []byte("\x0a\x01"+name)))
			both = append(both, r)
		}
		w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.RouteType, Resources: both})
		w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.RouteType, Removed: []string{"a"}})
		version := v.view.Generation().Type(wire.RouteType).Wildcard.Sum().Version("")
		w.SetPhase(wire.RouteType, cache.Confirmed)
		ended := make(chan struct{})
		go func() { // awaited below
			defer close(ended)
			reply := restPoll(t.Context(), s, "30000", `{"node":{},"resource_names":["*"],"version_info":"`+version+`"}`)
			if reply.Code != http.StatusNotModified {
				t.Errorf("status %d %s, want 304", reply.Code, reply.Body)
			}
		}()
		synctest.Wait()
		w.Trim(time.Now())
		if set := v.view.Generation().Type(wire.RouteType).Wildcard; set.Floor() != set.Last() {
			t.Error("the removal is kept")
		}
		<-ended
	})
}

// TestB3_PollsOfRejectedEditions: a version of what was part of a rejected edition proves nothing until the client was sent
// it once more.
func TestB3_PollsOfRejectedEditions(t *testing.T) {
	for name, names := range map[string]string{"wildcard": "*", "name": "a"} {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		server := check.Must(New(Config{Views: oneView{view}}))
		watch := view.Watch()
		watch.Subscribe(wire.RouteType, []string{"a"})
		watch.SubscribeAll(wire.RouteType)
		w.TakeDemand()
		u := wire.Update{TypeURL: wire.RouteType, Resources: []*wire.Resource{check.Must(wire.NewResource(wire.RouteType,
			"a", "1", []byte("\n\x01a")))}}
		w.Apply(cache.ByName, u)
		w.Apply(cache.Wildcard, u)
		w.SetPhase(wire.RouteType, cache.Confirmed)
		version := ""
		poll := func(when string, want int) {
			t.Helper()
			reply := restPoll(t.Context(), server, "0",
				`{"node":{"id":"n"},"resource_names":["`+names+`"],"version_info":"`+version+`"}`)
			if reply.Code != want {
				t.Errorf("%s, %s: answered %d %s, want %d", name, when, reply.Code, reply.Body, want)
			}
			if _, after, ok := strings.Cut(reply.Body.String(), `"versionInfo":"`); ok {
				version, _, _ = strings.Cut(after, `"`)
			}
		}
		distrust := func(names ...string) {
			of := make(map[string]struct{})
			for _, name := range names {
				of[name] = struct{}{}
			}
			view.Distrust.Set(0, map[string]map[string]struct{}{wire.RouteType: of})
		}
		poll("first", http.StatusOK)
		poll("current", http.StatusNotModified)
		distrust("a")
		poll("distrusted", http.StatusOK)
		poll("sent again", http.StatusNotModified)
		distrust("a")
		poll("distrusted still", http.StatusNotModified)
		distrust("a", "b")
		poll("another edition", http.StatusOK)
		view.Distrust.Set(0, nil)
		poll("an hour later", http.StatusNotModified)
		if names == "a" {
			distrust("b")
			poll("something else", http.StatusNotModified)
		}
	}
}
