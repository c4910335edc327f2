package conformance_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// A restClient polls a relay on its own connections.
type restClient struct {
	t    *testing.T
	http *http.Client
}

// restPoller returns a client that speaks HTTP/1.1, or HTTP/2 without TLS.
func restPoller(t *testing.T, r *running, http2 bool) *restClient {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{
		Protocols:          &protocols,
		DisableCompression: true,
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return r.DialREST(ctx) },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &restClient{t: t, http: &http.Client{Transport: transport}}
}

// restBubble runs a test in a bubble with an origin, a relay and a client that polls it.
func restBubble(t *testing.T, f func(t *testing.T, o *relaytest.Origin, c *restClient), env ...string) {
	t.Helper()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		f(t, o, restPoller(t, start(t, o, env...), false))
	})
}

// A restReply is the reply to a poll, and its latency.
type restReply struct {
	t      *testing.T
	status int
	header http.Header
	body   string
	took   time.Duration
}

// send sends a request. headers are pairs of name and value.
func (c *restClient) send(ctx context.Context, method, path, body string, headers ...string) (restReply, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://relay"+path, strings.NewReader(body))
	if err != nil {
		return restReply{}, err
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	began := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return restReply{}, err
	}
	got, err := io.ReadAll(resp.Body)
	if err == nil {
		err = resp.Body.Close()
	}
	return restReply{c.t, resp.StatusCode, resp.Header, string(got), time.Since(began)}, err
}

// post sends a POST request and waits for the reply.
func (c *restClient) post(path, body string, headers ...string) restReply {
	c.t.Helper()
	reply, err := c.send(c.t.Context(), http.MethodPost, path, body, headers...)
	if err != nil {
		c.t.Fatalf("POST %s: %v", path, err)
	}
	return reply
}

// poll polls as an Envoy does, and waits for the reply. hold is the client's timeout in milliseconds; "" means
// that of the relay.
func (c *restClient) poll(kind, hold, version string, names ...string) restReply {
	c.t.Helper()
	return c.post("/v3/discovery:"+kind, restBody(c.t, version, names...), restHold(hold)...)
}

// pollAsync polls without waiting. The reply arrives on the channel, which is closed without one if the poll
// fails.
func (c *restClient) pollAsync(ctx context.Context, kind, hold, version string, names ...string) <-chan restReply {
	c.t.Helper()
	answered, body := make(chan restReply, 1), restBody(c.t, version, names...)
	// Returns when ctx or the relay ends.
	go func() {
		defer close(answered)
		if reply, err := c.send(ctx, http.MethodPost, "/v3/discovery:"+kind, body, restHold(hold)...); err == nil {
			answered <- reply
		}
	}()
	return answered
}

// restHold returns the header in which Envoy announces its timeout.
func restHold(ms string) []string {
	if ms == "" {
		return nil
	}
	return []string{"x-envoy-expected-rq-timeout-ms", ms}
}

// restBody returns the JSON body of Envoy's poll.
func restBody(t *testing.T, version string, names ...string) string {
	t.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&discoverypb.DiscoveryRequest{
		Node: relaytest.EnvoyNode("client"), VersionInfo: version, ResourceNames: names,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// expectStatus fails the test unless the reply has the status and its body contains text.
func (r restReply) expectStatus(status int, text string) restReply {
	r.t.Helper()
	if r.status != status || !strings.Contains(r.body, text) {
		r.t.Fatalf("got status %d, body %.500s, want status %d and %q", r.status, r.body, status, text)
	}
	return r
}

// expectNotModified fails the test unless the reply is a 304 without a body.
func (r restReply) expectNotModified() restReply {
	r.t.Helper()
	if r.expectStatus(http.StatusNotModified, "").body != "" {
		r.t.Fatalf("got a 304 with the body %.500q, want none", r.body)
	}
	return r
}

// expectDuration fails the test unless the poll took exactly this virtual time.
func (r restReply) expectDuration(want time.Duration) restReply {
	r.t.Helper()
	if r.took != want {
		r.t.Fatalf("got the reply after %v, want %v: status %d, %.500s", r.took, want, r.status, r.body)
	}
	return r
}

// response returns the DiscoveryResponse of a reply.
func (r restReply) response() *discoverypb.DiscoveryResponse {
	r.t.Helper()
	resp := new(discoverypb.DiscoveryResponse)
	if err := protojson.Unmarshal([]byte(r.expectStatus(http.StatusOK, "").body), resp); err != nil {
		r.t.Fatalf("%v in %.500s", err, r.body)
	}
	return resp
}

// expectNames fails the test unless the reply has exactly these resources. It returns the version.
func (r restReply) expectNames(names ...string) (version string) {
	r.t.Helper()
	resp, got := r.response(), []string{}
	for _, resource := range resp.GetResources() {
		got = append(got, resourceName(r.t, resource))
	}
	slices.Sort(got)
	if !slices.Equal(got, append([]string{}, names...)) {
		r.t.Fatalf("got %q, want %q", got, names)
	}
	return resp.GetVersionInfo()
}

// resourceName returns a resource's name, which is field 1 of every xDS type.
func resourceName(t *testing.T, resource *anypb.Any) string {
	t.Helper()
	m, err := resource.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return m.ProtoReflect().Get(m.ProtoReflect().Descriptor().Fields().ByNumber(1)).String()
}

// expectAnswered returns the reply to a poll that must have ended by now.
func expectAnswered(t *testing.T, answered <-chan restReply) restReply {
	t.Helper()
	synctest.Wait()
	select {
	case reply, ok := <-answered:
		if ok {
			return reply
		}
		t.Fatal("the poll failed")
	default:
		t.Fatal("the poll is still held, want a reply")
	}
	panic("not reached")
}

// expectHeld lets virtual time pass, and fails the test unless the poll is still held.
func expectHeld(t *testing.T, answered <-chan restReply, d time.Duration) {
	t.Helper()
	sleep(d)
	select {
	case reply := <-answered:
		t.Fatalf("the poll was answered after %v: status %d, %.500s", reply.took, reply.status, reply.body)
	default:
	}
}
