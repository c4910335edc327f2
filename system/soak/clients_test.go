package soak

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/ledger"
)

// A client subscribes to resources of the origins until stop is called.
type client interface {
	fmt.Stringer
	// agree waits until the client has the resources of its origin. If ctx ends first, it returns a difference.
	agree(ctx context.Context) string
	// follows returns the node group of the client.
	follows() *group
	// leave closes the stream; the client then opens one to the other relay.
	leave()
	// pause stops reading until resume is called.
	pause()
	resume()
	// stop ends the client and waits until it has ended.
	stop()
}

// A stream is a client that uses gRPC.
type stream struct {
	*relaytest.Roaming
	group   *group
	variant relaytest.Variant
	wants   []relaytest.Subscription
	bulky   bool // subscribes to the bulk resource
	canary  bool // is in the first stage; it may reject bad content
}

// stream starts the i-th client. The five kinds of subscriptions occur with every combination of variant and group.
// Some clients support TTLs, some connect through a proxy, and some subscribe to the bulk resource.
func (w *world) stream(i int) client {
	s := &stream{variant: relaytest.Variant(i % 2), group: w.groups[i/2%len(w.groups)]}
	opts := relaytest.LightOptions{Node: &corepb.Node{Id: fmt.Sprintf("%v-%d", s.variant, i), Cluster: s.group.name, UserAgentName: "envoy"}}
	kinds := 2 * len(w.groups)
	round := i / kinds / 5
	if round%3 == 1 {
		opts.Node.ClientFeatures = []string{relaytest.FeatureTTL}
	}
	own := []string{resource(i % 10), resource(i % 7), resource(i * 3 % 30)}
	switch i / kinds % 5 {
	case 0: // as Envoy
		s.wants = []relaytest.Subscription{{TypeURL: relaytest.ClusterType}, {TypeURL: relaytest.ListenerType},
			{TypeURL: relaytest.EndpointType, Names: own}, {TypeURL: relaytest.RouteType, Names: own[:1]}, {TypeURL: relaytest.ScopedRouteType}}
	case 1: // as gRPC
		s.wants = []relaytest.Subscription{{TypeURL: relaytest.ListenerType, Names: own[:1]}, {TypeURL: relaytest.RouteType, Names: own[:1]},
			{TypeURL: relaytest.ClusterType, Names: own}, {TypeURL: relaytest.EndpointType, Names: append(own, common(i%commonsSize))}}
	case 2:
		opts.TypeURL = relaytest.EndpointType
		s.wants = []relaytest.Subscription{{TypeURL: relaytest.EndpointType, Names: append(own, fleeting(i%fleetings))}}
	case 3:
		opts.TypeURL = relaytest.ClusterType
		s.wants = []relaytest.Subscription{{TypeURL: relaytest.ClusterType}}
	default:
		s.wants = []relaytest.Subscription{{TypeURL: relaytest.EndpointType, Names: append(own, fleeting(i%fleetings), commonsDir+"*")},
			{TypeURL: relaytest.ScopedRouteType, Names: []string{scope(ownFiles[i%len(ownFiles)], i%scopesOfFile)}}}
		if round%2 == 0 {
			s.wants = append(s.wants, relaytest.Subscription{TypeURL: bulkType, Names: []string{bulkName}})
			s.bulky = true
		}
	}
	opts = w.reads(opts, s.group.ledger.Reader(s.variant))
	s.Roaming = relaytest.Roam(w.t, opts, i/kinds, w.dialers(round%3 == 2), s.wants...)
	return s
}

// differs returns a difference between state and the ledger, or "".
func (s *stream) differs(state relaytest.State) string {
	return s.group.ledger.Differs(state, s.variant, s.wants)
}

func (s *stream) agree(ctx context.Context) string {
	if s.Await(ctx, func(state relaytest.State) bool { return s.differs(state) == "" }) {
		return ""
	}
	return s.differs(s.State())
}

func (s *stream) follows() *group { return s.group }

func (s *stream) leave()  { s.Leave() }
func (s *stream) pause()  { s.Pause() }
func (s *stream) resume() { s.Resume() }
func (s *stream) stop()   { s.Stop() }

