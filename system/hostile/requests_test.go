package hostile_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// client returns a Delta ADS client that acknowledges every response.
func (v *victim) client(opts ...grpc.DialOption) *relaytest.Client {
	v.t.Helper()
	return relaytest.NewClient(v.t, v.Conn(opts...), relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
}

// TestB32_CompressedBomb: by default, the relay rejects compressed requests of streams and polls without
// decompressing them. (B.32)
func TestB32_CompressedBomb(t *testing.T) {
	zeros := strings.Repeat("\x00", 4<<20)
	v := serve(t, "TENDER_MAX_REQUEST_BYTES=16MiB")
	c := v.client(grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	v.during(func() {
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, ResponseNonce: zeros})
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("the stream ended with %v, want UNIMPLEMENTED", err)
		}
		v.poll(bytes.NewReader(compressed(t, []byte(zeros))), http.StatusUnsupportedMediaType, "Content-Encoding", "gzip")
	})
}

// TestB32_CompressedBombWhereGzipIsAccepted: with TENDER_REQUEST_COMPRESSION=gzip, the relay decompresses requests
// only up to TENDER_MAX_REQUEST_BYTES. (B.32)
func TestB32_CompressedBombWhereGzipIsAccepted(t *testing.T) {
	v := serve(t, "TENDER_MAX_REQUEST_BYTES=1MiB", "TENDER_REQUEST_COMPRESSION=gzip")
	c := v.client(grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	v.during(func() {
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, ResponseNonce: strings.Repeat("\x00", 4<<20)})
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the stream ended with %v, want RESOURCE_EXHAUSTED", err)
		}
	})
	if n := v.Stats().Refused[guard.LimitRequest]; n != 1 {
		t.Errorf("%d requests are counted as too large, want 1", n)
	}
}

// poll sends a poll for clusters with a body, and checks the status code. header is a list of names and values.
func (v *victim) poll(body io.Reader, want int, header ...string) {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), http.MethodPost, "http://"+v.RESTAddrs()[0].String()+"/v3/discovery:clusters", body)
	if err != nil {
		v.t.Error(err)
		return
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		v.t.Error(err)
		return
	}
	if _ = resp.Body.Close(); resp.StatusCode != want {
		v.t.Errorf("the poll was answered with %d, want %d", resp.StatusCode, want)
	}
}

// TestB35_AMillionNames: the relay rejects names above the limit of a stream, in one request or several, subscribed
// or in initial_resource_versions. Unsubscribed names do not count. The stream stays open. (B.35)
func TestB35_AMillionNames(t *testing.T) {
	names := make([]string, 1_000_000)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	some := names[:100_001]
	held := make(map[string]string, len(some))
	for _, name := range some {
		held[name] = ""
	}
	v := serve(t, "TENDER_FIRST_REQUEST_TIMEOUT=5m") // a million names take long on a busy machine
	for _, tt := range []struct {
		name    string
		refused int64
		says    []*discoverypb.DeltaDiscoveryRequest
	}{
		{"asked for", 2, []*discoverypb.DeltaDiscoveryRequest{{ResourceNamesSubscribe: names}}},
		{"asked for in parts", 1, []*discoverypb.DeltaDiscoveryRequest{{ResourceNamesSubscribe: some[:50_000]}, {ResourceNamesSubscribe: some[50_000:]}}},
		{"given up", 0, []*discoverypb.DeltaDiscoveryRequest{{ResourceNamesUnsubscribe: some}}},
		{"held", 1, []*discoverypb.DeltaDiscoveryRequest{{InitialResourceVersions: held}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, before := v.client(), v.Stats().Refused[guard.LimitNames]
			v.during(func() {
				for _, r := range tt.says {
					r.TypeUrl = relaytest.RouteType
					c.Send(r)
				}
				v.await("rejections of names", func() bool { return v.Stats().Refused[guard.LimitNames] == before+tt.refused })
				c.Subscribe(relaytest.ClusterType)
				c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) > 0 })
			})
			c.Close()
		})
	}
}

