package downstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// A pollService serves polls over REST.
type pollService struct{ *Server }

// restPath is the prefix of the path of every poll.
const restPath = "/v3/discovery:"

// restTypes are the types that have a path, by its suffix (R113).
var restTypes = map[string]string{
	"listeners":         wire.ListenerType,
	"clusters":          wire.ClusterType,
	"endpoints":         wire.EndpointType,
	"routes":            wire.RouteType,
	"scoped-routes":     wire.ScopedRouteType,
	"secrets":           wire.SecretType,
	"runtime":           wire.RuntimeType,
	"extension_configs": wire.ExtensionConfigType,
}

// restType returns the type of a poll.
func restType(r *http.Request) (typeURL string, err error) {
	name, ok := strings.CutPrefix(r.URL.Path, restPath)
	if typeURL = restTypes[name]; !ok || typeURL == "" {
		return "", restErrorf(http.StatusNotFound, codes.NotFound,
			"no such path %.200q: polls go to %s with one of %s; aggregated and Delta xDS are served over gRPC only",
			r.URL.Path, restPath, strings.Join(slices.Sorted(maps.Keys(restTypes)), ", "))
	}
	if r.Method != http.MethodPost {
		return "", restErrorf(http.StatusMethodNotAllowed, codes.Unimplemented, "method %.20q: a poll is a POST", r.Method)
	}
	return typeURL, nil
}

// MaxHold is the longest time for which a poll is held.
const MaxHold = 30 * time.Second

const (
	// defaultHold is shorter than the second that an Envoy waits by default.
	defaultHold = 800 * time.Millisecond

	// holdMargin is how long before the client's timeout the answer is sent.
	holdMargin = 100 * time.Millisecond

	// maxRESTBody bounds the body of a poll, in bytes.
	maxRESTBody = 4 << 20
)

// timeoutHeader has the timeout of an Envoy, in milliseconds.
const timeoutHeader = "X-Envoy-Expected-Rq-Timeout-Ms"

// A restRequest is the request of a poll.
type restRequest struct {
	wire.Request
	nodeLabel string    // of the node, for logs
	deadline  time.Time // when it is answered at the latest
}

// The bounds of JSON values in a body, names not counted, and how many bytes each takes once it is decoded.
const (
	maxRESTValues  = 10_000
	maxRESTNesting = guard.MaxNodeDepth
	restValueBytes = 128
)

// read reads a poll, and charges for its memory. Errors are refusals, or gRPC statuses.
func (s pollService) readRequest(w http.ResponseWriter, r *http.Request, began time.Time,
	memory wire.Memory) (req restRequest, err error) {
	typeURL, err := restType(r)
	if err != nil {
		return req, err
	}
	hold, err := holdTime(r.Header)
	if err != nil {
		return req, err
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return req, restErrorf(http.StatusUnsupportedMediaType, codes.InvalidArgument,
			"content-encoding %.20q: bodies of polls are not compressed", coding)
	}
	req.deadline = began.Add(hold)
	body, err := wire.ReadAll(http.MaxBytesReader(w, r.Body, maxRESTBody), maxRESTBody, memory)
	if err != nil {
		return req, bodyError(err)
	}
	done, err := s.guard.Turn(r.Context(), s.cfg.PeerName(guard.PeerOfPoll(r)), len(body))
	if err != nil {
		return req, err
	}
	defer done()
	if err := s.cfg.checkBody(scanBody(body), memory); err != nil {
		return req, err
	}
	req.Limits = wire.Limits{Parameters: s.cfg.DynamicParameters}
	return req, req.parse(body, typeURL, r.URL.Path)
}

// checkBody rejects a body whose Node is too large or that has too many values, and charges for what is decoded of it.
func (c *Config) checkBody(s *bodyScan, memory wire.Memory) error {
	node := c.CheckNode(guard.RawNode{Size: s.nodeBytes})
	switch most := c.MaxNames + maxRESTValues; {
	case s.nodeValues > maxJSONPerNodeValue*guard.MaxNodeValues:
		return guard.TooManyValues()
	case node != nil:
		return node
	case s.nesting > maxRESTNesting:
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument,
			"the body is nested %d times, at most %d are allowed", s.nesting, maxRESTNesting)
	case s.values > most:
		return restErrorf(http.StatusRequestEntityTooLarge, codes.ResourceExhausted,
			"the body has %d values in JSON, at most %d are allowed", s.values, most)
	}
	return memory.Hold(2*len(s.body) + s.values*restValueBytes)
}

