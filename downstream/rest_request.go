package downstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream/guard"
)

// maxJSONPerNodeValue is the largest number of JSON values in the encoding of one value of a Node.
const maxJSONPerNodeValue = 5

// A bodyScan scans a DiscoveryRequest in JSON before it is decoded, because decoding takes many times the memory of the
// body. Keys of objects count as values. The scan ignores invalid JSON, which the decoder refuses.
type bodyScan struct {
	body   []byte
	at     int // index of the next byte
	depth  int // open brackets
	nodeAt int // index where the Node starts; negative outside the Node

	detail bool // the current string belongs to the error detail

	nodeBytes, nodeValues int // size of the Node; its extensions count as one value
	values, nesting       int // size of the body
}

// The kinds of bytes in JSON outside strings.
const (
	jsonWord = iota // part of a number, true, false or null
	jsonSpace
	jsonQuote
	jsonOpens
	jsonCloses
)

var jsonBytes = [256]byte{
	' ': jsonSpace, '\t': jsonSpace, '\n': jsonSpace, '\r': jsonSpace, ',': jsonSpace, ':': jsonSpace,
	'"': jsonQuote, '{': jsonOpens, '[': jsonOpens, '}': jsonCloses, ']': jsonCloses,
}

// scanBody scans a body. It overwrites the extensions of the Node, which the relay does not read, with an empty list. It
// makes the texts of the error detail UTF-8.
func scanBody(body []byte) *bodyScan {
	s := &bodyScan{body: body, nodeAt: -1}
	for previous := byte(jsonSpace); s.at < len(body); {
		previous = s.scanNext(previous)
	}
	return s
}

// scanNext scans a string or one byte, and returns its kind. It is passed the kind of the previous byte.
func (s *bodyScan) scanNext(previous byte) (kind byte) {
	c := s.body[s.at]
	switch kind = jsonBytes[c]; kind {
	case jsonQuote:
		s.count()
		s.scanString()
		return kind
	case jsonOpens:
		s.count()
		s.depth++
		s.nesting = max(s.nesting, s.depth)
	case jsonCloses:
		s.depth--
	case jsonWord:
		if previous != jsonWord {
			s.count()
		}
	}
	if s.depth < 1 || s.depth == 1 && c == ',' {
		s.endField()
	}
	s.at++
	return kind
}

// endField ends the field of the request that the scan has passed.
func (s *bodyScan) endField() {
	if s.nodeAt >= 0 {
		s.nodeBytes += s.at - s.nodeAt
		s.nodeAt = -1
	}
	s.detail = false
}

// count counts a value.
func (s *bodyScan) count() {
	if s.values++; s.nodeAt >= 0 {
		s.nodeValues++
	}
}

// scanString skips a string. If it is the key of the Node, it also skips the colon, and the Node starts there. If it is
// the key of the Node's extensions, it overwrites their list.
func (s *bodyScan) scanString() {
	begin := s.at
	s.at = endOfString(s.body, begin)
	key, next := s.body[begin:s.at], s.skipSpace()
	if s.detail {
		maskInvalid(key)
	}
	if next == len(s.body) || s.body[next] != ':' {
		return
	}
	s.at = next + 1
	switch {
	case s.depth == 1 && isKey(key, "node"):
		s.nodeAt = s.at
	case s.depth == 1 && (isKey(key, "error_detail") || isKey(key, "errorDetail")):
		s.detail = true
	case s.depth == 2 && s.nodeAt >= 0 && isKey(key, "extensions"):
		s.at = s.skipSpace()
		s.blankList()
	}
}

// maskInvalid overwrites the bytes of a text that are not UTF-8: Envoy truncates error messages inside characters.
func maskInvalid(text []byte) {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			text[0] = '?'
		}
		text = text[size:]
	}
}

// blankList overwrites the list that starts at s.at with an empty list and spaces, and skips it.
func (s *bodyScan) blankList() {
	begin, depth := s.at, 0
	if begin == len(s.body) || s.body[begin] != '[' {
		return // invalid; the decoder refuses it
	}
	for at := begin; at < len(s.body); at++ {
		switch jsonBytes[s.body[at]] {
		case jsonQuote:
			at = endOfString(s.body, at) - 1
		case jsonOpens:
			depth++
		case jsonCloses:
			depth--
		}
		if depth == 0 {
			s.count()
			s.nesting = max(s.nesting, s.depth+1)
			s.at = at + 1
			copy(s.body[begin:s.at], append([]byte("[]"), bytes.Repeat([]byte{' '}, s.at-begin-2)...))
			return
		}
	}
}

