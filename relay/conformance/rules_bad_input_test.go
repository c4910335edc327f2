package conformance_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A badInput is input that a peer must not send, with the expected reaction.
type badInput struct {
	what  string
	input any // a wireMessage, badCall, badFile or badReport, as the surface takes it

	// The status of the peer's stream or of the NACK. OK means that the relay tolerates the input.
	code codes.Code

	// Part of the status message, or of the log where no peer is notified.
	message string
}

// A wireMessage is an encoded message: field name, field bytes, next field name, and so on. The name "" stands for
// bytes that are not a valid field.
type wireMessage []string

// encode encodes m as a message of like's type. It reports false if the type lacks a field.
func (m wireMessage) encode(like proto.Message) (msg []byte, ok bool) {
	known := like.ProtoReflect().Descriptor().Fields()
	for pair := range slices.Chunk(m, 2) {
		f := known.ByName(protoreflect.Name(pair[0]))
		switch {
		case pair[0] == "":
			msg = append(msg, pair[1]...)
		case f != nil:
			msg = append(msg, encodeField(f.Number(), pair[1])...)
		default:
			return nil, false
		}
	}
	return msg, true
}

// badRequest and badResponse return a client's request and an origin's response for clusters.
func badRequest(fields ...string) wireMessage {
	return append(wireMessage{"type_url", typeCDS}, fields...)
}

func badResponse(fields ...string) wireMessage {
	return append(wireMessage{"type_url", typeCDS, "nonce", "bad"}, fields...)
}

// badPart encodes a nested message.
func badPart(like proto.Message, pairs ...string) string {
	msg, ok := wireMessage(pairs).encode(like)
	if !ok {
		panic("no such field: " + strings.Join(pairs, " "))
	}
	return string(msg)
}

func badResource(pairs ...string) string { return badPart(&discoverypb.Resource{}, pairs...) }

// badCluster is a valid cluster resource except for its name.
func badCluster(name string) string {
	return badResource("name", name, "version", "2", "resource", badAny(typeCDS))
}

func badAny(typeURL string) string {
	return badPart(&anypb.Any{}, "type_url", typeURL)
}

// badLimits are the limits that rows of the tables exceed.
var badLimits = []string{
	"TENDER_MAX_NAMES=3", "TENDER_MAX_REQUEST_BYTES=8KiB", "TENDER_MAX_ORIGIN_RESPONSE_BYTES=1MiB",
}

const (
	badCut  = "\x0a\x7f" // a truncated field
	badLong = 4097       // bytes of a name that exceeds the limit
)

