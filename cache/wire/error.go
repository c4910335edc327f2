package wire

import (
	"errors"
	"fmt"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A ResourceError is an error that an origin sent for one resource. It is
// immutable.
//
// Source: xDS proposal TP3, gRFC A88.
type ResourceError struct {
	Variant
	Code    codes.Code
	Message string

	encoded []byte // the ResourceError message, as the origin sent it
}

// NewResourceError returns an error of the relay itself.
func NewResourceError(name string, code codes.Code, message string) *ResourceError {
	// Strings and a number can always be encoded.
	encoded, _ := proto.Marshal(&discoverypb.ResourceError{
		ResourceName: &discoverypb.ResourceName{Name: name},
		ErrorDetail:  &statuspb.Status{Code: int32(code), Message: message},
	})
	return &ResourceError{Variant: Variant{Name: name}, Code: code, Message: message, encoded: encoded}
}

// Transient reports whether clients go on with the resource that they have (R137).
// Codes that the protocol does not define count as such.
func (e *ResourceError) Transient() bool { return !e.NotFound() && !e.Denied() }

// Denied reports whether the client may not have the resource.
func (e *ResourceError) Denied() bool { return e.Code == codes.PermissionDenied }

// NotFound reports whether the resource does not exist: the same as its removal.
func (e *ResourceError) NotFound() bool { return e.Code == codes.NotFound }

// Same reports whether a client that received o already has e.
func (e *ResourceError) Same(o *ResourceError) bool { return string(e.encoded) == string(o.encoded) }

// dumps are how what a message quotes of a resource begins: Envoy adds the whole of it, as
// protobuf text, to what does not validate, and as JSON to what it cannot read.
var dumps = []string{"): ", "{", "-----BEGIN "}

// withoutDump returns the part of a NACK's message that quotes no resource, in which there may
// be private keys (B.36). Other text of the client stays.
func withoutDump(message string) string {
	end := len(message)
	for _, dump := range dumps {
		if i := strings.Index(message, dump); i >= 0 {
			end = min(end, i+len(dump)-len(strings.TrimPrefix(dump, ")")))
		}
	}
	if end == len(message) {
		return message
	}
	return fmt.Sprintf("%s … (%d bytes more may have secrets in them)", message[:end], len(message)-end)
}

// Errors from [Decoder.Decode] and [Decoder.DecodeSotW], with [ErrXDSTP]. Each means
// that the origin broke the protocol: the session refuses the response and the
// cache keeps what it had (B.9).
var (
	ErrMalformed    = errors.New("malformed message")
	ErrUnnamed      = errors.New("resource without a name")
	ErrDuplicate    = errors.New("duplicate resource name")
	ErrTypeMismatch = errors.New("resource of another type")
)
