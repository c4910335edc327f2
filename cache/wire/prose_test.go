package wire_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// B.47: texts for people are made UTF-8, in requests and in responses. Envoy truncates its error messages at 4,096
// bytes, also inside a character.
func TestB47_TextsForPeopleAreMadeValid(t *testing.T) {
	t.Parallel()
	truncated := (strings.Repeat("ü", 2048) + "x")[1:4097] // begins and ends inside a character
	want := "\ufffd" + strings.Repeat("ü", 2047) + "x"
	if utf8.ValidString(truncated) || len(truncated) != 4096 {
		t.Fatal("test setup: the text is valid")
	}
	for field, delta := range map[protowire.Number]bool{6: false, 7: true} {
		r := wire.Request{Delta: delta}
		err := r.Decode(bytesField(field, join(bytesField(2, truncated))))
		if err != nil || !r.Rejected || r.ErrorMessage != want {
			t.Errorf("delta %t: got %q, rejected %t, error %v, want a NACK with the text", delta, r.ErrorMessage, r.Rejected, err)
		}
	}
	entry := join(bytesField(1, bytesField(1, "a")), bytesField(2, join([]byte{8, 13}, bytesField(2, truncated))),
		bytesField(2, bytesField(2, truncated))) // twice: the last counts
	var errors []*wire.ResourceError
	for name, tt := range map[string]struct {
		decode                       func([]byte) (wire.Update, error)
		controlPlane, resourceErrors protowire.Number
	}{
		"delta": {wire.Decoder{}.Decode, 7, 9},
		"sotw":  {wire.Decoder{}.DecodeSotW, 6, 7},
	} {
		u, err := tt.decode(join(bytesField(4, acme), bytesField(5, "1"),
			bytesField(tt.controlPlane, bytesField(1, truncated)), bytesField(tt.resourceErrors, entry)))
		check.OK(t, err)
		check.Equal(t, name+": control plane", u.ControlPlane, want)
		if len(u.Errors) != 1 || u.Errors[0].Message != want || u.Errors[0].Code != codes.Internal {
			t.Fatalf("%s: errors %+v, want INTERNAL with the text", name, u.Errors)
		}
		errors = append(errors, u.Errors[0])
	}
	own := wire.NewResourceError("a", codes.Internal, truncated)
	check.Equal(t, "message of the relay", own.Message, want)
	for _, e := range []*wire.ResourceError{errors[0], errors[1], own} {
		body := wire.NewDeltaBody(acme, "")
		body.Error(e)
		sent, err := (wire.Codec{}).Marshal(&wire.Response{Body: body, Nonce: "1"})
		check.OK(t, err)
		got := new(discoverypb.DeltaDiscoveryResponse)
		check.OK(t, proto.Unmarshal(sent.Materialize(), got))
		check.Equal(t, "message to clients", got.GetResourceErrors()[0].GetErrorDetail().GetMessage(), want)
	}
}