// A poller is a client that polls all clusters over REST.
type poller struct {
	name   string
	url    string
	group  *group
	reader *ledger.Reader // used only by the goroutine of run
	wrong  func(string)   // reports a violation
	cancel context.CancelFunc
	done   chan struct{} // closed when run returns

	mu      sync.Mutex
	state   relaytest.State // guarded by mu; written only by run
	changed chan struct{}   // guarded by mu; closed after the next response
}

// allClusters is the subscription of pollers and visitors.
var allClusters = []relaytest.Subscription{{TypeURL: relaytest.ClusterType}}

// poller starts the i-th poller.
func (w *world) poller(i int) client {
	ctx, cancel := context.WithCancel(w.t.Context())
	p := &poller{
		name: fmt.Sprint("poller-", i), url: "http://" + w.inside.restAddress + "/v3/discovery:clusters",
		group: w.groups[i%len(w.groups)], cancel: cancel, done: make(chan struct{}),
		state: relaytest.State{relaytest.ClusterType: {}}, changed: make(chan struct{}),
	}
	p.reader, p.wrong = p.group.ledger.Reader(relaytest.SotW), func(what string) { w.complain(p.name, what) }
	if w.staging.cohort(&corepb.Node{Id: p.name}) < len(w.staging.stages) {
		p.reader.InStage()
	}
	go p.run(ctx) // awaited by stop
	w.t.Cleanup(p.stop)
	return p
}

func (p *poller) String() string { return p.name }

// run polls until ctx ends. After an error it waits before the next poll.
func (p *poller) run(ctx context.Context) {
	defer close(p.done)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	version := ""
	for ctx.Err() == nil {
		resp, err := p.poll(ctx, &http.Client{Transport: transport}, version)
		switch {
		case err != nil:
			p.reader.Opened() // the next response may come from a restarted relay
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		case resp != nil:
			version = resp.GetVersionInfo()
			p.take(resp)
		}
	}
}

// poll sends one request. A nil response means that nothing has changed since version.
func (p *poller) poll(ctx context.Context, via *http.Client, version string) (*discoverypb.DiscoveryResponse, error) {
	body, err := protojson.Marshal(&discoverypb.DiscoveryRequest{
		Node: &corepb.Node{Id: p.name, Cluster: p.group.name, UserAgentName: "envoy"}, VersionInfo: version,
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	answer, err := via.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	switch b, err := io.ReadAll(answer.Body); {
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusNotModified:
		return nil, nil
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("poll: %s", answer.Status)
	default:
		resp := new(discoverypb.DiscoveryResponse)
		return resp, protojson.Unmarshal(b, resp)
	}
}

// take checks a response against the ledger and replaces the state by it.
func (p *poller) take(resp *discoverypb.DiscoveryResponse) {
	had, has := p.state[relaytest.ClusterType], make(map[string]relaytest.Entry)
	for _, r := range resp.GetResources() {
		entry := relaytest.Entry{Version: resp.GetVersionInfo(), Digest: relaytest.DigestOf(r)}
		name := relaytest.NameOf(r)
		has[name] = entry
		p.judge(p.reader.Received(relaytest.ClusterType, name, r.GetValue()))
	}
	for name := range had {
		if _, is := has[name]; !is {
			p.judge(p.reader.Removed(relaytest.ClusterType, name))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = relaytest.State{relaytest.ClusterType: has}
	close(p.changed)
	p.changed = make(chan struct{})
}

// judge reports a violation of the ledger, if what is not empty.
func (p *poller) judge(what string) {
	if what != "" {
		p.wrong(what)
	}
}

func (p *poller) agree(ctx context.Context) string {
	for {
		p.mu.Lock()
		what, changed := p.group.ledger.Differs(p.state, relaytest.SotW, allClusters), p.changed
		p.mu.Unlock()
		if what == "" {
			return ""
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return what
		}
	}
}

func (p *poller) follows() *group { return p.group }

// Polls are short, so leave, pause and resume do nothing.
func (p *poller) leave()  {}
func (p *poller) pause()  {}
func (p *poller) resume() {}

func (p *poller) stop() {
	p.cancel()
	<-p.done
}
