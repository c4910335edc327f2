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

// client returns a client of Delta ADS that may be told anything.
func (v *victim) client(opts ...grpc.DialOption) *relaytest.Client {
	v.t.Helper()
	return relaytest.NewClient(v.t, v.Conn(opts...), relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
}

// B.32: what is small until it is unpacked is not unpacked, be it on a stream or the body of a poll.
func TestB32_CompressedBomb(t *testing.T) {
	zeros := strings.Repeat("\x00", 4<<20)
	v := serve(t, "TENDER_MAX_REQUEST_BYTES=16MiB")
	c := v.client(grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	v.during(func() {
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, ResponseNonce: zeros})
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("the bomb was answered %v, want UNIMPLEMENTED", err)
		}
		v.poll(bytes.NewReader(compressed(t, []byte(zeros))), http.StatusUnsupportedMediaType, "Content-Encoding", "gzip")
	})
}

// B.32: with TENDER_REQUEST_COMPRESSION=gzip, it is unpacked as far as requests may be large.
func TestB32_CompressedBombWhereGzipIsAccepted(t *testing.T) {
	v := serve(t, "TENDER_MAX_REQUEST_BYTES=1MiB", "TENDER_REQUEST_COMPRESSION=gzip")
	c := v.client(grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	v.during(func() {
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, ResponseNonce: strings.Repeat("\x00", 4<<20)})
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the bomb was answered %v, want RESOURCE_EXHAUSTED", err)
		}
	})
	if n := v.Stats().Refused[guard.LimitRequest]; n != 1 {
		t.Errorf("%d requests were counted as too large, want 1", n)
	}
}

// poll polls for clusters with a body, and checks the status of the answer.
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
		v.t.Errorf("the poll was answered %d, want %d", resp.StatusCode, want)
	}
}

// B.35: more names than a stream may have are refused in one request and over several, whether they
// are asked for or held; more that are given up are none of anybody. The stream goes on.
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
	v := serve(t, "TENDER_FIRST_REQUEST_TIMEOUT=5m") // a busy machine takes its time for a million names
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
				v.await("they are refused", func() bool { return v.Stats().Refused[guard.LimitNames] == before+tt.refused })
				c.Subscribe(relaytest.ClusterType)
				c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) > 0 })
			})
			c.Close()
		})
	}
}

// nested returns a Node whose metadata are so deep.
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

// Metadata may be deep, and what is too deep to be decoded is an error of the client's; it is no
// stack that grows.
func TestDeepMetadata(t *testing.T) {
	v := serve(t, "TENDER_NODE_GROUP_BY=metadata.k")
	for _, tt := range []struct {
		levels int
		code   codes.Code
		http   int // of a poll; 0 for none
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
					v.await("it is served", func() bool { return len(c.Responses()) > 0 })
				} else if err := c.WaitEnd(t.Context()); status.Code(err) != tt.code {
					t.Errorf("metadata of %d levels were answered %v, want %v", tt.levels, err, tt.code)
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

// B.35: connections of one peer beyond its limit are closed, and those of others are not.
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
		v.await("all others are refused", func() bool { return v.Stats().Refused[guard.LimitPeerConnections] == 480 })
		if n := v.Stats().Connections; n != 20+1 {
			t.Errorf("%d connections are open, want 20 and the neighbour's", n)
		}
	})
	v.await("only the neighbour is left", func() bool { return v.Stats().Connections == 1 })
}

// B.35: a handshake of TLS that comes a byte at a time is not waited for, by either door.
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

// A slow connection is one on which every byte takes its time.
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
