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
)

// A badInput is something that a peer must not say.
type badInput struct {
	what  string
	input any // as the surface takes it

	// What the peer is told: the status of its stream, or of a refusal. OK is for
	// what the protocol has the relay bear.
	code codes.Code

	// A part of the words that come with the code; of the log, where there is nobody
	// to tell.
	says string
}

// A wireMessage is a message as it is on the wire: the name of a field, its bytes, the
// next name, and so on. A field "" stands for bytes that are no field.
type wireMessage []string

// as encodes the message as one of a type. It reports false if the type lacks a
// field.
func (m wireMessage) as(like proto.Message) (msg []byte, ok bool) {
	known := like.ProtoReflect().Descriptor().Fields()
	for pair := range slices.Chunk(m, 2) {
		f := known.ByName(protoreflect.Name(pair[0]))
		switch {
		case pair[0] == "":
			msg = append(msg, pair[1]...)
		case f != nil:
			msg = append(msg, stringField(f.Number(), pair[1])...)
		default:
			return nil, false
		}
	}
	return msg, true
}

// badRequest and badAnswer are messages about clusters: of a client, and of an origin.
func badRequest(fields ...string) wireMessage {
	return append(wireMessage{"type_url", typeCDS}, fields...)
}

func badAnswer(fields ...string) wireMessage {
	return append(wireMessage{"type_url", typeCDS, "nonce", "bad"}, fields...)
}

// badPart is a message inside another one.
func badPart(like proto.Message, pairs ...string) string {
	msg, ok := wireMessage(pairs).as(like)
	if !ok {
		panic("no such field: " + strings.Join(pairs, " "))
	}
	return string(msg)
}

func badResource(pairs ...string) string { return badPart(&discoverypb.Resource{}, pairs...) }

// badCluster is a resource that is in order, but for its name.
func badCluster(name string) string {
	return badResource("name", name, "version", "2", "resource", badAny(typeCDS))
}

func badAny(typeURL string) string {
	return badPart(&anypb.Any{}, "type_url", typeURL)
}

// Limits that the rows of the table are over.
var badLimits = []string{
	"TENDER_MAX_NAME_BYTES=100B", "TENDER_MAX_NAMES=3", "TENDER_MAX_REQUEST_BYTES=4KiB", "TENDER_MAX_ORIGIN_RESPONSE_BYTES=1MiB",
}

const (
	badCut  = "\x0a\x7f" // a field that is cut off
	badLong = 101        // bytes of a name that is too long
)