// badRequests are requests on a stream. Field names are those of both variants or of one; a row is sent in every
// variant that has all of its fields.
var badRequests = []badInput{
	{"nothing", wireMessage{}, codes.InvalidArgument,
		"type_url is empty: on an aggregated stream each request names its type"},
	{"invalid bytes", wireMessage{"", strings.Repeat("\xff", 100)}, codes.InvalidArgument,
		"malformed request at byte 0 of 100"},
	{"a field that is cut off", badRequest("", badCut), codes.InvalidArgument, "malformed request at byte 53 of 55"},
	{"a tag that is cut off", wireMessage{"", "\xff"}, codes.InvalidArgument, "malformed request at byte 0 of 1"},
	{"field number 0", wireMessage{"", "\x00\x00"}, codes.InvalidArgument, "malformed request at byte 0 of 2"},
	{"the end of a group", wireMessage{"", "\x0c"}, codes.InvalidArgument, "malformed request at byte 0 of 1"},
	{"more bytes than allowed", badRequest("response_nonce", strings.Repeat("n", 8192)), codes.ResourceExhausted,
		"larger than max (8248 vs. 8192)"},

	{"type_url: none", wireMessage{"resource_names", "a"}, codes.InvalidArgument, "type_url is empty"},
	{"type_url: not UTF-8", wireMessage{"type_url", "\xff"}, codes.InvalidArgument, `type URL "\xff" is not UTF-8`},
	{"type_url: too long", wireMessage{"type_url", strings.Repeat("t", badLong)}, codes.InvalidArgument,
		"type_url of 4097 bytes, at most 4096 are allowed"},

	{"node: invalid bytes", badRequest("node", "\xff\xff"), codes.InvalidArgument,
		"node is not an envoy.config.core.v3.Node: "},
	{"node: id not UTF-8", badRequest("node", badPart(&corepb.Node{}, "id", "\xff")), codes.InvalidArgument,
		"contains invalid UTF-8"},
	{"node: too large", badRequest("node", badPart(&corepb.Node{}, "id", strings.Repeat("n", 8192))),
		codes.ResourceExhausted, "vs. 8192"},

	{"names: too long", badRequest("resource_names", strings.Repeat("n", badLong)), codes.InvalidArgument,
		`resource name "` + strings.Repeat("n", 64) + `"… of 4097 bytes, at most 4096 are allowed`},
	{"names: not UTF-8", badRequest("resource_names", "\xff"), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"names: xdstp without a type", badRequest("resource_names", "xdstp://authority"), codes.OK,
		`name=xdstp://authority err="malformed xdstp name`},
	{"names unsubscribed: too long", badRequest("resource_names_unsubscribe", strings.Repeat("n", badLong)),
		codes.InvalidArgument, "of 4097 bytes, at most 4096 are allowed"},
	{"names unsubscribed: not UTF-8", badRequest("resource_names_unsubscribe", "\xff"), codes.InvalidArgument,
		`resource name "\xff" is not UTF-8`},

	{"locators: invalid bytes", badRequest("resource_locators", "\xff"), codes.InvalidArgument,
		"malformed message: resource locator"},
	{"locators: name not UTF-8", badRequest("resource_locators", badPart(&discoverypb.ResourceLocator{}, "name", "\xff")),
		codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"locators: name too long",
		badRequest("resource_locators", badPart(&discoverypb.ResourceLocator{}, "name", strings.Repeat("n", badLong))),
		codes.InvalidArgument, "of 4097 bytes, at most 4096 are allowed"},
	{"locators: parameter cut off",
		badRequest("resource_locators", badPart(&discoverypb.ResourceLocator{}, "name", "a", "dynamic_parameters", badCut)),
		codes.InvalidArgument, "malformed message: dynamic parameter"},
	{"locators unsubscribed: invalid bytes", badRequest("resource_locators_unsubscribe", "\xff"), codes.InvalidArgument,
		"malformed message: resource locator"},

	{"initial_resource_versions: cut off", badRequest("initial_resource_versions", badCut), codes.InvalidArgument,
		"malformed message: initial resource version"},
	{"initial_resource_versions: not UTF-8", badRequest("initial_resource_versions", "\x0a\x01\xff"),
		codes.InvalidArgument, `initial resource version "\xff" is not UTF-8`},
	{"version_info: not UTF-8", badRequest("version_info", "\xff"), codes.InvalidArgument, `version "\xff" is not UTF-8`},

	{"error_detail: invalid bytes", badRequest("error_detail", "\xff"), codes.InvalidArgument,
		"malformed message: error detail"},
	{"error_detail: not UTF-8", badRequest("error_detail", "\x12\x01\xff"), codes.OK, ""},

	{"response_nonce: not UTF-8", badRequest("response_nonce", "\xff"), codes.InvalidArgument,
		`nonce "\xff" is not UTF-8`},
	{"response_nonce: long and not UTF-8", badRequest("response_nonce", strings.Repeat("\xff", 4000)),
		codes.InvalidArgument, "is not UTF-8"},
	{"response_nonce: unknown", badRequest("response_nonce", "4711"), codes.OK, ""},
	{"response_nonce: unknown, in a NACK", badRequest("response_nonce", "4711", "error_detail", "\x12\x02no"),
		codes.OK, ""},
}

// badOfOneType are requests on a stream for clusters only.
var badOfOneType = []badInput{
	{"type_url: another", wireMessage{"type_url", typeLDS}, codes.InvalidArgument,
		`type_url is "` + typeLDS + `": this stream serves "` + typeCDS + `" alone`},
	{"type_url: not UTF-8", wireMessage{"type_url", "\xff"}, codes.InvalidArgument, `type URL "\xff" is not UTF-8`},
	{"names: too long", wireMessage{"resource_names", strings.Repeat("n", badLong)}, codes.InvalidArgument,
		"of 4097 bytes, at most 4096 are allowed"},
}

