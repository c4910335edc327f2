package admin_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// TestCommandTimeout verifies that a command ends by its own timeout instead of the timeouts of the server, and when
// the client disconnects.
func TestCommandTimeout(t *testing.T) {
	for _, tt := range []struct {
		name          string
		timeout, took time.Duration // timeout and duration of the command
		clientTimeout time.Duration
		want          string
	}{
		{"longer than the timeouts of the server", 10 * time.Minute, 9 * time.Minute, time.Hour, `"done"`},
		{"longer than its timeout", 10 * time.Minute, 11 * time.Minute, time.Hour, "context deadline exceeded"},
		{"longer than the timeout of the client", 10 * time.Minute, time.Minute, 30 * time.Second, "context canceled"},
		{"without a timeout of its own", 0, 9 * time.Second, time.Hour, `"done"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan string, 1)
				c := admin.NewCommand("wait", func(ctx context.Context, _ struct{}) (string, error) {
					select {
					case <-time.After(tt.took):
						ended <- `"done"`
						return "done", nil
					case <-ctx.Done():
						ended <- ctx.Err().Error()
						return "", ctx.Err()
					}
				})
				c.Timeout = tt.timeout
				s := admin.New(admin.Config{
					Metrics: http.NotFoundHandler(), GRPC: grpc.NewServer(), Commands: []admin.Command{c},
				})
				l := memnet.Listen(1 << 16)
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }() // received below
				transport := &http.Transport{
					DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) },
				}
				ctx, cancel := context.WithTimeout(t.Context(), tt.clientTimeout)
				defer cancel()
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/v1/wait", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/json")
				began := time.Now()
				resp, err := (&http.Client{Transport: transport}).Do(r)
				if waited := time.Since(began); waited != min(tt.took, max(tt.timeout, time.Minute), tt.clientTimeout) {
					t.Errorf("response after %v", waited)
				}
				if err == nil {
					text, _ := io.ReadAll(resp.Body)
					if err := resp.Body.Close(); err != nil || !strings.Contains(string(text), tt.want) {
						t.Errorf("response %q, error %v, want %s", text, err, tt.want)
					}
				}
				if got := <-ended; got != tt.want {
					t.Errorf("the command ended with %s, want %s", got, tt.want)
				}
				transport.CloseIdleConnections()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