// badRequests are requests on a stream, by names that both variants' fields have, or
// those of one: a row is sent in the variants that have all of its fields.
var badRequests = []badInput{
	{"nothing", wireMessage{}, codes.InvalidArgument, "type_url is empty: on an aggregated stream each request names its type"},
	{"rubbish", wireMessage{"", strings.Repeat("\xff", 100)}, codes.InvalidArgument, "malformed request at byte 0 of 100"},
	{"a field that is cut off", badRequest("", badCut), codes.InvalidArgument, "malformed request at byte 53 of 55"},
	{"a tag that is cut off", wireMessage{"", "\xff"}, codes.InvalidArgument, "malformed request at byte 0 of 1"},
	{"field number 0", wireMessage{"", "\x00\x00"}, codes.InvalidArgument, "malformed request at byte 0 of 2"},
	{"the end of a group", wireMessage{"", "\x0c"}, codes.InvalidArgument, "malformed request at byte 0 of 1"},
	{"more bytes than allowed", badRequest("response_nonce", strings.Repeat("n", 4096)), codes.ResourceExhausted, "larger than max (4152 vs. 4096)"},

	{"type_url: none", wireMessage{"resource_names", "a"}, codes.InvalidArgument, "type_url is empty"},
	{"type_url: not UTF-8", wireMessage{"type_url", "\xff"}, codes.InvalidArgument, `type URL "\xff" is not UTF-8`},
	{"type_url: too long", wireMessage{"type_url", strings.Repeat("t", badLong)}, codes.InvalidArgument, "type_url of 101 bytes, at most 100 are allowed"},

	{"node: rubbish", badRequest("node", "\xff\xff"), codes.InvalidArgument, "node is not an envoy.config.core.v3.Node: "},
	{"node: id not UTF-8", badRequest("node", badPart(&corepb.Node{}, "id", "\xff")), codes.InvalidArgument, "contains invalid UTF-8"},
	{"node: too large", badRequest("node", badPart(&corepb.Node{}, "id", strings.Repeat("n", 4096))), codes.ResourceExhausted, "vs. 4096"},

	{"names: too long", badRequest("resource_names", strings.Repeat("n", badLong)), codes.InvalidArgument, `resource name "` + strings.Repeat("n", 64) + `"… of 101 bytes, at most 100 are allowed`},
	{"names: not UTF-8", badRequest("resource_names", "\xff"), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"names: xdstp without a type", badRequest("resource_names", "xdstp://authority"), codes.OK, `name=xdstp://authority err="malformed xdstp name`},
	{"names given up: too long", badRequest("resource_names_unsubscribe", strings.Repeat("n", badLong)), codes.InvalidArgument, "of 101 bytes, at most 100 are allowed"},
	{"names given up: not UTF-8", badRequest("resource_names_unsubscribe", "\xff"), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},

	{"locators: rubbish", badRequest("resource_locators", "\xff"), codes.InvalidArgument, "malformed message: resource locator"},
	{"locators: name not UTF-8", badRequest("resource_locators", badPart(&discoverypb.ResourceLocator{}, "name", "\xff")), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"locators: name too long", badRequest("resource_locators", badPart(&discoverypb.ResourceLocator{}, "name", strings.Repeat("n", badLong))), codes.InvalidArgument, "of 101 bytes, at most 100 are allowed"},
	{"locators: parameter cut off", badRequest("resource_locators", badPart(&discoverypb.ResourceLocator{}, "name", "a", "dynamic_parameters", badCut)), codes.InvalidArgument, "malformed message: dynamic parameter"},
	{"locators given up: rubbish", badRequest("resource_locators_unsubscribe", "\xff"), codes.InvalidArgument, "malformed message: resource locator"},

	{"initial_resource_versions: cut off", badRequest("initial_resource_versions", badCut), codes.InvalidArgument, "malformed message: initial resource version"},
	{"initial_resource_versions: not UTF-8", badRequest("initial_resource_versions", "\x0a\x01\xff"), codes.InvalidArgument, `initial resource version "\xff" is not UTF-8`},
	{"version_info: not UTF-8", badRequest("version_info", "\xff"), codes.InvalidArgument, `version "\xff" is not UTF-8`},

	{"error_detail: rubbish", badRequest("error_detail", "\xff"), codes.InvalidArgument, "malformed message: error detail"},
	{"error_detail: not UTF-8", badRequest("error_detail", "\x12\x01\xff"), codes.InvalidArgument, `error message "\xff" is not UTF-8`},

	{"response_nonce: not UTF-8", badRequest("response_nonce", "\xff"), codes.InvalidArgument, `nonce "\xff" is not UTF-8`},
	{"response_nonce: long and not UTF-8", badRequest("response_nonce", strings.Repeat("\xff", 4000)), codes.InvalidArgument, "is not UTF-8"},
	{"response_nonce: made up", badRequest("response_nonce", "4711"), codes.OK, ""},
	{"response_nonce: made up, in a refusal", badRequest("response_nonce", "4711", "error_detail", "\x12\x02no"), codes.OK, ""},
}

// badOfOneType are requests on a stream of clusters.
var badOfOneType = []badInput{
	{"type_url: another", wireMessage{"type_url", typeLDS}, codes.InvalidArgument, `type_url is "` + typeLDS + `": this stream serves "` + typeCDS + `" alone`},
	{"type_url: not UTF-8", wireMessage{"type_url", "\xff"}, codes.InvalidArgument, `type URL "\xff" is not UTF-8`},
	{"names: too long", wireMessage{"resource_names", strings.Repeat("n", badLong)}, codes.InvalidArgument, "of 101 bytes, at most 100 are allowed"},
}

// A badCall is a call as HTTP/2 has it: the body of a message, and headers in pairs
// that differ from those of gRPC.
type badCall struct {
	frame   []byte
	headers []string
}

// badFrame is a message of a call: a flag that says whether it is compressed, its
// length, its bytes.
func badFrame(compressed byte, length int, msg string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(length)), msg...)
}