// A badCall is a raw gRPC call: the framed body, and headers in pairs that replace the valid ones.
type badCall struct {
	frame   []byte
	headers []string
}

// badFrame returns a gRPC frame: compression flag, length, message.
func badFrame(compressed byte, length int, msg string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(length)), msg...)
}

// badCalls are calls that grpc-go itself refuses.
var badCalls = []badInput{
	{"compression: unknown", badCall{badFrame(1, 1, "x"), []string{"Grpc-Encoding", "acme"}}, codes.Unimplemented,
		`Decompressor is not installed for grpc-encoding "acme"`},
	{"compression: another encoding than announced", badCall{badFrame(1, 1, "x"), []string{"Grpc-Encoding", "gzip"}},
		codes.Unimplemented, "compressed requests are not accepted"},
	{"compression: none was named", badCall{badFrame(1, 1, "x"), nil}, codes.Internal,
		"compressed flag set with identity or empty encoding"},
	{"length: more than allowed", badCall{badFrame(0, 8193, "x"), nil}, codes.ResourceExhausted,
		"larger than max (8193 vs. 8192)"},
	{"length: more than there is", badCall{badFrame(0, 100, "x"), nil}, codes.Internal, "unexpected EOF"},
	{"content type: another", badCall{nil, []string{"Content-Type", "text/plain"}}, codes.InvalidArgument,
		`invalid gRPC request content-type "text/plain"`},
}

