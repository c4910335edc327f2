package wire

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A ResourceError is what an origin said is wrong with one resource. It is
// immutable.
//
// Source: xDS proposal TP3, gRFC A88.
type ResourceError struct {
	Variant
	Code    codes.Code
	Message string

	encoded []byte // the ResourceError message, as the origin sent it
}

// NewResourceError returns an error that the relay itself has to tell.
func NewResourceError(name string, code codes.Code, message string) *ResourceError {
	// Strings and a number can always be encoded.
	encoded, _ := proto.Marshal(&discoverypb.ResourceError{
		ResourceName: &discoverypb.ResourceName{Name: name},
		ErrorDetail:  &statuspb.Status{Code: int32(code), Message: message},
	})
	return &ResourceError{Variant: Variant{Name: name}, Code: code, Message: message, encoded: encoded}
}

// Transient reports whether clients go on with the resource that they have (R137).
// Codes of which the protocol says nothing count as such.
func (e *ResourceError) Transient() bool { return !e.NotFound() && !e.Denied() }

// Denied reports whether the client may not have the resource.
func (e *ResourceError) Denied() bool { return e.Code == codes.PermissionDenied }

// NotFound reports whether the resource does not exist: the same as its removal.
func (e *ResourceError) NotFound() bool { return e.Code == codes.NotFound }

// Same reports whether a client that was told o would learn nothing from e.
func (e *ResourceError) Same(o *ResourceError) bool { return string(e.encoded) == string(o.encoded) }

// RemovedNames yields the names of which the update says that no such resource exists: by
// removing it, or by an error that says so (R123).
func (u *Update) RemovedNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range u.Removed {
			if !yield(name) {
				return
			}
		}
		for _, e := range u.Errors {
			if e.NotFound() && e.Constraints == nil && !yield(e.Name) {
				return
			}
		}
	}
}

// Fails reports whether the update has an error for a name.
func (u *Update) Fails(name string) bool {
	return slices.ContainsFunc(u.Errors, func(e *ResourceError) bool { return e.Name == name })
}

// addError reads an entry of resource_errors. One with an empty name is about the
// legacy form of the wildcard.
func (u *Update) addError(val []byte) error {
	var m discoverypb.ResourceError
	if err := nested.Unmarshal(val, &m); err != nil {
		return fmt.Errorf("%w: resource error: %w", ErrMalformed, err)
	}
	full := m.GetResourceName()
	if full == nil {
		return fmt.Errorf("%w, in resource_errors: %q", ErrUnnamed, m.GetErrorDetail().GetMessage())
	}
	name, err := CanonicalName(cmp.Or(full.GetName(), Wildcard))
	if err != nil {
		return err
	}
	if name != full.GetName() {
		full.Name = name
		val, _ = proto.Marshal(&m) // it was decoded, so it can be encoded
	}
	u.Errors = append(u.Errors, &ResourceError{
		Variant: Variant{Name: name, Constraints: constraintBytes(full.GetDynamicParameterConstraints())},
		Code:    codes.Code(m.GetErrorDetail().GetCode()),
		Message: m.GetErrorDetail().GetMessage(),
		encoded: append([]byte(nil), val...),
	})
	return nil
}

// addRemovedName reads an entry of removed_resource_names. One without
// constraints is the same as an entry of removed_resources.
func (u *Update) addRemovedName(val []byte) error {
	var m discoverypb.ResourceName
	if err := nested.Unmarshal(val, &m); err != nil {
		return fmt.Errorf("%w: removed resource name: %w", ErrMalformed, err)
	}
	name, err := CanonicalName(m.GetName())
	if err != nil {
		return err
	}
	if c := constraintBytes(m.GetDynamicParameterConstraints()); c != nil {
		u.RemovedVariants = append(u.RemovedVariants, Variant{Name: name, Constraints: c})
	} else {
		u.Removed = append(u.Removed, name)
	}
	return nil
}

// Error adds an error to resource_errors. Its resource must not be in the body.
func (b *Body) Error(e *ResourceError) {
	num := sotwErrors
	if b.delta {
		num = responseErrors
	}
	b.count++
	b.add(appendBytes(nil, num, e.encoded))
}

// dumps are how what a message quotes of a resource begins: Envoy adds the whole of it, as
// protobuf text, to what does not validate, and as JSON to what it cannot read.
var dumps = []string{"): ", "{", "-----BEGIN "}

// withoutDump returns the part of a NACK's message that quotes no resource, in which there may
// be private keys (B.36). What a client says in words of its own is its affair.
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
