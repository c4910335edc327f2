package relaytest

import (
	"fmt"
	"strings"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// A Response is a response of either variant. It must not be modified.
type Response struct {
	TypeURL      string
	Version      string // version_info; in Delta system_version_info
	Nonce        string
	ControlPlane string
	Resources    []Resource
	Removed      []string // Delta only
	Errors       []ResourceError
	At           time.Time // when it was received

	// Message is the received *DiscoveryResponse or *DeltaDiscoveryResponse.
	Message proto.Message
}

// A Resource is a resource of a response.
type Resource struct {
	Name string
	Entry
	Aliases []string
	TTL     time.Duration // zero without a TTL
	Body    *anypb.Any    // nil in a heartbeat and in an unresolved alias
	Wrapped bool          // whether a SotW response wrapped it in a Resource message
}

// Heartbeat reports whether the resource only renews the TTL of the client's resource.
func (r *Resource) Heartbeat() bool { return r.Body == nil && r.TTL > 0 }

// Resource returns the resource with a name, or nil.
func (r *Response) Resource(name string) *Resource {
	for i := range r.Resources {
		if r.Resources[i].Name == name {
			return &r.Resources[i]
		}
	}
	return nil
}

// A ResourceError is the error of a resource in a response.
type ResourceError struct {
	Name    string
	Code    codes.Code
	Message string
}

// String formats the error as "name: CODE".
func (e ResourceError) String() string { return e.Name + ": " + e.Code.String() }

// Names returns the names of the resources, in the order of the response.
func (r *Response) Names() []string {
	names := make([]string, len(r.Resources))
	for i, resource := range r.Resources {
		names[i] = resource.Name
	}
	return names
}

// SotW reports whether the response is a SotW response.
func (r *Response) SotW() bool {
	_, ok := r.Message.(*discoverypb.DiscoveryResponse)
	return ok
}

// String formats the response in one line.
func (r *Response) String() string {
	var b strings.Builder
	names := r.Names()
	for i := range r.Resources {
		if r.Resources[i].TTL > 0 {
			names[i] += "(" + r.Resources[i].TTL.String() + ")"
		}
	}
	fmt.Fprintf(&b, "%s nonce=%s version=%q resources=%s", ShortType(r.TypeURL), r.Nonce, r.Version, list(names))
	if len(r.Removed) > 0 {
		fmt.Fprintf(&b, " removed=%s", list(r.Removed))
	}
	if len(r.Errors) > 0 {
		fmt.Fprintf(&b, " errors=%v", r.Errors)
	}
	return b.String()
}

// NewResponse converts a received *DiscoveryResponse or *DeltaDiscoveryResponse. It panics if msg is another message.
func NewResponse(msg proto.Message) *Response {
	switch m := msg.(type) {
	case *discoverypb.DiscoveryResponse:
		r := &Response{TypeURL: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetNonce(),
			ControlPlane: m.GetControlPlane().GetIdentifier(), Message: m}
		for _, body := range m.GetResources() {
			r.Resources = append(r.Resources, unwrap(body, m.GetVersionInfo()))
		}
		r.Errors = readErrors(m.GetResourceErrors())
		return r
	case *discoverypb.DeltaDiscoveryResponse:
		r := &Response{TypeURL: m.GetTypeUrl(), Version: m.GetSystemVersionInfo(), Nonce: m.GetNonce(),
			ControlPlane: m.GetControlPlane().GetIdentifier(), Removed: m.GetRemovedResources(), Message: m}
		for _, resource := range m.GetResources() {
			r.Resources = append(r.Resources, enveloped(resource, resource.GetVersion()))
		}
		r.Errors = readErrors(m.GetResourceErrors())
		return r
	}
	panic(fmt.Sprintf("response of type %T", msg))
}

// unwrap returns a resource of a SotW response, which may be wrapped with a name and a TTL.
func unwrap(body *anypb.Any, version string) Resource {
	if body.GetTypeUrl() == wrapperType {
		wrapper := &discoverypb.Resource{}
		if proto.Unmarshal(body.GetValue(), wrapper) == nil {
			r := enveloped(wrapper, version)
			r.Wrapped = true
			return r
		}
	}
	return Resource{
		Name:  nameOf(body.GetValue()),
		Entry: Entry{Version: version, Digest: digest(body)},
		Body:  body,
	}
}

// enveloped converts a Resource message.
func enveloped(r *discoverypb.Resource, version string) Resource {
	return Resource{
		Name:    r.GetName(),
		Entry:   Entry{Version: version, Digest: digest(r.GetResource())},
		Aliases: r.GetAliases(),
		TTL:     r.GetTtl().AsDuration(),
		Body:    r.GetResource(),
	}
}

func readErrors(messages []*discoverypb.ResourceError) []ResourceError {
	var errors []ResourceError
	for _, m := range messages {
		errors = append(errors, ResourceError{
			Name:    m.GetResourceName().GetName(),
			Code:    codes.Code(m.GetErrorDetail().GetCode()),
			Message: m.GetErrorDetail().GetMessage(),
		})
	}
	return errors
}

// violations returns the rules of the protocol that a response violates, for a client with the given features. seen has
// the nonces of the stream so far.
func (r *Response) violations(variant Variant, features features, seen map[string]struct{}) []string {
	var broken []string
	_, used := seen[r.Nonce]
	seen[r.Nonce] = struct{}{}
	switch {
	case r.Nonce == "":
		broken = append(broken, "the response has no nonce")
	case used:
		broken = append(broken, "the nonce is a duplicate on this stream")
	}
	if variant == SotW && r.Version == "" {
		broken = append(broken, "version_info is empty")
	}
	named := make(map[string]struct{}, len(r.Resources)+len(r.Removed))
	for _, resource := range r.Resources {
		broken = append(broken, resource.violations(variant, features, r.TypeURL)...)
		if _, twice := named[resource.Name]; twice {
			broken = append(broken, fmt.Sprintf("resource %q is a duplicate", resource.Name))
		}
		named[resource.Name] = struct{}{}
	}
	for _, name := range r.Removed {
		if _, twice := named[name]; twice {
			broken = append(broken, fmt.Sprintf("removed %q is also a resource, or a duplicate", name))
		}
		named[name] = struct{}{}
	}
	for _, e := range r.Errors {
		if _, twice := named[e.Name]; twice {
			broken = append(broken, fmt.Sprintf("%q has an error, and is also a resource or removed", e.Name))
		}
		named[e.Name] = struct{}{}
	}
	return broken
}

// violations returns the rules of the protocol that a resource violates.
func (r *Resource) violations(variant Variant, features features, typeURL string) []string {
	broken := r.unsupported(features)
	if r.Body == nil && variant == SotW {
		broken = append(broken, fmt.Sprintf("resource %q has no content", r.Name))
	}
	if r.Name == "" {
		broken = append(broken, "a resource has no name")
	}
	if got := r.Body.GetTypeUrl(); r.Body != nil && got != typeURL && !r.mayReplace(typeURL) {
		broken = append(broken, fmt.Sprintf("resource %q has type %s", r.Name, got))
	}
	if variant == Delta && r.Version == "" && r.Body != nil {
		broken = append(broken, fmt.Sprintf("resource %q has no version", r.Name))
	}
	return broken
}

// unsupported returns violations for parts of the resource that a client with these features does not support.
func (r *Resource) unsupported(features features) (broken []string) {
	if r.TTL != 0 && !features.ttl {
		broken = append(broken, fmt.Sprintf("resource %q has a TTL, which the client does not support", r.Name))
	}
	if r.Wrapped && !features.wrap {
		broken = append(broken, fmt.Sprintf("resource %q is wrapped, which the client does not support", r.Name))
	}
	return broken
}

// mayReplace reports whether the body may have another type than the response: a redirect, or a list of redirects
// (TP1).
func (r *Resource) mayReplace(typeURL string) bool {
	got := r.Body.GetTypeUrl()
	return strings.HasPrefix(r.Name, "xdstp:") && (got == redirectType || got == typeURL+"Collection")
}