// badResponses are responses of an origin. INVALID_ARGUMENT means a NACK on a stream that stays open. CANCELLED
// means that the response cannot be NACKed: the relay logs the reason, and replaces the stream.
var badResponses = []badInput{
	{"invalid bytes", wireMessage{"", strings.Repeat("\xff", 100)}, codes.Canceled,
		"malformed message: response at byte 0 of 100"},
	{"more bytes than allowed", badResponse("resources", strings.Repeat("\xff", 1<<20)), codes.Canceled,
		"larger than max ("},
	{"a field that is cut off", badResponse("", badCut), codes.InvalidArgument,
		"malformed message: response at byte 58 of 60"},
	{"type_url: none", wireMessage{"nonce", "bad", "resources", badCluster("a")}, codes.Canceled,
		"malformed message: no type URL"},
	{"type_url: not UTF-8", wireMessage{"type_url", "\xff", "nonce", "bad"}, codes.Canceled,
		`type URL \"\\xff\" is not UTF-8`},
	{"nonce: none", badRequest("removed_resources", "b"), codes.OK, ""},
	{"nonce: none, and a fault", badRequest("resources", badCluster("")), codes.Canceled, "resource without a name"},
	{"nonce: not UTF-8", badRequest("nonce", "\xff"), codes.Canceled, `nonce \"\\xff\" is not UTF-8`},
	{"system_version_info: not UTF-8", badResponse("system_version_info", "\xff"), codes.InvalidArgument,
		`system version "\xff" is not UTF-8`},
	{"control_plane: invalid bytes", badResponse("control_plane", "\xff"), codes.InvalidArgument,
		"malformed message: control plane"},
	{"control_plane: not UTF-8", badResponse("removed_resources", "b", "control_plane", "\x0a\x01\xff"), codes.OK, ""},

	{"resources: twice the same name", badResponse("resources", badCluster("b"), "resources", badCluster("b")),
		codes.InvalidArgument, `duplicate resource name "b"`},
	{"resources: twice the same long name",
		badResponse("resources", badCluster(strings.Repeat("n", 100_000)), "resources",
			badCluster(strings.Repeat("n", 100_000))), codes.InvalidArgument, `duplicate resource name "nnn`},
	{"resources: no name", badResponse("resources", badCluster("b"), "resources", badCluster("")), codes.InvalidArgument,
		`resource without a name, type "` + typeCDS + `"`},
	{"resources: two names",
		badResponse("resources",
			badResource("name", "b", "resource_name", badPart(&discoverypb.ResourceName{}, "name", "c"))),
		codes.InvalidArgument, `resource with both name "b" and resource_name "c"`},
	{"resources: another type", badResponse("resources", badResource("name", "b", "resource", badAny(typeLDS))),
		codes.InvalidArgument,
		`resource of another type: "` + typeLDS + `" in a response of type "` + typeCDS + `", name "b"`},
	{"resources: invalid bytes", badResponse("resources", badCluster("b"), "resources", "\xff"), codes.InvalidArgument,
		"malformed message: resource at byte 0 of 1"},
	{"resources: invalid bytes in the resource", badResponse("resources", badResource("name", "b", "resource", "\xff")),
		codes.InvalidArgument, "malformed message: body at byte 0 of 1"},
	{"resources: name not UTF-8", badResponse("resources", badCluster("\xff")), codes.InvalidArgument,
		`resource name "\xff" is not UTF-8`},
	{"resources: long name not UTF-8", badResponse("resources", badCluster(strings.Repeat("\xff", 100_000))),
		codes.InvalidArgument, "is not UTF-8"},
	{"resources: version not UTF-8", badResponse("resources", badResource("name", "b", "version", "\xff")),
		codes.InvalidArgument, `resource version "\xff" is not UTF-8`},
	{"resources: alias not UTF-8", badResponse("resources", badResource("name", "b", "aliases", "\xff")),
		codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"resources: invalid bytes as TTL", badResponse("resources", badResource("name", "b", "ttl", "\xff")),
		codes.InvalidArgument, "malformed message: resource"},
	{"resources: xdstp with a directive", badResponse("resources", badCluster("xdstp://x/a.B/c#d")),
		codes.InvalidArgument, `malformed xdstp name "xdstp://x/a.B/c#d": it has a directive`},
	{"resources: long xdstp", badResponse("resources", badCluster("xdstp://"+strings.Repeat("n", 100_000))),
		codes.InvalidArgument, "it has no resource type"},
	{"resources: alias xdstp without a type", badResponse("resources", badResource("name", "b", "aliases", "xdstp://x")),
		codes.InvalidArgument, `malformed xdstp name "xdstp://x": it has no resource type`},

	{"removed_resources: also a resource",
		badResponse("resources", badCluster("b"), "removed_resources", "a", "removed_resources", "b"), codes.InvalidArgument,
		`duplicate resource name "b", in removed_resources`},
	{"removed_resources: twice", badResponse("removed_resources", "a", "removed_resources", "a"), codes.InvalidArgument,
		`duplicate resource name "a", in removed_resources`},
	{"removed_resources: no name", badResponse("removed_resources", ""), codes.OK, ""},
	{"removed_resources: not UTF-8", badResponse("removed_resources", "\xff"), codes.InvalidArgument,
		`resource name "\xff" is not UTF-8`},
	{"removed_resources: xdstp without an id", badResponse("removed_resources", "xdstp://x/a.B"), codes.InvalidArgument,
		`malformed xdstp name "xdstp://x/a.B": it has no id`},
	{"removed_resource_names: invalid bytes", badResponse("removed_resource_names", "\xff"), codes.InvalidArgument,
		"malformed message: removed resource name"},
	{"removed_resource_names: also in removed_resources",
		badResponse("removed_resources", "a", "removed_resource_names", badPart(&discoverypb.ResourceName{}, "name", "a")),
		codes.InvalidArgument, `duplicate resource name "a", in removed_resources`},
	{"resource_errors: invalid bytes", badResponse("resource_errors", "\xff"), codes.InvalidArgument,
		"malformed message: resource error"},
	{"resource_errors: no name", badResponse("resources", badCluster("b"), "resource_errors", ""), codes.InvalidArgument,
		"resource without a name, in resource_errors"},
	{"resource_errors: also a resource",
		badResponse("resources", badCluster("a"), "resource_errors",
			badPart(&discoverypb.ResourceError{}, "resource_name", badPart(&discoverypb.ResourceName{}, "name", "a"))),
		codes.InvalidArgument, `duplicate resource name "a", in resource_errors`},
}

