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

// countedView serves one view and counts the members of its group.
type countedView struct {
	view    *cache.View
	members int
}

func (v *countedView) Join(*node, Caller) (Group, error) {
	v.members++
	return Group{View: v.view, Key: "all", Leave: func() { v.members-- }}, nil
}

// restServer returns a server of an empty view, whose origin is connected and silent.
func restServer(t *testing.T) (*Server, *countedView, *cache.Writer) {
	t.Helper()
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	v := &countedView{view: view}
	s := check.Must(New(Config{Views: v}))
	return s, v, w
}

// restPoll polls for routes, and returns the response. hold is the value of timeoutHeader.
func restPoll(ctx context.Context, s *Server, hold, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v3/discovery:routes", strings.NewReader(body))
	r.Header.Set(timeoutHeader, hold)
	reply := httptest.NewRecorder()
	s.REST().ServeHTTP(reply, r)
	return reply
}

// B.27: a poll that was answered or whose client has disconnected leaves its group, unsubscribes, and counts as no
// stream.
func TestB27_PollReleasesEverything(t *testing.T) {
	s, v, w := restServer(t)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, poll := range map[string]func() *httptest.ResponseRecorder{
		"answered": func() *httptest.ResponseRecorder {
			return restPoll(t.Context(), s, "0", `{"node":{},"resource_names":["a","*"]}`)
		},
		"disconnected": func() *httptest.ResponseRecorder {
			return restPoll(canceled, s, "30000", `{"node":{},"resource_names":["a","*"]}`)
		},
		"refused": func() *httptest.ResponseRecorder { return restPoll(t.Context(), s, "0", `{}`) },
	} {
		if reply := poll(); reply.Code == http.StatusOK {
			t.Errorf("%s: status 200 %s, want an error", name, reply.Body)
		}
		for _, d := range w.TakeDemand() {
			if d.Wanted {
				t.Errorf("%s: still subscribed to %v", name, d)
			}
		}
		if v.members != 0 || s.Streams() != 0 {
			t.Errorf("%s: %d members and %d streams remain, want none", name, v.members, s.Streams())
		}
	}
}

// B.43: a poll counts as a stream, and its response as a response, unless it is 304.
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
		t.Fatalf("status %d %s, then %d; want 200 and 304", first.Code, first.Body, second.Code)
	}
	got := g.counts.Types()[wire.RouteType]
	if want := (TypeStats{Responses: 1, Bytes: int64(first.Body.Len())}); got != want || s.Stats().Accepted != 2 {
		t.Errorf("counters are %+v and %d polls, want %+v and 2", got, s.Stats().Accepted, want)
	}
}

// R134: a draining server answers a new poll immediately, and closes the connection.
func TestR134_RESTAfterDrain(t *testing.T) {
	s, _, _ := restServer(t)
	s.Drain(0)
	reply := restPoll(t.Context(), s, "30000", `{"node":{},"resource_names":["a"]}`)
	if reply.Code != http.StatusServiceUnavailable || reply.Header().Get("Connection") != "close" ||
		reply.Header().Get("Retry-After") == "" {
		t.Errorf("status %d with %v, want 503, Retry-After and Connection: close", reply.Code, reply.Header())
	}
}

// B.11: a held poll for the wildcard is answered with the complete set, so it keeps no removal in memory.
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
		go func() { // the test waits for ended
			defer close(ended)
			reply := restPoll(t.Context(), s, "30000", `{"node":{},"resource_names":["*"],"version_info":"`+version+`"}`)
			if reply.Code != http.StatusNotModified {
				t.Errorf("status %d %s, want 304", reply.Code, reply.Body)
			}
		}()
		synctest.Wait()
		w.Trim(time.Now())
		if set := v.view.Generation().Type(wire.RouteType).Wildcard; set.Floor() != set.Last() {
			t.Error("the removal is kept in memory")
		}
		<-ended
	})
}

// TestB3_PollsOfRejectedEditions checks that a version is not trusted if the set was part of a rejected edition, until
// the client was sent the set again.
func TestB3_PollsOfRejectedEditions(t *testing.T) {
	for name, names := range map[string]string{"wildcard": "*", "name": "a"} {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		server := check.Must(New(Config{Views: oneView{view}}))
		watch := view.Watch()
		watch.Subscribe(wire.RouteType, []string{"a"})
		watch.SubscribeAll(wire.RouteType)
		w.TakeDemand()
		route := check.Must(wire.NewResource(wire.RouteType, "a", "1", []byte("\n\x01a")))
		u := wire.Update{TypeURL: wire.RouteType, Resources: []*wire.Resource{route}}
		w.Apply(cache.ByName, u)
		w.Apply(cache.Wildcard, u)
		w.SetPhase(wire.RouteType, cache.Confirmed)
		version := ""
		poll := func(when string, want int) {
			t.Helper()
			reply := restPoll(t.Context(), server, "0",
				`{"node":{"id":"n"},"resource_names":["`+names+`"],"version_info":"`+version+`"}`)
			if reply.Code != want {
				t.Errorf("%s, %s: status %d %s, want %d", name, when, reply.Code, reply.Body, want)
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
		poll("still distrusted", http.StatusNotModified)
		distrust("a", "b")
		poll("another edition", http.StatusOK)
		view.Distrust.Set(0, nil)
		poll("an hour later", http.StatusNotModified)
		if names == "a" {
			distrust("b")
			poll("another resource", http.StatusNotModified)
		}
	}
}
