package interop_test

import (
	"context"
	"fmt"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	servicepb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// limitType is the type of the resources of envoyproxy/ratelimit.
const limitType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// TestInterop_RateLimit: envoyproxy/ratelimit receives its limits through the relay, which has no built-in support
// for their type. It enforces all limits after one has changed, and none that was removed, also after restarts of the
// control plane and the relay.
func TestInterop_RateLimit(t *testing.T) {
	need(t, rateLimiter)
	origin := envoytest.NewControlPlane(t)
	origin.Put(limit("a", "get"), limit("b", "get"))
	address := proxy.FreeAddress(t)
	r := envoytest.StartRelay(t, origin.Addr, "TENDER_LISTEN="+address)
	s := newLimiter(t, address)
	s.limits("a get", "b get")

	origin.Put(limit("b", "put"))
	s.limits("a get", "b put")
	origin.Put(limit("c", "get"))
	s.limits("a get", "b put", "c get")
	origin.Remove(limitType, "a")
	s.limits("b put", "c get")

	origin.Stop()
	r.Kill()
	envoytest.StartRelay(t, origin.Addr, "TENDER_LISTEN="+address)
	origin.Apply("", func(w *envoytest.World) {
		w.Put(limit("a", "put"))
		w.Remove(limitType, "b")
	})
	origin.Restart()
	s.limits("a put", "c get")
}

// limit returns a configuration that allows no requests of a method in a domain. A limit of 0 needs no storage for
// counters.
func limit(domain, method string) *configpb.RateLimitConfig {
	return &configpb.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*configpb.RateLimitDescriptor{{
		Key: "method", Value: method,
		RateLimit: &configpb.RateLimitPolicy{Unit: configpb.RateLimitUnit_HOUR, RequestsPerUnit: 0},
	}}}
}

// A limiter is a running rate limit service.
type limiter struct {
	*program
	client servicepb.RateLimitServiceClient
}

// newLimiter starts the service as a client of the relay at an address. Its storage is unreachable, because the
// limits need none.
func newLimiter(t *testing.T, xds string) *limiter {
	t.Helper()
	serves := proxy.FreeAddress(t)
	nobody, other := proxy.FreeAddress(t), proxy.FreeAddress(t)
	p := start(t, *rateLimiter, []string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + xds, "CONFIG_GRPC_XDS_NODE_ID=limits-1",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=100ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=1s",
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + portOf(serves), "HOST=127.0.0.1", "PORT=" + portOf(other),
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + portOf(proxy.FreeAddress(t)),
		"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + nobody, "DISABLE_STATS=true", "LOG_LEVEL=info",
	})
	conn, err := grpc.NewClient(serves, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // all calls have ended
	return &limiter{program: p, client: servicepb.NewRateLimitServiceClient(conn)}
}

// limits waits until the service rejects exactly the wanted requests, each a domain and a method.
func (l *limiter) limits(want ...string) {
	l.t.Helper()
	l.Await(fmt.Sprintf("service that rejects exactly %q", want), func() error {
		var got []string
		for _, domain := range []string{"a", "b", "c"} {
			for _, method := range []string{"get", "put"} {
				over, err := l.over(domain, method)
				if err != nil {
					return err
				}
				if over {
					got = append(got, domain+" "+method)
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("it rejects %q", got)
		}
		return nil
	})
}

// over reports whether a request is over the limit.
func (l *limiter) over(domain, method string) (bool, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), relaytest.Patience)
	defer cancel()
	resp, err := l.client.ShouldRateLimit(ctx, &servicepb.RateLimitRequest{
		Domain: domain,
		Descriptors: []*commonpb.RateLimitDescriptor{{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "method", Value: method}},
		}},
	})
	return resp.GetOverallCode() == servicepb.RateLimitResponse_OVER_LIMIT, err
}
