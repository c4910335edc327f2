package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// An outage is a failure of an origin or of the network in front of it.
type outage struct {
	name   string
	begin  func(ctx context.Context, s *site) // starts the outage on a working site; it lasts until ctx ends
	answer func(net.Conn)                     // used instead of begin: a foreign server that answers connections
}

// outages are all outages. Some names select special steps in newSite, end and visible.
var outages = []outage{
	{name: "killed", begin: func(_ context.Context, s *site) { s.plane.Stop() }},
	{name: "middle relay killed", begin: func(_ context.Context, s *site) { s.middle.Kill() }},
	{name: "refusing", begin: func(_ context.Context, s *site) { s.link.Set(proxy.Link{Refuse: true}); s.link.Reset() }},
	{name: "black hole", begin: func(_ context.Context, s *site) {
		s.link.Set(proxy.Link{Up: proxy.Way{Hold: true}, Down: proxy.Way{Hold: true}})
	}},
	{name: "black hole on the way back", begin: func(_ context.Context, s *site) { s.link.Set(proxy.Link{Down: proxy.Way{Hold: true}}) }},
	{name: "half-open", begin: func(_ context.Context, s *site) {
		s.link.Set(proxy.Link{Answer: proxy.AnswerNothing})
		s.link.Orphan()
	}},
	{name: "flapping", begin: flap},
	{name: "reset in the middle of frames", begin: func(_ context.Context, s *site) {
		s.link.Set(proxy.Link{Down: proxy.Way{ResetAfter: 50}})
		s.link.Reset()
	}},
	{name: "rubbish in the middle of the stream", begin: func(_ context.Context, s *site) {
		s.link.Set(proxy.Link{Answer: proxy.AnswerRandom})
		s.link.Say([]byte("\x00\x00\x04\xff\xff\xff\xff\xff\xffrubbish that is no frame"))
	}},
	{name: "HTTP/1", answer: proxy.AnswerHTTP1},
	{name: "TLS", answer: proxy.AnswerTLS},
	{name: "random bytes", answer: proxy.AnswerRandom},
	{name: "truncated frames", answer: proxy.AnswerTruncated},
	{name: "GOAWAY", answer: proxy.AnswerHTTP2(proxy.StreamGoAway)},
	{name: "RST_STREAM", answer: proxy.AnswerHTTP2(proxy.StreamReset(http2.ErrCodeRefusedStream))},
	{name: "trailers only", answer: proxy.AnswerHTTP2(proxy.StreamTrailersOnly("14", "no backend"))},
	{name: "a web page", answer: proxy.AnswerHTTP2(proxy.StreamHTML)},
	{name: "malformed messages", answer: proxy.AnswerHTTP2(proxy.StreamMessage([]byte("\xff\xff\xff\xff")))},
	{name: "empty messages", answer: proxy.AnswerHTTP2(proxy.StreamMessage(nil))},
}

// flap makes the origin reachable and unreachable every second. It ends with an unreachable origin, so that the relay
// logs the next connection.
func flap(ctx context.Context, s *site) {
	be := func(away bool) {
		s.link.Set(proxy.Link{Refuse: away})
		if away {
			s.link.Reset()
		}
	}
	go func() { // site.end waits for it
		defer close(s.flapped)
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for away := true; ; away = !away {
			be(away)
			select {
			case <-ticker.C:
			case <-ctx.Done():
				be(true)
				return
			}
		}
	}()
}

// A site is an origin, a link to it that can fail, a relay, and the relay's clients.
type site struct {
	outage
	plane   *controlPlane
	middle  *relayProcess // relay between the link and the plane; nil if there is none
	link    *proxy.Proxy
	relay   *relayProcess
	early   []*relaytest.Client // connected before the outage
	late    []*relaytest.Client // connected during the outage
	told    []int               // number of responses before the outage, by index in early
	flapped chan struct{}       // closed when flap has ended
}

// newSite starts a site with the control plane. It starts a separate control plane if the outage kills that.
func newSite(t *testing.T, o outage, plane *controlPlane) *site {
	t.Helper()
	s := &site{outage: o, plane: plane, flapped: make(chan struct{})}
	if s.name == "killed" {
		s.plane = newControlPlane(t)
	}
	target := s.plane.addr
	if s.name == "middle relay killed" {
		s.middle = serve(t, "TENDER_ORIGIN="+target)
		target = s.middle.addr
	}
	s.link = proxy.New(t, target)
	s.relay = serve(t, "TENDER_ORIGIN="+s.link.Addr(), "TENDER_ORIGIN_KEEPALIVE=10s")
	s.early = s.join("early")
	return s
}

// join connects a client of each variant that subscribes to all resources.
func (s *site) join(id string) (clients []*relaytest.Client) {
	for _, v := range variants {
		c := s.relay.client(v, fmt.Sprintf("%s %s %v", s.name, id, v))
		subscribe(c)
		clients = append(clients, c)
	}
	return clients
}

