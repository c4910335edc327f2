package conformance_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// truncatedText is an error message as Envoy truncates it: 4,096 bytes that end inside a character.
var truncatedText = "x" + strings.Repeat("ü", 2048)[:4095]

// nonceOf returns the nonce of an encoded response.
func nonceOf(t *testing.T, v relaytest.Variant, response []byte) string {
	t.Helper()
	if v == relaytest.SotW {
		got := new(discoverypb.DiscoveryResponse)
		check.OK(t, proto.Unmarshal(response, got))
		return got.GetNonce()
	}
	got := new(discoverypb.DeltaDiscoveryResponse)
	check.OK(t, proto.Unmarshal(response, got))
	return got.GetNonce()
}

// B.47: a NACK whose message is truncated inside a character is a NACK as any other. Its stream stays open, and
// operators see it.
func TestB47_NACKsThatAreTruncatedInsideACharacter(t *testing.T) {
	t.Parallel()
	if utf8.ValidString(truncatedText) {
		t.Fatal("test setup: the text is valid")
	}
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, operated, "TENDER_NODE_GROUP_BY=none")
		rpc := rawStream(t, r.Conn(), v.Method(""))
		subscribeAndRecv := func(m []byte) (nonce string) {
			t.Helper()
			if m != nil {
				check.OK(t, rpc.SendMsg(m))
			}
			var got []byte
			check.OK(t, rpc.RecvMsg(&got))
			return nonceOf(t, v, got)
		}
		nonce := subscribeAndRecv(mustMarshal(t, newRequest(v, typeCDS, "", "a")))
		nack := newRequest(v, typeCDS, nonce)
		if v == relaytest.SotW {
			nack = newRequest(v, typeCDS, nonce, "a")
		}
		detail, _ := wireMessage{"error_detail", string(encodeField(2, truncatedText))}.encode(nack)
		check.OK(t, rpc.SendMsg(append(mustMarshal(t, nack), detail...)))
		synctest.Wait()
		check.Equal(t, "NACKs", metricsOf(t, r)["tender_client_nacks_total all cds"], 1)
		check.Equal(t, "clients that reject", metricsOf(t, r)["tender_client_rejecting all cds"], 1)
		if got := r.Log.Count("client rejected a response"); got != 1 {
			t.Errorf("%d log lines about the NACK, want 1", got)
		}
		o.Put(relaytest.Cluster("a", "2"))
		if next := subscribeAndRecv(nil); next == nonce {
			t.Errorf("got the nonce %q again", next)
		}
		if all := statusOf(t, r).Refusals; len(all) > 0 {
			t.Errorf("refusals %+v, want none", all)
		}
	})
}

// B.47: the same for a poll.
func TestB47_PollsThatAreTruncatedInsideACharacter(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		for _, field := range []string{"error_detail", "errorDetail"} {
			reply := c.post("/v3/discovery:clusters",
				`{"`+field+`": {"message": "`+truncatedText+`", "code": 13}, "node": {"id": "a"}, "resource_names": ["a"]}`)
			check.Equal(t, field+": code", reply.status, http.StatusOK)
		}
		reply := c.post("/v3/discovery:clusters", `{"node": {"id": "a"}, "resource_names": ["`+truncatedText+`"]}`)
		check.Equal(t, "a name: code", reply.status, http.StatusBadRequest)
	}, "TENDER_REST_LISTEN=127.0.0.1:0")
}

// refusalOf returns the refusals of a cause in the status, and fails the test unless the log and the metric have
// as many.
func (r *running) refusalOf(t *testing.T, kind, reason, metric, message string) admin.Refusal {
	t.Helper()
	all := statusOf(t, r).Refusals
	at := slices.IndexFunc(all, func(c admin.Refusal) bool { return c.Kind == kind && c.Reason == reason })
	if at < 0 {
		t.Fatalf("the status has the refusals %+v, want %s: %s", all, kind, reason)
	}
	check.Equal(t, metric+" "+reason, metricsOf(t, r)[metric+" "+reason], float64(all[at].Count))
	line := fmt.Sprintf("msg=%q", message)
	r.Log.Await(t, 0, "level=WARN "+line) // it is logged after it is counted
	if lines := strings.Split(r.Log.String(), "\n"); !slices.ContainsFunc(lines, func(l string) bool {
		return strings.Contains(l, "level=WARN "+line) && strings.Contains(l, " kind="+kind+" reason="+reason+" ")
	}) {
		t.Errorf("the log has no line %s of %s, %s:\n%s", line, kind, reason, r.Log.String())
	}
	return all[at]
}

