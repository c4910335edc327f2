package peers

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// giver starts a peer with a number of views, connected or not, that gives a text; nil hangs. It returns its address.
func giver(t *testing.T, roots *x509.CertPool, instance string, views int, connected bool, give http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == admin.SnapshotPath:
			give(w, r)
		case instance == "":
			http.Error(w, `{"error": "no peer"}`, http.StatusForbidden)
		default:
			_ = json.NewEncoder(w).Encode(admin.TierSummary{
				Instance: instance, NodeID: "node of " + instance, Views: make([]admin.TierView, views),
				Origins: []admin.TierOrigin{{Name: "default", Connected: connected}},
			})
		}
	}))
	t.Cleanup(s.Close)
	roots.AddCert(s.Certificate())
	return s.Listener.Addr().String()
}

func text(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// hangs never ends a response.
func hangs(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// TestTakeAsksTheBestPeerFirst: a peer that is connected to its origins comes before others, then one with more views. One
// without views is not asked, nor one that rejects this relay.
func TestTakeAsksTheBestPeerFirst(t *testing.T) {
	roots := x509.NewCertPool()
	tier := New(Config{
		Targets: []string{
			giver(t, roots, "few", 1, true, text("few")), giver(t, roots, "", 0, true, text("rejects")),
			giver(t, roots, "none", 0, true, text("none")), giver(t, roots, "lost", 9, false, text("lost")),
			giver(t, roots, "many", 3, true, text("many")), "127.0.0.1:1",
		},
		TLS: trust(roots),
	})
	var given []string
	err := tier.Take(t.Context(), func(from Giver, response io.Reader) error {
		content, err := io.ReadAll(response)
		given = append(given, string(content))
		if err == nil && from.NodeID != "node of "+string(content) {
			t.Errorf("%+v gave %s", from, content)
		}
		return errors.New("not this one")
	})
	if got := strings.Join(given, " "); got != "many few lost" {
		t.Errorf("asked %s, want many, few and lost", got)
	}
	for _, want := range []string{"not this one", "it has no views", "no peer", "unreachable"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestTakeLeavesTimeForOthers: a peer that does not end its response uses half of the time.
func TestTakeLeavesTimeForOthers(t *testing.T) {
	roots := x509.NewCertPool()
	tier := New(Config{
		Targets: []string{giver(t, roots, "hangs", 2, true, hangs), giver(t, roots, "good", 1, true, text("good"))},
		TLS:     trust(roots),
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var last string
	err := tier.Take(ctx, func(_ Giver, response io.Reader) error {
		content, err := io.ReadAll(response)
		if last = string(content); last == "" {
			err = errors.New("nothing was given")
		}
		return err
	})
	if err != nil || last != "good" {
		t.Errorf("got %q, error %v, want the state of the second peer", last, err)
	}
}