// strike begins the outage. It lasts until ctx ends and end is called.
func (s *site) strike(ctx context.Context) {
	if s.answer == nil {
		s.begin(ctx, s)
		return
	}
	s.link.Set(proxy.Link{Answer: s.answer})
	s.link.Cut()
}

// end makes the origin return with the same content, at another address if it was killed. It returns a mark in the
// relay's log; the message about the new connection follows it.
func (s *site) end(t *testing.T) (mark int) {
	t.Helper()
	mark = s.relay.Mark()
	switch s.name {
	case "killed":
		s.plane = newControlPlane(t)
		s.plane.change(2000)
		s.link.Forward(s.plane.addr)
	case "middle relay killed":
		s.middle = serve(t, "TENDER_ORIGIN="+s.plane.addr)
		s.link.Forward(s.middle.addr)
	case "flapping":
		<-s.flapped
	}
	s.link.Set(proxy.Link{})
	if s.answer != nil { // connections to the foreign server stay open otherwise
		mark = s.relay.Mark()
		s.link.Cut()
	}
	return mark
}

// unharmed fails the test if the stream of a client ended or if a client received a removal. Since the start of the
// outage, each early client must have received exactly the number more of responses.
func (s *site) unharmed(t *testing.T, when string, more int) {
	t.Helper()
	for i, c := range s.early {
		if n := len(c.Responses()) - s.told[i]; n != more {
			t.Errorf("%s: %s: %v received %d responses, want %d:\n%v", s.name, when, c, n, more, c.Responses()[s.told[i]:])
		}
	}
	for _, c := range append(s.late, s.early...) {
		if c.Ended() {
			t.Errorf("%s: %s: the stream of %v ended: %v", s.name, when, c, c.WaitEnd(t.Context()))
		}
		for _, r := range c.Responses() {
			if len(r.Removed) > 0 {
				t.Errorf("%s: %s: %v received removals: %v", s.name, when, c, r)
			}
		}
	}
}

// visible fails the test unless the status and the metrics show the outage.
func (s *site) visible(t *testing.T) {
	t.Helper()
	var status admin.Status
	if err := json.Unmarshal(s.relay.page("/api/v1/status"), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Origins) != 1 || status.Origins[0].LastError == "" {
		t.Errorf("%s: the status has no error of the origin: %+v", s.name, status.Origins)
	}
	// In some outages, the relay may be connected at this moment.
	for _, v := range status.Views {
		if !v.Shared && !v.Stale && s.name != "flapping" && s.name != "empty messages" {
			t.Errorf("%s: the view is not stale in the status: %+v", s.name, v)
		}
	}
	metrics := string(s.relay.page("/metrics"))
	ended := regexp.MustCompile(`(?m)^tender_origin_streams_ended_total\{.*\} [1-9]`)
	if !ended.MatchString(metrics) {
		t.Errorf("%s: the metrics count no closed upstream stream:\n%s", s.name, metrics)
	}
}

// TestB8_B15_R068_R112_C15_C28_OriginGoneForAMinute: the origin is unavailable for a minute, by each of the outages.
// Every client keeps its stream, and new clients receive all resources. No client receives a removal. When the origin
// returns with the same content, clients receive nothing. The next change arrives.
func TestB8_B15_R068_R112_C15_C28_OriginGoneForAMinute(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	planes := []*controlPlane{plane}
	var sites []*site
	for _, o := range outages {
		s := newSite(t, o, plane)
		if sites = append(sites, s); s.plane != plane {
			planes = append(planes, s.plane)
		}
	}
	for _, s := range sites {
		served(t, 1000, s.early...)
	}
	for _, p := range planes { // earlier responses arrive before this change
		p.change(2000)
	}
	for _, s := range sites {
		served(t, 2000, s.early...)
		for _, c := range s.early {
			s.told = append(s.told, len(c.Responses()))
		}
	}

	ctx, over := context.WithCancel(t.Context())
	minute := time.NewTimer(time.Minute)
	half := time.NewTimer(time.Minute / 2)
	for _, s := range sites {
		s.strike(ctx)
	}
	newcomers := func(id string) {
		for _, s := range sites {
			late := s.join(id)
			s.late = append(s.late, late...)
			served(t, 2000, late...)
		}
	}
	newcomers("newcomer")
	<-half.C
	newcomers("late newcomer")
	<-minute.C
	for _, s := range sites {
		s.unharmed(t, "after a minute", 0)
		s.visible(t)
	}

	over()
	marks := make([]int, len(sites))
	for i, s := range sites {
		marks[i] = s.end(t)
	}
	for i, s := range sites {
		s.relay.AwaitLine(marks[i], "connected to the origin")
		s.unharmed(t, "after the return", 0)
	}
	plane.change(3000)
	sites[0].plane.change(3000)
	for _, s := range sites {
		served(t, 3000, append(s.early, s.late...)...)
		s.unharmed(t, "after a change", 1)
	}
}
