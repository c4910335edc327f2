package wire

import (
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

// NewResourceError returns an error that the relay reports itself.
func NewResourceError(name string, code codes.Code, message string) *ResourceError {
	// UTF-8 and integers can always be encoded.
	message = proseText([]byte(message))
	encoded, _ := proto.Marshal(&discoverypb.ResourceError{
		ResourceName: &discoverypb.ResourceName{Name: name},
		ErrorDetail:  &statuspb.Status{Code: int32(code), Message: message},
	})
	return &ResourceError{Variant: Variant{Name: name}, Code: code, Message: message, encoded: encoded}
}

// Transient reports whether clients keep using the resource that they have (R137).
// Codes that the protocol does not define are transient.
func (e *ResourceError) Transient() bool { return !e.NotFound() && !e.Denied() }

// Denied reports whether the client is not permitted to receive the resource.
func (e *ResourceError) Denied() bool { return e.Code == codes.PermissionDenied }

// NotFound reports whether the resource does not exist, which is equivalent to its removal.
func (e *ResourceError) NotFound() bool { return e.Code == codes.NotFound }

// Same reports whether e and o are equal, so that a client that received o does not need e.
func (e *ResourceError) Same(o *ResourceError) bool { return string(e.encoded) == string(o.encoded) }

// dumpPrefixes are the texts that precede a quoted resource in an error message: Envoy quotes a resource that
// fails validation as protobuf text, and a resource that it cannot parse as JSON.
var dumpPrefixes = []string{"): ", "{", "-----BEGIN "}

// cutDump cuts the error message of a NACK before a quoted resource, which may contain private keys (B.36).
func cutDump(message string) string {
	end := len(message)
	for _, dump := range dumpPrefixes {
		if i := strings.Index(message, dump); i >= 0 {
			end = min(end, i+len(dump)-len(strings.TrimPrefix(dump, ")")))
		}
	}
	if end == len(message) {
		return message
	}
	return fmt.Sprintf("%s … (%d more bytes omitted: they may contain secrets)", message[:end], len(message)-end)
}