// skipSpace returns the index of the next byte that is not white space.
func (s *bodyScan) skipSpace() int {
	return len(s.body) - len(bytes.TrimLeft(s.body[s.at:], " \t\n\r"))
}

// endOfString returns the index after the string that starts at an index.
func endOfString(body []byte, at int) int {
	for at++; at < len(body); at++ {
		switch body[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(body)
}

// isKey reports whether a quoted JSON string equals text.
func isKey(quoted []byte, text string) bool {
	if !bytes.ContainsRune(quoted, '\\') {
		return len(quoted) == len(text)+2 && string(quoted[1:len(quoted)-1]) == text
	}
	var key string
	return json.Unmarshal(quoted, &key) == nil && key == text
}

// A pollService serves REST polls.
type pollService struct{ *Server }

// restPath is the path prefix of all polls.
const restPath = "/v3/discovery:"

// restTypes are the type URLs that can be polled, by path suffix (R113).
var restTypes = func() map[string]string {
	byPath := make(map[string]string)
	for i := range schema.ResourceTypes {
		if t := &schema.ResourceTypes[i]; t.Path != "" {
			byPath[t.Path] = t.URL
		}
	}
	return byPath
}()

// restType returns the type URL of a poll.
func restType(r *http.Request) (typeURL string, err error) {
	name, ok := strings.CutPrefix(r.URL.Path, restPath)
	if typeURL = restTypes[name]; !ok || typeURL == "" {
		return "", restErrorf(http.StatusNotFound, codes.NotFound,
			"no such path %.200q: POST to %s with one of %s; aggregated and Delta xDS need gRPC",
			r.URL.Path, restPath, strings.Join(slices.Sorted(maps.Keys(restTypes)), ", "))
	}
	if r.Method != http.MethodPost {
		return "", restErrorf(http.StatusMethodNotAllowed, codes.Unimplemented, "method %.20q: use POST", r.Method)
	}
	return typeURL, nil
}

// MaxHold is the longest time for which the response to a poll is held.
const MaxHold = 30 * time.Second

const (
	// defaultHold is shorter than the default request timeout of Envoy, which is 1s.
	defaultHold = 800 * time.Millisecond

	// holdMargin is how long before the client's timeout the response is sent.
	holdMargin = 100 * time.Millisecond

	// maxRESTBody limits the body of a poll, in bytes.
	maxRESTBody = 4 << 20
)

// timeoutHeader is the header with Envoy's request timeout, in milliseconds.
const timeoutHeader = "X-Envoy-Expected-Rq-Timeout-Ms"

// A restRequest is the decoded request of a poll.
type restRequest struct {
	wire.Request
	nodeLabel string    // for logs
	deadline  time.Time // when the poll must be answered
}

// Limits of a body: JSON values besides names, and nesting. restValueBytes is the charge for the decoded form of a
// value.
const (
	maxRESTValues  = 10_000
	maxRESTNesting = guard.MaxNodeDepth
	restValueBytes = 128
)

// readRequest reads the request of a poll, and charges its memory. An error is a restError or a gRPC status.
func (s pollService) readRequest(
	w http.ResponseWriter, r *http.Request, began time.Time, memory wire.Memory,
) (req restRequest, err error) {
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
			"content-encoding %.20q: send the body uncompressed", coding)
	}
	req.deadline = began.Add(hold)
	body, err := readAll(http.MaxBytesReader(w, r.Body, maxRESTBody), memory)
	if err != nil {
		return req, bodyError(err)
	}
	done, err := s.guard.Turn(r.Context(), guard.PeerName(guard.PeerOfPoll(r)), len(body))
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

// firstBuffer is the size of the first buffer of readAll, in bytes.
const firstBuffer = 4 << 10

// readAll reads a body of at most maxRESTBody bytes. Memory is charged before it is allocated.
func readAll(body io.Reader, memory wire.Memory) (all []byte, err error) {
	for {
		if len(all) == cap(all) {
			size := min(max(2*cap(all), firstBuffer), maxRESTBody+1)
			if err := memory.Hold(size - cap(all)); err != nil {
				return nil, err
			}
			all = append(make([]byte, 0, size), all...)
		}
		n, err := body.Read(all[len(all):cap(all)])
		switch all = all[:len(all)+n]; err {
		case nil:
		case io.EOF:
			return all, nil
		default:
			return nil, err
		}
	}
}

// checkBody refuses a body whose Node is too large or that has too many values. It charges memory for the decoded body.
func (c *Config) checkBody(s *bodyScan, memory wire.Memory) error {
	nodeErr := guard.CheckNode(guard.RawNode{Size: s.nodeBytes})
	switch maxValues := c.MaxNames + maxRESTValues; {
	case s.nodeValues > maxJSONPerNodeValue*guard.MaxNodeValues:
		return guard.TooManyValues()
	case nodeErr != nil:
		return nodeErr
	case s.nesting > maxRESTNesting:
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument,
			"the body is nested %d times, at most %d are allowed", s.nesting, maxRESTNesting)
	case s.values > maxValues:
		return restErrorf(http.StatusRequestEntityTooLarge, codes.ResourceExhausted,
			"the body has %d values in JSON, at most %d are allowed", s.values, maxValues)
	}
	return memory.Hold(2*len(s.body) + s.values*restValueBytes)
}

