package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// A decider is a peer whose rollouts decide.
type decider struct {
	*httptest.Server
	mu      sync.Mutex
	answer  admin.PeerRollouts
	fails   bool
	changed chan struct{}
}

// newDecider starts a peer.
func newDecider(t *testing.T, roots *x509.CertPool, instance string) *decider {
	t.Helper()
	d := &decider{answer: admin.PeerRollouts{Instance: instance, Mark: "1"}, changed: make(chan struct{})}
	d.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != admin.RolloutsPath {
			http.NotFound(w, r)
			return
		}
		for {
			d.mu.Lock()
			answer, fails, changed := d.answer, d.fails, d.changed
			d.mu.Unlock()
			switch {
			case fails:
				http.Error(w, `{"error": "broken"}`, http.StatusInternalServerError)
				return
			case answer.Mark != r.URL.Query().Get("after"):
				_ = json.NewEncoder(w).Encode(answer)
				return
			}
			select {
			case <-changed:
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(d.Close)
	roots.AddCert(d.Certificate())
	return d
}

// address returns the address of the peer.
func (d *decider) address() string { return d.Listener.Addr().String() }

// set changes what the peer answers, and ends what waits for that.
func (d *decider) set(mark string, fails bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer.Mark, d.fails = mark, fails
	close(d.changed)
	d.changed = make(chan struct{})
}

// TestB54_PeersAreWatched: each answer of a peer is heard, also the same one after an error. This relay is no peer of itself.
func TestB54_PeersAreWatched(t *testing.T) {
	roots := x509.NewCertPool()
	peer, self := newDecider(t, roots, "peer"), newDecider(t, roots, "self")
	tier := New(Config{
		Targets: []string{peer.address(), self.address(), "dns:///nobody.invalid:1"},
		TLS:     trust(roots),
	})
	type event struct{ address, heard string }
	events := make(chan event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with cancel
		defer close(ended)
		tier.Watch(ctx, "self", func(address string, answer *admin.PeerRollouts, err error) {
			e := event{address, "nothing"}
			if err != nil {
				e.heard = "error"
			} else if answer != nil {
				e.heard = answer.Mark
			}
			select {
			case events <- e:
			default: // a peer that fails is asked each second
			}
		})
	}()
	want := func(address, heard string) {
		t.Helper()
		for patience := time.After(time.Minute); ; {
			select {
			case e := <-events:
				if e.address == address && e.heard != heard && (heard != "error" || e.heard != "nothing") && e.heard != "error" {
					t.Errorf("%s: heard %q, want %q", address, e.heard, heard)
				}
				if e == (event{address, heard}) {
					return
				}
			case <-patience:
				t.Fatalf("heard not %q of %s", heard, address)
			}
		}
	}
	want(peer.address(), "1")
	peer.set("2", false)
	want(peer.address(), "2")
	peer.set("2", true)
	want(peer.address(), "error")
	peer.set("2", false)
	want(peer.address(), "2")
	cancel()
	<-ended
	for close(events); ; {
		e, more := <-events
		if !more {
			return
		}
		if e.address == self.address() && e.heard != "nothing" {
			t.Errorf("heard %q of this relay", e.heard)
		}
	}
}

// TestB54_AnErrorIsReportedOnce: a peer that does not answer is asked again, and reported again only with another error.
func TestB54_AnErrorIsReportedOnce(t *testing.T) {
	answers := []string{"broken", "broken", "other", ""}
	var asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := int(asked.Add(1)) - 1
		if at >= len(answers) {
			<-r.Context().Done()
			return
		}
		if failure := answers[at]; failure != "" {
			http.Error(w, `{"error": "`+failure+`"}`, http.StatusInternalServerError)
		} else {
			_ = json.NewEncoder(w).Encode(admin.PeerRollouts{Instance: "peer", Mark: "1"})
		}
	}))
	defer server.Close()
	tier := tierOf(server)
	ctx, cancel := context.WithCancel(t.Context())
	var heard []string
	tier.Watch(ctx, "self", func(_ string, answer *admin.PeerRollouts, err error) {
		switch {
		case err != nil:
			heard = append(heard, err.Error())
		case answer != nil:
			heard = append(heard, answer.Mark)
			cancel()
		}
	})
	if want := []string{"broken", "other", "1"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// tierOf returns a tier with one peer.
func tierOf(server *httptest.Server) *Tier {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return New(Config{Targets: []string{server.Listener.Addr().String()}, TLS: trust(roots)})
}

// trust returns the TLS configuration for peers with certificates of some CAs.
func trust(roots *x509.CertPool) func(string) *tls.Config {
	return func(string) *tls.Config { return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13} }
}

// TestB54_APeerThatDoesNotWait: a peer that answers at once each time, with any mark, is asked a few times per second only.
func TestB54_APeerThatDoesNotWait(t *testing.T) {
	const mark = "a b&after=c#\n%zz"
	asked := make(chan string, 100)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("after")
		_ = json.NewEncoder(w).Encode(admin.PeerRollouts{Instance: "peer", Mark: mark})
	}))
	defer server.Close()
	tier := tierOf(server)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with cancel
		defer close(ended)
		tier.Watch(ctx, "self", func(_ string, answer *admin.PeerRollouts, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}()
	began := time.Now()
	for i, want := range []string{"", mark, mark, mark} {
		if got := <-asked; got != want {
			t.Errorf("request %d is after %q, want %q", i, got, want)
		}
	}
	if lasted := time.Since(began); lasted < 3*askEvery {
		t.Errorf("four requests in %v, want at most one each %v", lasted, askEvery)
	}
	cancel()
	<-ended
}