// Each surface refuses bad input with an error that names the field and the reason, and no other client is
// affected. TestR113_BadInput does this for polls, TestBadValues for variables.
func TestInput_Bad(t *testing.T) {
	t.Parallel()
	t.Run("aggregated stream", func(t *testing.T) { badOnStreams(t, badRequests, "") })
	t.Run("stream of one type", func(t *testing.T) { badOnStreams(t, badOfOneType, typeCDS) })
	for _, surface := range []struct {
		name string
		rows []badInput
		play func(badInput, *testing.T)
	}{
		{"call", badCalls, badInput.asCall},
		{"origin", badResponses, badInput.fromOrigin},
		{"file", badFiles, badInput.inFile},
		{"load reports", badReports, badInput.asReport},
		{"origin of load reports", badLoadRequests, badInput.fromLoadOrigin},
	} {
		t.Run(surface.name, func(t *testing.T) {
			for _, row := range surface.rows {
				t.Run(row.what, func(t *testing.T) { surface.play(row, t) })
			}
		})
	}
}

// check fails the test unless the peer got the code and message of the row. The message has a limited size,
// however large the input.
func (row badInput) check(t *testing.T, code codes.Code, message string) {
	t.Helper()
	const most = 2048
	if len(message) > most && code == codes.InvalidArgument {
		t.Errorf("%s: got a message of %d bytes, want at most %d", row.what, len(message), most)
	}
	if code != row.code || !strings.Contains(message, row.message) {
		t.Errorf("%s: got %v, %s\nwant %v, …%s…", row.what, code, message, row.code, row.message)
	}
}

// otherClients returns served clients of both variants, on conn and on connections of their own. The returned
// function checks that a change reaches each.
func otherClients(t *testing.T, o *relaytest.Origin, r *running, conn *grpc.ClientConn) (served func()) {
	t.Helper()
	change := 0
	put := func() { o.Put(domainRoute("other", strconv.Itoa(change))) }
	put()
	var clients []*relaytest.Client
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		for _, conn := range []*grpc.ClientConn{conn, r.Conn()} {
			c := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeRDS, "other")
			recvAndAck(t, c, typeRDS, "other")
			clients = append(clients, c)
		}
	}
	return func() {
		t.Helper()
		change++
		put()
		for _, c := range clients {
			recvAndAck(t, c, typeRDS, "other")
		}
	}
}

// badOnStreams sends each row on streams of one relay, in each variant that has its fields.
func badOnStreams(t *testing.T, rows []badInput, typeURL string) {
	sent := make(map[string]bool)
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				r := start(t, o, badLimits...)
				conn := r.Conn()
				served := otherClients(t, o, r, conn)
				for _, row := range rows {
					bad, ok := row.input.(wireMessage).in(v).encode(newRequest(v, "", ""))
					if !ok {
						continue
					}
					sent[row.what] = true
					for _, begun := range []bool{false, true} {
						row.onStream(t, r, v, rawStream(t, conn, v.Method(typeURL)), bad, begun)
						served()
						sleep(time.Second) // no limit of requests per second applies
					}
				}
			})
		})
	}
	for _, row := range rows {
		if !sent[row.what] {
			t.Errorf("%s: no variant has these fields", row.what)
		}
	}
}

// onStream sends the row as the first request of a stream, or as a later one of a stream that is served.
func (row badInput) onStream(t *testing.T, r *running, v relaytest.Variant, rpc grpc.ClientStream, bad []byte, begun bool) {
	t.Helper()
	if begun {
		subscribeAndRecv(t, rpc, v, typeCDS)
	}
	mark := r.Log.Len()
	if err := rpc.SendMsg(bad); err != nil {
		t.Fatalf("%s: %v", row.what, err)
	}
	if row.code == codes.OK {
		subscribeAndRecv(t, rpc, v, typeCDS)
		row.check(t, codes.OK, r.Log.String()[mark:])
		return
	}
	st := status.Convert(readToEnd(rpc))
	row.check(t, st.Code(), st.Message())
}

// in replaces field names that differ in a variant.
func (m wireMessage) in(v relaytest.Variant) wireMessage {
	renamed := slices.Clone(m)
	for i := 0; i < len(m) && v == relaytest.Delta; i += 2 {
		switch m[i] {
		case "resource_names", "resource_locators":
			renamed[i] += "_subscribe"
		}
	}
	return renamed
}

