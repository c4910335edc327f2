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

// A command that takes long is not ended by the bounds of the server, but by its own, and
// when who asked has gone.
func TestLongCommands(t *testing.T) {
	for _, tt := range []struct {
		name       string
		long, took time.Duration // how long the command may and does take
		patience   time.Duration // of who asks
		want       string
	}{
		{"longer than the server reads and writes", 10 * time.Minute, 9 * time.Minute, time.Hour, `"done"`},
		{"longer than it may", 10 * time.Minute, 11 * time.Minute, time.Hour, "context deadline exceeded"},
		{"longer than anybody waits", 10 * time.Minute, time.Minute, 30 * time.Second, "context canceled"},
		{"an ordinary one", 0, 9 * time.Second, time.Hour, `"done"`},
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
				c.Long = tt.long
				s := admin.New(admin.Config{
					Metrics: http.NotFoundHandler(), GRPC: grpc.NewServer(), Commands: []admin.Command{c},
				})
				l := memnet.Listen(1 << 16)
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }() // received below
				transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }}
				ctx, cancel := context.WithTimeout(t.Context(), tt.patience)
				defer cancel()
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/v1/wait", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/json")
				began := time.Now()
				resp, err := (&http.Client{Transport: transport}).Do(r)
				if waited := time.Since(began); waited != min(tt.took, max(tt.long, time.Minute), tt.patience) {
					t.Errorf("answered after %v", waited)
				}
				if err == nil {
					text, _ := io.ReadAll(resp.Body)
					if err := resp.Body.Close(); err != nil || !strings.Contains(string(text), tt.want) {
						t.Errorf("answered %q, %v, want %s", text, err, tt.want)
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