// B.47: operators see why requests are refused: in the log, the metrics and the status.
func TestB47_RefusedRequestsAreSeen(t *testing.T) {
	t.Parallel()
	ads := relaytest.SotW.Method("")
	for _, tt := range []struct {
		reason, method string
		message        wireMessage
		code           codes.Code
	}{
		{"malformed", ads, badRequest("", badCut), codes.InvalidArgument},
		{"not_utf8", ads, badRequest("resource_names", "\xff"), codes.InvalidArgument},
		{"not_utf8", ads, badRequest("response_nonce", truncatedText), codes.InvalidArgument},
		{"node", ads, badRequest("node", badPart(&corepb.Node{}, "id", "\xff")), codes.InvalidArgument},
		{"type", ads, wireMessage{"resource_names", "a"}, codes.InvalidArgument},
		{"type", relaytest.SotW.Method(typeCDS), wireMessage{"type_url", typeLDS}, codes.InvalidArgument},
		{"method", "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources",
			badRequest("resource_names", "a"), codes.Unimplemented},
		{"method", "/envoy.service.route.v3.VirtualHostDiscoveryService/StreamVirtualHosts",
			badRequest("resource_names", "a"), codes.Unimplemented},
		{"load_report", "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats",
			wireMessage{"", badCut}, codes.InvalidArgument},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				r := start(t, o, operated, "TENDER_LRS=aggregate")
				served := otherClients(t, o, r, r.Conn())
				bad, _ := tt.message.encode(new(discoverypb.DiscoveryRequest))
				const often = 20
				for range often {
					rpc := rawStream(t, r.Conn(), tt.method)
					if err := rpc.SendMsg(bad); !errors.Is(err, io.EOF) { // the relay may have ended the stream
						check.OK(t, err)
					}
					check.Equal(t, "code", status.Code(readToEnd(rpc)), tt.code)
				}
				got := r.refusalOf(t, "request", tt.reason, "tender_client_requests_invalid_total", "client request refused")
				if got.Count != often || got.Error == "" || got.At.IsZero() {
					t.Errorf("the status has %+v, want %d with an error and a time", got, often)
				}
				if n := r.Log.Count("client request refused"); n != 5 {
					t.Errorf("%d log lines at once, want 5", n)
				}
				served()
			})
		})
	}
}

// B.47: operators see the requests over a limit, and those that are denied, in the same places. Other denials are
// tested in relay/authz.
func TestB47_RequestsOverALimitAreSeen(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := start(t, o, operated)
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(typeRDS, strings.Repeat("n", 4097))
		_ = c.WaitEnd(t.Context())
		got := r.refusalOf(t, "limit", "name_bytes", "tender_client_refusals_total", "client request refused")
		if got.Count != 1 || !strings.Contains(got.Error, "at most 4096 are allowed (name_bytes)") {
			t.Errorf("the status has %+v, want one with the limit", got)
		}
	})
}

// B.47: operators see invalid polls.
func TestB47_RefusedPollsAreSeen(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := start(t, o, operated, "TENDER_REST_LISTEN=127.0.0.1:0")
		for _, body := range []string{`{`, `{"node": {"id": "a"}, "type_url": "other"}`} {
			check.Equal(t, "code", restPoller(t, r, false).post("/v3/discovery:clusters", body).status, http.StatusBadRequest)
		}
		got := r.refusalOf(t, "request", "poll", "tender_client_requests_invalid_total", "client request refused")
		check.Equal(t, "polls", got.Count, 2)
	})
}

// A fullListener cannot accept connections at first, since no file descriptor is free.
type fullListener struct {
	net.Listener
	failures atomic.Int64
}

// Accept implements net.Listener.
func (l *fullListener) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// B.47: operators see that connections are not accepted because file descriptors ran out. Clients are served once there
// are some.
func TestB47_ExhaustedFileDescriptorsAreSeen(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	l := new(fullListener)
	l.failures.Store(3)
	var err error
	l.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	opts := instance.Of(o)
	opts.Options = relay.Options{Listeners: []net.Listener{l}}
	r := startRelay(t, opts, operated)
	c := relaytest.NewClient(t, r.Conn(grpc.WithDefaultCallOptions(grpc.WaitForReady(true))), relaytest.ClientOptions{})
	c.Subscribe(typeCDS, "a")
	recvAndAck(t, c, typeCDS, "a")
	got := r.refusalOf(t, "accept", "file_descriptors", "tender_client_accepts_failed_total",
		"client connection not accepted")
	if got.Count != 3 || !strings.Contains(got.Error, "too many open files") {
		t.Errorf("the status has %+v, want three with the error", got)
	}
}
