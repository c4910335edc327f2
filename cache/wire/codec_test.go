package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/xdstender/tender/cache/wire"
)

// allocsPerMarshal is the maximum number of allocations of Codec.Marshal for a response, independent of the number of
// resources: the tail, the list of pieces, and the buffer of the tail.
const allocsPerMarshal = 3

func TestMarshalAllocations(t *testing.T) {
	for _, n := range []int{1, 10, 1000} {
		for _, delta := range []bool{true, false} {
			body := bodyOf(t, delta, n, 100).Join()
			for _, controlPlane := range []string{"", "tender-1"} {
				r := &wire.Response{Body: body, Nonce: "0123456789abcdef", ControlPlane: controlPlane}
				got := testing.AllocsPerRun(100, func() {
					if _, err := (wire.Codec{}).Marshal(r); err != nil {
						t.Fatal(err)
					}
				})
				if got > allocsPerMarshal {
					t.Errorf("%d resources, delta %t, control plane %q: got %v allocations, want at most %v", n, delta, controlPlane,
						got, allocsPerMarshal)
				}
			}
		}
	}
}

// bodyOf returns a body of n resources of size bytes.
func bodyOf(tb testing.TB, delta bool, n, size int) *wire.Body {
	tb.Helper()
	body := wire.NewSotWBody(acme, "7", wire.Unwrapped)
	if delta {
		body = wire.NewDeltaBody(acme, "7")
	}
	for i := range n {
		r, err := wire.NewResource(acme, fmt.Sprintf("resource-%04d", i), "1", bytes.Repeat([]byte{byte(i)}, size))
		if err != nil {
			tb.Fatal(err)
		}
		body.Add(r, r.TTL)
	}
	return body
}

// TestSharedPiecesAreNotModified marshals one body in many goroutines and frees the results as gRPC does. The race
// detector finds writes to a piece.
func TestSharedPiecesAreNotModified(t *testing.T) {
	for _, joined := range []bool{true, false} {
		u := decode(t, marshal(t, richUpdate()))
		body := wire.NewDeltaBody(u.TypeURL, u.SystemVersion)
		var fields []byte
		for _, r := range u.Resources {
			body.Add(r, r.TTL)
			fields = append(fields, r.Field()...)
		}
		if joined {
			body.Join()
		}
		want := send(t, &wire.Response{Body: body})
		var wg sync.WaitGroup
		for i := range 8 { // joined by Wait below
			wg.Go(func() {
				for j := range 50 {
					checkStream(t, body, fmt.Sprintf("%d-%d", i, j))
				}
			})
		}
		wg.Wait()
		if got := send(t, &wire.Response{Body: body}); !bytes.Equal(got, want) {
			t.Errorf("joined %t: body was modified: got %q, want %q", joined, got, want)
		}
		var after []byte
		for _, r := range u.Resources {
			after = append(after, r.Field()...)
		}
		if !bytes.Equal(after, fields) {
			t.Errorf("joined %t: resources were modified: got %q, want %q", joined, after, fields)
		}
	}
}

// checkStream sends the body to one stream; it is called from many goroutines.
func checkStream(t *testing.T, body *wire.Body, nonce string) {
	buf, err := wire.Codec{}.Marshal(&wire.Response{Body: body, Nonce: nonce, ControlPlane: "cp-" + nonce})
	if err != nil {
		t.Error(err)
		return
	}
	buf.Ref()
	out := new(discoverypb.DeltaDiscoveryResponse)
	if err := (wire.Codec{}).Unmarshal(buf, out); err != nil {
		t.Error(err)
	}
	if out.GetNonce() != nonce || out.GetControlPlane().GetIdentifier() != "cp-"+nonce ||
		len(out.GetResources()) != body.Len() {
		t.Errorf("stream %s: got %v", nonce, out)
	}
	buf.Free()
	buf.Free()
}

// TestStreamsDoNotShareTails: the buffers of one stream do not change when another stream sends the same body.
func TestStreamsDoNotShareTails(t *testing.T) {
	for n := range 9 { // so that some list of pieces has spare capacity
		body := bodyOf(t, true, n, 10)
		var sent []mem.BufferSlice
		nonces := []string{"one", "two"}
		for _, nonce := range nonces {
			buf, err := wire.Codec{}.Marshal(&wire.Response{Body: body, Nonce: nonce})
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, buf)
		}
		for i, buf := range sent {
			out := new(discoverypb.DeltaDiscoveryResponse)
			receive(t, buf.Materialize(), out)
			if out.GetNonce() != nonces[i] {
				t.Errorf("%d resources: got nonce %q, want %q", n, out.GetNonce(), nonces[i])
			}
		}
	}
}

