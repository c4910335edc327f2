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

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// client returns a Delta ADS client that acknowledges every response.
func (v *victim) client(opts ...grpc.DialOption) *relaytest.Client {
	v.t.Helper()
	return relaytest.NewClient(v.t, v.Conn(opts...), relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
}

// TestB32_CompressedBomb: the relay refuses compressed requests of streams and polls without
// decompressing them. (B.32)
func TestB32_CompressedBomb(t *testing.T) {
	zeros := strings.Repeat("\x00", mebibyte)
	v := serve(t)
	c := v.client(grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	v.during(func() {
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, ResponseNonce: zeros})
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("the stream ended with %v, want UNIMPLEMENTED", err)
		}
		v.poll(bytes.NewReader(compressed(t, []byte(zeros))), http.StatusUnsupportedMediaType, "Content-Encoding", "gzip")
	})
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

// TestB35_TenTimesTheNames: the relay refuses names above the limit of a stream, in one request or several, subscribed
// or in initial_resource_versions. Unsubscribed names do not count. The stream stays open. (B.35)
func TestB35_TenTimesTheNames(t *testing.T) {
	const most = 1000
	names := make([]string, 10*most)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	some := names[:most+1]
	held := make(map[string]string, len(some))
	for _, name := range some {
		held[name] = ""
	}
	v := serve(t, fmt.Sprint("TENDER_MAX_NAMES=", most))
	for _, tt := range []struct {
		name    string
		refused int64
		says    []*discoverypb.DeltaDiscoveryRequest
	}{
		{"asked for", 2, []*discoverypb.DeltaDiscoveryRequest{{ResourceNamesSubscribe: names}}},
		{"asked for in parts", 1, []*discoverypb.DeltaDiscoveryRequest{{ResourceNamesSubscribe: some[:most/2]}, {ResourceNamesSubscribe: some[most/2:]}}},
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
				v.await("refusals of names", func() bool { return v.Stats().Refused[guard.LimitNames] == before+tt.refused })
				c.Subscribe(relaytest.ClusterType)
				c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) > 0 })
			})
			c.Close()
		})
	}
}

// TestB35_SlowTLS: a TLS handshake that arrives one byte at a time fails, because it takes longer than the timeout, for
// gRPC and for polls. (B.35)
func TestB35_SlowTLS(t *testing.T) {
	ca := certs.NewCA(t)
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.2"}}).Write(t, t.TempDir())
	v := serve(t, "TENDER_FIRST_REQUEST_TIMEOUT=3s", "TENDER_TLS_LISTEN=127.0.0.2:0", "TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key)
	// The handshake is complete, for any certificate, after more than 200 bytes.
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, CurvePreferences: []tls.CurveID{tls.X25519}}
	v.during(func() {
		for _, addr := range []net.Addr{v.TLSAddrs()[0], v.RESTAddrs()[0]} {
			raw, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Error(err)
				return
			}
			if err := tls.Client(slow{raw}, config).HandshakeContext(t.Context()); err == nil {
				t.Errorf("the handshake with %v is complete, want its end by the timeout", addr)
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