// nested returns an encoded Node with metadata of a nesting depth.
func nested(levels int) []byte {
	value := []byte("\x20\x01") // Value.bool_value
	wrap := func(field protowire.Number) {
		value = append(protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.BytesType), uint64(len(value))), value...)
	}
	for range levels / 2 {
		wrap(1) // ListValue.values
		wrap(6) // Value.list_value
	}
	wrap(2) // FieldsEntry.value
	value = append([]byte("\x0a\x01k"), value...)
	wrap(1) // Struct.fields
	wrap(3) // Node.metadata
	return append([]byte("\x0a\x01n"), value...)
}

// TestDeepMetadata: the relay accepts deeply nested metadata. It rejects metadata that are too deep to decode as an
// error of the client, without a stack overflow.
func TestDeepMetadata(t *testing.T) {
	v := serve(t, "TENDER_NODE_GROUP_BY=metadata.k")
	for _, tt := range []struct {
		levels int
		code   codes.Code
		http   int // status code of a poll; 0 sends none
	}{
		{1000, codes.OK, 0},
		{20_000, codes.InvalidArgument, http.StatusBadRequest},
	} {
		t.Run(fmt.Sprint(tt.levels), func(t *testing.T) {
			node := new(corepb.Node)
			node.ProtoReflect().SetUnknown(nested(tt.levels))
			c := v.client()
			v.during(func() {
				c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, Node: node, ResourceNamesSubscribe: []string{"a"}})
				if tt.code == codes.OK {
					v.await("a response", func() bool { return len(c.Responses()) > 0 })
				} else if err := c.WaitEnd(t.Context()); status.Code(err) != tt.code {
					t.Errorf("metadata of %d levels: the stream ended with %v, want %v", tt.levels, err, tt.code)
				}
				if tt.http == 0 {
					return
				}
				body := `{"node":{"id":"n","metadata":{"k":` + strings.Repeat("[", tt.levels) + strings.Repeat("]", tt.levels) + `}}}`
				v.poll(strings.NewReader(body), tt.http)
			})
		})
	}
}

// TestB35_ConnectionFlood: the relay closes connections above the limit per client address, and no connections of
// other addresses. (B.35)
func TestB35_ConnectionFlood(t *testing.T) {
	v := serve(t, "TENDER_MAX_CONNECTIONS_PER_ADDRESS=20")
	v.during(func() {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.3")}}
		for range 500 {
			conn, err := from.Dial("tcp", v.Addrs()[0].String())
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
		}
		v.await("rejections of all connections above the limit", func() bool { return v.Stats().Refused[guard.LimitPeerConnections] == 480 })
		if n := v.Stats().Connections; n != 20+1 {
			t.Errorf("%d connections are open, want 20 and that of the neighbour", n)
		}
	})
	v.await("only the connection of the neighbour", func() bool { return v.Stats().Connections == 1 })
}

// TestB35_SlowTLS: a TLS handshake that arrives one byte at a time times out, for gRPC and for polls. (B.35)
func TestB35_SlowTLS(t *testing.T) {
	ca := certs.NewCA(t)
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.2"}}).Write(t, t.TempDir())
	v := serve(t, "TENDER_FIRST_REQUEST_TIMEOUT=500ms", "TENDER_TLS_LISTEN=127.0.0.2:0", "TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key)
	v.during(func() {
		for _, addr := range []net.Addr{v.TLSAddrs()[0], v.RESTAddrs()[0]} {
			raw, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Error(err)
				return
			}
			began := time.Now()
			err = tls.Client(slow{raw}, &tls.Config{ServerName: "relay", MinVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
			if took := time.Since(began); err == nil || took < 400*time.Millisecond || took > 5*time.Second {
				t.Errorf("the handshake with %v ended after %v with %v, want an error after 500ms", addr, took, err)
			}
			_ = raw.Close()
		}
	})
}

// A slow connection sends one byte every 20 ms.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range b {
		<-tick.C
		if _, err := s.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}