// subscribeAndRecv subscribes to the cluster a and waits for a response.
func subscribeAndRecv(t *testing.T, rpc grpc.ClientStream, v relaytest.Variant, typeURL string) {
	t.Helper()
	good, err := proto.Marshal(newRequest(v, typeURL, "", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := rpc.SendMsg(good); err != nil {
		t.Fatal(err)
	}
	var got []byte
	if err := rpc.RecvMsg(&got); err != nil {
		t.Fatalf("no response to a valid request: %v", err)
	}
}

// readToEnd reads until the stream ends, and returns its status.
func readToEnd(rpc grpc.ClientStream) error {
	for {
		var got []byte
		if err := rpc.RecvMsg(&got); err != nil {
			return err
		}
	}
}

// asCall makes the row's call while other clients are served.
func (row badInput) asCall(t *testing.T) {
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
		r := start(t, o, badLimits...)
		served := otherClients(t, o, r, r.Conn())
		call := row.input.(badCall)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.Target+v.Method(""),
			bytes.NewReader(call.frame))
		if err != nil {
			t.Fatal(err)
		}
		for pair := range slices.Chunk(append([]string{"Content-Type", "application/grpc", "Te", "trailers"},
			call.headers...), 2) {
			req.Header.Set(pair[0], pair[1])
		}
		resp, err := restPoller(t, &running{Relay: &instance.Relay{DialREST: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.Target)
		}}}, true).http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil { // trailers follow the body
			t.Fatal(err)
		}
		_ = resp.Body.Close() // the body was read completely
		header := resp.Trailer
		if resp.Header.Get("Grpc-Status") != "" {
			header = resp.Header
		}
		code, err := strconv.Atoi(header.Get("Grpc-Status"))
		if err != nil {
			t.Fatalf("no Grpc-Status in %v", header)
		}
		row.check(t, codes.Code(code), header.Get("Grpc-Message"))
		served()
	}
}

// fromOrigin has the origin send the row's response to a relay whose clients have the cluster a.
func (row badInput) fromOrigin(t *testing.T) {
	bad, ok := row.input.(wireMessage).encode(&discoverypb.DeltaDiscoveryResponse{})
	if !ok {
		t.Fatal("DeltaDiscoveryResponse lacks a field of the row")
	}
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		good := relaytest.Cluster("a")
		o.Put(good)
		r := start(t, o, badLimits...)
		served := otherClients(t, o, r, r.Conn())
		var clients []*relaytest.Client
		join := func(v relaytest.Variant) {
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(typeCDS, "*")
			clients = append(clients, c)
		}
		join(relaytest.SotW)
		join(relaytest.Delta)
		sleep(time.Minute)
		s := o.Accept(t.Context())
		s.SendBytes(bad)
		synctest.Wait()
		code, message := reactionTo(s), r.Log.String()
		if code == codes.InvalidArgument {
			message = s.State().Requests[len(s.State().Requests)-1].Message.GetErrorDetail().GetMessage()
		}
		row.check(t, code, message)
		time.Sleep(time.Minute) // until the relay has reconnected
		join(relaytest.SotW)
		join(relaytest.Delta)
		synctest.Wait()
		for i, c := range clients {
			if n := len(c.Responses()); n != 1 || c.State().Digest(typeCDS, "a") != relaytest.DigestOf(good) ||
				len(c.State()[typeCDS]) != 1 {
				t.Errorf("client %d got %v, want one response with the cluster a", i, c.Responses())
			}
		}
		served()
	})
}

// reactionTo returns the relay's reaction to the last response: CANCELLED if it ended the stream, the code of its
// NACK, or OK.
func reactionTo(s *relaytest.OriginStream) codes.Code {
	st := s.State()
	last := st.Requests[len(st.Requests)-1].Message
	switch {
	case st.Ended:
		return codes.Canceled
	case last.GetErrorDetail() != nil && last.GetResponseNonce() == "bad":
		return codes.Code(last.GetErrorDetail().GetCode())
	default:
		return codes.OK
	}
}