// badCalls are calls that gRPC itself refuses.
var badCalls = []badInput{
	{"compression: unknown", badCall{badFrame(1, 1, "x"), []string{"Grpc-Encoding", "acme"}}, codes.Unimplemented, `Decompressor is not installed for grpc-encoding "acme"`},
	{"compression: not what it says", badCall{badFrame(1, 1, "x"), []string{"Grpc-Encoding", "gzip"}}, codes.Unimplemented, "compressed requests are not accepted (TENDER_REQUEST_COMPRESSION=off)"},
	{"compression: none was named", badCall{badFrame(1, 1, "x"), nil}, codes.Internal, "compressed flag set with identity or empty encoding"},
	{"length: more than allowed", badCall{badFrame(0, 4097, "x"), nil}, codes.ResourceExhausted, "larger than max (4097 vs. 4096)"},
	{"length: more than there is", badCall{badFrame(0, 100, "x"), nil}, codes.Internal, "unexpected EOF"},
	{"content type: another", badCall{nil, []string{"Content-Type", "text/plain"}}, codes.InvalidArgument, `invalid gRPC request content-type "text/plain"`},
}

// badResponses are what an origin may answer. Refused, with INVALID_ARGUMENT, it goes
// on; where there is nothing to refuse by, its stream is ended, and another one opened:
// CANCELLED, and the words are in the log.
var badResponses = []badInput{
	{"rubbish", wireMessage{"", strings.Repeat("\xff", 100)}, codes.Canceled, "malformed message: response at byte 0 of 100"},
	{"more bytes than allowed", badAnswer("resources", strings.Repeat("\xff", 1<<20)), codes.Canceled, "larger than max ("},
	{"a field that is cut off", badAnswer("", badCut), codes.InvalidArgument, "malformed message: response at byte 58 of 60"},
	{"type_url: none", wireMessage{"nonce", "bad", "resources", badCluster("a")}, codes.Canceled, "malformed message: no type URL"},
	{"type_url: not UTF-8", wireMessage{"type_url", "\xff", "nonce", "bad"}, codes.Canceled, `type URL \"\\xff\" is not UTF-8`},
	{"nonce: none", badRequest("removed_resources", "b"), codes.OK, ""},
	{"nonce: none, and a fault", badRequest("resources", badCluster("")), codes.Canceled, "resource without a name"},
	{"nonce: not UTF-8", badRequest("nonce", "\xff"), codes.Canceled, `nonce \"\\xff\" is not UTF-8`},
	{"system_version_info: not UTF-8", badAnswer("system_version_info", "\xff"), codes.InvalidArgument, `system version "\xff" is not UTF-8`},
	{"control_plane: rubbish", badAnswer("control_plane", "\xff"), codes.InvalidArgument, "malformed message: control plane"},
	{"control_plane: not UTF-8", badAnswer("control_plane", "\x0a\x01\xff"), codes.InvalidArgument, `control plane "\xff" is not UTF-8`},

	{"resources: twice the same name", badAnswer("resources", badCluster("b"), "resources", badCluster("b")), codes.InvalidArgument, `duplicate resource name "b"`},
	{"resources: twice the same long name", badAnswer("resources", badCluster(strings.Repeat("n", 100_000)), "resources", badCluster(strings.Repeat("n", 100_000))), codes.InvalidArgument, `duplicate resource name "nnn`},
	{"resources: no name", badAnswer("resources", badCluster("b"), "resources", badCluster("")), codes.InvalidArgument, `resource without a name, type "` + typeCDS + `"`},
	{"resources: two names", badAnswer("resources", badResource("name", "b", "resource_name", badPart(&discoverypb.ResourceName{}, "name", "c"))), codes.InvalidArgument, `resource with both name "b" and resource_name "c"`},
	{"resources: another type", badAnswer("resources", badResource("name", "b", "resource", badAny(typeLDS))), codes.InvalidArgument, `resource of another type: "` + typeLDS + `" in a response of type "` + typeCDS + `", name "b"`},
	{"resources: rubbish", badAnswer("resources", badCluster("b"), "resources", "\xff"), codes.InvalidArgument, "malformed message: resource at byte 0 of 1"},
	{"resources: rubbish in the body", badAnswer("resources", badResource("name", "b", "resource", "\xff")), codes.InvalidArgument, "malformed message: body at byte 0 of 1"},
	{"resources: name not UTF-8", badAnswer("resources", badCluster("\xff")), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"resources: long name not UTF-8", badAnswer("resources", badCluster(strings.Repeat("\xff", 100_000))), codes.InvalidArgument, "is not UTF-8"},
	{"resources: version not UTF-8", badAnswer("resources", badResource("name", "b", "version", "\xff")), codes.InvalidArgument, `resource version "\xff" is not UTF-8`},
	{"resources: alias not UTF-8", badAnswer("resources", badResource("name", "b", "aliases", "\xff")), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"resources: rubbish for a TTL", badAnswer("resources", badResource("name", "b", "ttl", "\xff")), codes.InvalidArgument, "malformed message: resource"},
	{"resources: xdstp with a directive", badAnswer("resources", badCluster("xdstp://x/a.B/c#d")), codes.InvalidArgument, `malformed xdstp name "xdstp://x/a.B/c#d": it has a directive`},
	{"resources: long xdstp", badAnswer("resources", badCluster("xdstp://"+strings.Repeat("n", 100_000))), codes.InvalidArgument, "it has no resource type"},
	{"resources: alias xdstp without a type", badAnswer("resources", badResource("name", "b", "aliases", "xdstp://x")), codes.InvalidArgument, `malformed xdstp name "xdstp://x": it has no resource type`},

	{"removed_resources: also a resource", badAnswer("resources", badCluster("b"), "removed_resources", "a", "removed_resources", "b"), codes.InvalidArgument, `duplicate resource name "b", in removed_resources`},
	{"removed_resources: twice", badAnswer("removed_resources", "a", "removed_resources", "a"), codes.InvalidArgument, `duplicate resource name "a", in removed_resources`},
	{"removed_resources: no name", badAnswer("removed_resources", ""), codes.OK, ""},
	{"removed_resources: not UTF-8", badAnswer("removed_resources", "\xff"), codes.InvalidArgument, `resource name "\xff" is not UTF-8`},
	{"removed_resources: xdstp without an id", badAnswer("removed_resources", "xdstp://x/a.B"), codes.InvalidArgument, `malformed xdstp name "xdstp://x/a.B": it has no id`},
	{"removed_resource_names: rubbish", badAnswer("removed_resource_names", "\xff"), codes.InvalidArgument, "malformed message: removed resource name"},
	{"removed_resource_names: also in removed_resources", badAnswer("removed_resources", "a", "removed_resource_names", badPart(&discoverypb.ResourceName{}, "name", "a")), codes.InvalidArgument, `duplicate resource name "a", in removed_resources`},
	{"resource_errors: rubbish", badAnswer("resource_errors", "\xff"), codes.InvalidArgument, "malformed message: resource error"},
	{"resource_errors: no name", badAnswer("resources", badCluster("b"), "resource_errors", ""), codes.InvalidArgument, "resource without a name, in resource_errors"},
	{"resource_errors: also a resource", badAnswer("resources", badCluster("a"), "resource_errors", badPart(&discoverypb.ResourceError{}, "resource_name", badPart(&discoverypb.ResourceName{}, "name", "a"))), codes.InvalidArgument, `duplicate resource name "a", in resource_errors`},
}

