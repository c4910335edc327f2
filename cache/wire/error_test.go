package wire_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/xdstender/tender/cache/wire"
)

// failing returns an entry of resource_errors.
func failing(name string, code codes.Code, message string) *discoverypb.ResourceError {
	return &discoverypb.ResourceError{
		ResourceName: &discoverypb.ResourceName{Name: name},
		ErrorDetail:  &statuspb.Status{Code: int32(code), Message: message},
	}
}

// failingUpdate returns an encoded response that contains only errors.
func failingUpdate(tb testing.TB, errs ...*discoverypb.ResourceError) []byte {
	tb.Helper()
	return marshal(tb, &discoverypb.DeltaDiscoveryResponse{TypeUrl: acme, Nonce: "nonce-1", ResourceErrors: errs})
}

// TestR123_ErrorsAreRead: in both variants, an entry of resource_errors is decoded and forwarded unchanged, except that
// its name becomes canonical and an empty name becomes the wildcard.
func TestR123_ErrorsAreRead(t *testing.T) {
	unknown := failing("new", codes.Internal, "field 77 is not known here")
	unknown.ProtoReflect().SetUnknown(bytesField(77, "new"))
	tests := []struct {
		name string
		in   *discoverypb.ResourceError
		want *discoverypb.ResourceError
	}{
		{"plain", failing("a", codes.PermissionDenied, "no"), failing("a", codes.PermissionDenied, "no")},
		{"unknown fields", unknown, unknown},
		{"another spelling", failing(xdstpFoo+"?b=2&a=1", codes.NotFound, ""),
			failing(xdstpFoo+"?a=1&b=2", codes.NotFound, "")},
		{"the wildcard", failing("*", codes.Unavailable, ""), failing("*", codes.Unavailable, "")},
		{"the legacy wildcard", failing("", codes.Unavailable, ""), failing("*", codes.Unavailable, "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := decode(t, failingUpdate(t, tt.in))
			if len(u.Errors) != 1 {
				t.Fatalf("got %d errors, want 1", len(u.Errors))
			}
			e := u.Errors[0]
			if e.Name != tt.want.GetResourceName().GetName() || e.Code != codes.Code(tt.want.GetErrorDetail().GetCode()) ||
				e.Message != tt.want.GetErrorDetail().GetMessage() {
				t.Errorf("got %q %v %q, want %v", e.Name, e.Code, e.Message, tt.want)
			}
			var delta discoverypb.DeltaDiscoveryResponse
			var sotw discoverypb.DiscoveryResponse
			for body, into := range map[*wire.Body]proto.Message{
				wire.NewDeltaBody(acme, "1"):                &delta,
				wire.NewSotWBody(acme, "1", wire.Unwrapped): &sotw,
			} {
				body.Error(e)
				buf, err := wire.Codec{}.Marshal(&wire.Response{Body: body, Nonce: "1"})
				if err != nil {
					t.Fatal(err)
				}
				if err := proto.Unmarshal(buf.Materialize(), into); err != nil {
					t.Fatal(err)
				}
			}
			for _, got := range [][]*discoverypb.ResourceError{delta.GetResourceErrors(), sotw.GetResourceErrors()} {
				if diff := cmp.Diff([]*discoverypb.ResourceError{tt.want}, got, protocmp.Transform()); diff != "" {
					t.Errorf("forwarded (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestR123_MalformedErrorsAreRejected: errors without a name, errors of resources in the same response, and malformed
// messages.
func TestR123_MalformedErrorsAreRejected(t *testing.T) {
	nameless := failingUpdate(t, &discoverypb.ResourceError{ErrorDetail: &statuspb.Status{Message: "whose?"}})
	tests := []struct {
		name string
		msg  []byte
		want error
		text string
	}{
		{"no name", nameless, wire.ErrUnnamed, "whose?"},
		{"error and resource",
			join(updateOf(acme, resourceOf("1", "a", anyOf(acme, nil))),
				failingUpdate(t, failing("a", codes.Internal, ""))), wire.ErrDuplicate, `"a"`},
		{"malformed name", failingUpdate(t, failing(xdstpFoo+"?a=1&a=2", codes.Internal, "")), wire.ErrXDSTP, xdstpFoo},
		{"malformed message", join(updateOf(acme), bytesField(9, "\x08")), wire.ErrMalformed, "resource error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := wire.Decoder{}.Decode(tt.msg)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("got error %v, want %v with %q", err, tt.want, tt.text)
			}
			wantRefusable(t, u, acme)
		})
	}
}

// TestR137_TransientErrors: clients remove a resource for two codes only.
func TestR137_TransientErrors(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		e := wire.NewResourceError("a", code, "")
		if want := code != codes.NotFound && code != codes.PermissionDenied; e.Transient() != want {
			t.Errorf("%v: got transient %t, want %t", code, e.Transient(), want)
		}
		if want := code == codes.NotFound; e.NotFound() != want {
			t.Errorf("%v: got not found %t, want %t", code, e.NotFound(), want)
		}
		if want := code == codes.PermissionDenied; e.Denied() != want {
			t.Errorf("%v: got denied %t, want %t", code, e.Denied(), want)
		}
	}
}

// TestR123_NotFoundIsARemoval: removed resources and resources with NOT_FOUND do not exist. Resources with other errors
// may exist.
func TestR123_NotFoundIsARemoval(t *testing.T) {
	u := decode(t, join(
		marshal(t, &discoverypb.DeltaDiscoveryResponse{TypeUrl: acme, RemovedResources: []string{"removed"}}),
		failingUpdate(t, failing("missing", codes.NotFound, ""), failing("denied", codes.PermissionDenied, "")),
	))
	if got, want := slices.Collect(u.RemovedNames()), []string{"removed", "missing"}; !slices.Equal(got, want) {
		t.Errorf("removed: got %q, want %q", got, want)
	}
	for name, want := range map[string]bool{"removed": false, "missing": true, "denied": true} {
		if got := u.Fails(name); got != want {
			t.Errorf("fails %q: got %t, want %t", name, got, want)
		}
	}
}