// parse decodes the body of a poll of a type.
func (r *restRequest) parse(body []byte, typeURL, path string) error {
	msg := new(discoverypb.DiscoveryRequest)
	if err := unmarshalOptions.Unmarshal(body, msg); err != nil {
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "the body is not a DiscoveryRequest in JSON: %s",
			parseErrorText(err))
	}
	switch {
	case msg.Node == nil:
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument,
			`node is missing: each poll needs one, such as "node": {"id": "my-envoy"}`)
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
		return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "the body is not a valid DiscoveryRequest: %v", err)
	}
	return nil
}

// holdTime returns how long the response to a poll may be held, according to the headers.
func holdTime(h http.Header) (time.Duration, error) {
	text := h.Get(timeoutHeader)
	if text == "" {
		return defaultHold, nil
	}
	ms, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, restErrorf(http.StatusBadRequest, codes.InvalidArgument,
			"header %s is %.20q: use a whole number of milliseconds",
			strings.ToLower(timeoutHeader), text)
	}
	const maxMillis = uint64((MaxHold + holdMargin) / time.Millisecond)
	return max(time.Duration(min(ms, maxMillis))*time.Millisecond-holdMargin, 0), nil
}

// bodyError returns the error for a body that could not be read.
func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return restErrorf(http.StatusRequestEntityTooLarge, codes.ResourceExhausted,
			"the body has more than %d bytes", tooLarge.Limit)
	}
	if _, limit := guard.LimitOf(err); limit {
		return err
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return restErrorf(http.StatusRequestTimeout, codes.DeadlineExceeded, "timeout while reading the body")
	}
	return restErrorf(http.StatusBadRequest, codes.InvalidArgument, "read the body: %v", err)
}

// unmarshalOptions accept requests of clients that are newer than the relay.
var unmarshalOptions = protojson.UnmarshalOptions{DiscardUnknown: true, AllowPartial: true, Resolver: emptyResolver{}}

// An emptyResolver resolves every type to a message without fields, because the relay does not read the content of an
// Any.
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

func (emptyResolver) FindExtensionByNumber(
	protoreflect.FullName, protoreflect.FieldNumber,
) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// parseErrorText returns the text of an error of protojson in a stable form: without its prefix, and without the
// non-breaking spaces that protojson adds at random.
func parseErrorText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}

// A restError is the error of a poll: the HTTP status, and the google.rpc.Status for the body.
type restError struct {
	status  int
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

func (r *restError) Error() string { return r.Message }

// invalid reports whether the error means that the poll is invalid, and not that the client is slow or rate-limited.
func (r *restError) invalid() bool {
	switch r.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, statusClientClosed:
		return false
	default:
		return r.status < http.StatusInternalServerError
	}
}

// restErrorf returns a restError with a formatted message.
func restErrorf(status int, code codes.Code, format string, args ...any) error {
	return &restError{status, code, fmt.Sprintf(format, args...)}
}

// statusClientClosed is the HTTP status of a poll whose client has closed the connection.
const statusClientClosed = 499

// httpStatus maps gRPC codes to HTTP status codes, as google.rpc.Code defines.
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

// restErrorOf returns an error as a restError.
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

// writeRESTError answers a poll with an error, and returns the HTTP status.
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
	body, _ := json.Marshal(r)         // a number and a string: never fails
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
	return r.status
}