// parse decodes the body of a poll for a type.
func (r *restRequest) parse(body []byte, typeURL, path string) error {
	msg := new(discoverypb.DiscoveryRequest)
	if err := unmarshalOptions.Unmarshal(body, msg); err != nil {
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "the body is not a DiscoveryRequest in JSON: %s",
			parseErrorText(err))
	}
	switch {
	case msg.Node == nil:
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument,
			`node is missing: each poll says whose it is, such as "node": {"id": "my-envoy"}`)
	case msg.TypeUrl != "" && msg.TypeUrl != typeURL:
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "type_url %.200q: %s serves %q", msg.TypeUrl, path,
			typeURL)
	}
	r.nodeLabel, msg.TypeUrl = guard.NodeLabel(msg.Node), typeURL
	encoded, err := proto.Marshal(msg)
	if err == nil {
		err = r.Decode(encoded)
	}
	if err != nil {
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "the body cannot be a DiscoveryRequest: %v", err)
	}
	return nil
}

// holdOf returns how long a poll may be held, by its headers.
func holdTime(h http.Header) (time.Duration, error) {
	text := h.Get(timeoutHeader)
	if text == "" {
		return defaultHold, nil
	}
	ms, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, restErrorf(http.StatusBadRequest, codes.InvalidArgument,
			"header %s is %.20q: a whole number of milliseconds is allowed",
			strings.ToLower(timeoutHeader), text)
	}
	const most = uint64((MaxHold + holdMargin) / time.Millisecond)
	return max(time.Duration(min(ms, most))*time.Millisecond-holdMargin, 0), nil
}

// refuseBody returns the refusal for a body that could not be read.
func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return restErrorf(http.StatusRequestEntityTooLarge, codes.ResourceExhausted,
			"the body has more than %d bytes, as many as allowed", tooLarge.Limit)
	}
	if _, limit := guard.LimitOf(err); limit {
		return err
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return restErrorf(http.StatusRequestTimeout, codes.DeadlineExceeded, "the body did not come in time")
	}
	return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "read the body: %v", err)
}

// tolerant reads the JSON of clients that may be newer than the relay.
var unmarshalOptions = protojson.UnmarshalOptions{DiscardUnknown: true, AllowPartial: true, Resolver: emptyResolver{}}

// unread resolves every type to a message without fields: the relay does not read what is in an Any.
type emptyResolver struct{}

func (emptyResolver) FindMessageByName(protoreflect.FullName) (protoreflect.MessageType, error) {
	return new(discoverypb.AdsDummy).ProtoReflect().Type(), nil
}

func (u emptyResolver) FindMessageByURL(string) (protoreflect.MessageType, error) {
	return u.FindMessageByName("")
}

func (emptyResolver) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

func (emptyResolver) FindExtensionByNumber(protoreflect.FullName,
	protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// tidy returns the text of a parser's error without the parser's name and in a stable form: protojson varies its
// blanks.
func parseErrorText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}

// A refusal is the error of a poll: the HTTP status, and the google.rpc.Status in its body.
type restError struct {
	status  int
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

func (r *restError) Error() string { return r.Message }

func restErrorf(status int, code codes.Code, format string, args ...any) error {
	return &restError{status, code, fmt.Sprintf(format, args...)}
}

// statusClientClosed is the status of a poll whose client closed its side meanwhile; few clients read it.
const statusClientClosed = 499

// httpStatus maps gRPC codes to HTTP statuses, as google.rpc.Code defines it.
var httpStatus = map[codes.Code]int{
	codes.Canceled:          statusClientClosed,
	codes.InvalidArgument:   http.StatusBadRequest,
	codes.Unauthenticated:   http.StatusUnauthorized,
	codes.PermissionDenied:  http.StatusForbidden,
	codes.NotFound:          http.StatusNotFound,
	codes.ResourceExhausted: http.StatusTooManyRequests,
	codes.Unimplemented:     http.StatusNotImplemented,
	codes.Unavailable:       http.StatusServiceUnavailable,
}

// refusalOf returns the refusal that a poll is sent for an error.
func restErrorOf(err error) *restError {
	if r, ok := errors.AsType[*restError](err); ok {
		return r
	}
	st := status.Convert(err)
	code, ok := httpStatus[st.Code()]
	if !ok {
		code = http.StatusInternalServerError
	}
	return &restError{code, st.Code(), st.Message()}
}

// writeRefusal answers a poll with an error, and returns the HTTP status.
func writeRESTError(w http.ResponseWriter, err error) int {
	r := restErrorOf(err)
	switch r.status {
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	body, _ := json.Marshal(r)         // a number and a text: never fails
	_, _ = w.Write(append(body, '\n')) // the client has left
	return r.status
}