func TestCodecDelegatesOtherMessages(t *testing.T) {
	codec := wire.Codec{}
	if codec.Name() != "proto" {
		t.Errorf("Name: got %q, want proto", codec.Name())
	}
	want := richUpdate()
	buf, err := codec.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Free()
	got := new(discoverypb.DeltaDiscoveryResponse)
	if err := codec.Unmarshal(buf, got); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, "round trip", got, want)

	raw := new(wire.Message)
	if err := codec.Unmarshal(buf, raw); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw.Bytes, buf.Materialize()) {
		t.Errorf("Message: got %q, want %q", raw.Bytes, buf.Materialize())
	}
	back, err := codec.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Free()
	if !bytes.Equal(back.Materialize(), raw.Bytes) {
		t.Errorf("Message sent: got %q, want %q", back.Materialize(), raw.Bytes)
	}
	if _, err := codec.Marshal("no message"); err == nil {
		t.Error("Marshal of a string: got no error")
	}
	if err := codec.Unmarshal(buf, new(int)); err == nil {
		t.Error("Unmarshal into an int: got no error")
	}
}

// TestCodecReadsPieces: a message may arrive in several buffers, and a request keeps no reference to them.
func TestCodecReadsPieces(t *testing.T) {
	encoded := marshal(t, richDeltaRequest())
	for size := 1; size <= len(encoded); size += 7 {
		msg := bytes.Clone(encoded)
		var data mem.BufferSlice
		for rest := msg; len(rest) > 0; {
			n := min(size, len(rest))
			data = append(data, mem.SliceBuffer(rest[:n]))
			rest = rest[n:]
		}
		req, raw := &wire.Request{Delta: true}, new(wire.Message)
		if err := errors.Join(wire.Codec{}.Unmarshal(data, req), wire.Codec{}.Unmarshal(data, raw)); err != nil {
			t.Fatal(err)
		}
		clear(msg)
		if req.Nonce != "nonce-1" || len(req.Subscribe) != 5 || len(req.InitialVersions) != 3 ||
			!bytes.Equal(raw.Bytes, encoded) {
			t.Errorf("buffers of %d bytes: got %+v", size, req)
		}
		node := new(corepb.Node)
		receive(t, req.Node, node)
		want := richNode()
		want.Extensions = nil
		wantMessage(t, "node", node, want)
	}
	bad := mem.BufferSlice{mem.SliceBuffer{0xff}}
	req := new(wire.Request)
	if err := (wire.Codec{}).Unmarshal(bad, req); err != nil || !errors.Is(req.Err, wire.ErrRequest) {
		t.Errorf("malformed request: got %v and Err %v, want ErrRequest in Err", err, req.Err)
	}
}

// TestCodecInGRPC connects a generated client to a server with the codec.
func TestCodecInGRPC(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := discoverypb.NewAggregatedDiscoveryServiceClient(serveCodec(t))
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, nonce := range []string{"1", "2"} {
		if err := stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: acme, ResponseNonce: nonce}); err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		want := richUpdate()
		want.Nonce = "re " + nonce
		want.Resources[1].Version = got.GetResources()[1].GetVersion() // the origin gave none
		wantMessage(t, "response", got, want)
	}
	// A malformed request ends its stream.
	bad := &discoverypb.DeltaDiscoveryRequest{}
	bad.ProtoReflect().SetUnknown(bytesField(2, notUTF8))
	if err := stream.Send(bad); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unknown {
		t.Errorf("after a malformed request: got %v, want the handler's error", err)
	}
}

// serveCodec starts a server that sends an update for each request, and returns a connection to it. The cleanup of the
// test closes both.
func serveCodec(t *testing.T) *grpc.ClientConn {
	t.Helper()
	u := decode(t, marshal(t, richUpdate()))
	body := wire.NewDeltaBody(u.TypeURL, u.SystemVersion)
	for _, r := range u.Resources {
		body.Add(r, r.TTL)
	}
	for _, name := range u.Removed {
		body.Remove(name)
	}
	answer := func(_ any, stream grpc.ServerStream) error {
		for {
			req := &wire.Request{Delta: true}
			if err := errors.Join(stream.RecvMsg(req), req.Err); err != nil {
				return err
			}
			r := &wire.Response{Body: body, Nonce: "re " + req.Nonce, ControlPlane: u.ControlPlane}
			if err := stream.SendMsg(r); err != nil {
				return err
			}
		}
	}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}), grpc.UnknownServiceHandler(answer))
	go server.Serve(listener) //nolint:errcheck // Stop, in the cleanup, ends it
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