// Bad input on every surface is refused with an error that says what and why, and
// touches nobody but who sent it. Polls have such a table in TestR113_BadInput,
// variables in TestBadValues.
func TestInput_Bad(t *testing.T) {
	t.Parallel()
	for _, surface := range []struct {
		name string
		rows []badInput
		play func(badInput, *testing.T)
	}{
		{"aggregated stream", badRequests, func(row badInput, t *testing.T) { row.onStream(t, "") }},
		{"stream of one type", badOfOneType, func(row badInput, t *testing.T) { row.onStream(t, typeCDS) }},
		{"call", badCalls, badInput.asCall},
		{"origin", badResponses, badInput.fromOrigin},
		{"file", badFiles, badInput.inFile},
		{"load reports", badReports, badInput.asReport},
		{"origin of load reports", badAsks, badInput.fromLoadOrigin},
	} {
		t.Run(surface.name, func(t *testing.T) {
			for _, row := range surface.rows {
				t.Run(row.what, func(t *testing.T) { surface.play(row, t) })
			}
		})
	}
}

// check fails the test unless the peer was told what the row says, in words that are
// not many, however much it said.
func (row badInput) check(t *testing.T, code codes.Code, said string) {
	t.Helper()
	const most = 2048
	if len(said) > most && code == codes.InvalidArgument {
		t.Errorf("%d bytes of words, want at most %d", len(said), most)
	}
	if code != row.code || !strings.Contains(said, row.says) {
		t.Errorf("got %v, %s\nwant %v, …%s…", code, said, row.code, row.says)
	}
}

// bystanders returns clients that are served, of both variants, on a connection and
// beside it. The returned function checks that a change reaches them.
func bystanders(t *testing.T, o *relaytest.Origin, r *running, conn *grpc.ClientConn) (served func()) {
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

// onStream sends the row as the first request of a stream, and as one of a client that
// is served.
func (row badInput) onStream(t *testing.T, typeURL string) {
	sent := false
	defer func() {
		if !sent {
			t.Error("no variant has these fields")
		}
	}()
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		like := newRequest(v, "", "")
		bad, ok := row.input.(wireMessage).in(v).as(like)
		if !ok {
			continue
		}
		sent = true
		t.Run(v.String(), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				r := start(t, o, badLimits...)
				conn := r.Conn()
				served := bystanders(t, o, r, conn)
				for _, begun := range []bool{false, true} {
					rpc := rawStream(t, conn, v.Method(typeURL))
					if begun {
						badExchange(t, rpc, v, typeCDS)
					}
					if err := rpc.SendMsg(bad); err != nil {
						t.Fatal(err)
					}
					if row.code == codes.OK {
						badExchange(t, rpc, v, typeCDS)
						row.check(t, codes.OK, r.Log.String())
					} else {
						st := status.Convert(badEnd(rpc))
						row.check(t, st.Code(), st.Message())
					}
					served()
				}
			})
		})
	}
}

// in renames the fields that have another name in a variant.
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

// badExchange asks for clusters by name, and reads until they come.
func badExchange(t *testing.T, rpc grpc.ClientStream, v relaytest.Variant, typeURL string) {
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
		t.Fatalf("a good request: %v", err)
	}
}

// badEnd reads until the stream ends.
func badEnd(rpc grpc.ClientStream) error {
	for {
		var got []byte
		if err := rpc.RecvMsg(&got); err != nil {
			return err
		}
	}
}

// asCall makes the call of the row beside a client's streams.
func (row badInput) asCall(t *testing.T) {
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
		r := start(t, o, badLimits...)
		served := bystanders(t, o, r, r.Conn())
		call := row.input.(badCall)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.Target+v.Method(""), bytes.NewReader(call.frame))
		if err != nil {
			t.Fatal(err)
		}
		for pair := range slices.Chunk(append([]string{"Content-Type", "application/grpc", "Te", "trailers"}, call.headers...), 2) {
			req.Header.Set(pair[0], pair[1])
		}
		resp, err := restPoller(t, &running{Relay: &relaytest.Relay{DialREST: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.Target)
		}}}, true).http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil { // the trailers come after it
			t.Fatal(err)
		}
		_ = resp.Body.Close() // it was read to its end
		told := resp.Trailer
		if resp.Header.Get("Grpc-Status") != "" {
			told = resp.Header
		}
		code, err := strconv.Atoi(told.Get("Grpc-Status"))
		if err != nil {
			t.Fatalf("no status in %v", told)
		}
		row.check(t, codes.Code(code), told.Get("Grpc-Message"))
		served()
	}
}

// fromOrigin has an origin say what the row says, to a relay whose clients have the
// cluster a.
func (row badInput) fromOrigin(t *testing.T) {
	bad, ok := row.input.(wireMessage).as(&discoverypb.DeltaDiscoveryResponse{})
	if !ok {
		t.Fatal("an origin has no such fields")
	}
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		good := relaytest.Cluster("a")
		o.Put(good)
		r := start(t, o, badLimits...)
		served := bystanders(t, o, r, r.Conn())
		var clients []*relaytest.Client
		join := func(v relaytest.Variant) {
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(typeCDS, "*")
			clients = append(clients, c)
		}
		join(relaytest.SotW)
		join(relaytest.Delta)
		time.Sleep(time.Minute)
		synctest.Wait()
		s := o.Accept(t.Context())
		s.SendBytes(bad)
		synctest.Wait()
		code, said := badTaken(s), r.Log.String()
		if code == codes.InvalidArgument {
			said = s.State().Requests[len(s.State().Requests)-1].Message.GetErrorDetail().GetMessage()
		}
		row.check(t, code, said)
		time.Sleep(time.Minute) // the time to come back
		join(relaytest.SotW)
		join(relaytest.Delta)
		synctest.Wait()
		for i, c := range clients {
			if n := len(c.Responses()); n != 1 || c.State().Digest(typeCDS, "a") != relaytest.DigestOf(good) || len(c.State()[typeCDS]) != 1 {
				t.Errorf("client %d was sent %v, want the one cluster, once", i, c.Responses())
			}
		}
		served()
	})
}

// badTaken returns how the relay took what was said on a stream last.
func badTaken(s *relaytest.OriginStream) codes.Code {
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
