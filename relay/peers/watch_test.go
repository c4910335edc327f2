package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
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

// garbage are answers with the status 200 of something that is no relay, or is broken, and a part of the error for each.
var garbage = map[string]struct {
	body string
	want string
}{
	"nothing":                 {"", "is not that of a relay"},
	"a page":                  {"<!doctype html><title>Sign in</title>", "is not that of a relay"},
	"truncated":               {`{"instance": "peer", "mark": "1", "halted": [{"part": "cds/a"`, "is not that of a relay"},
	"cut short":               {`{"instance": "peer", "mark": "1"}` + cutShort, "read the answer"},
	"two answers":             {`{"instance": "peer", "mark": "1"}{"instance": "peer", "mark": "2"}`, "is not that of a relay"},
	"null":                    {"null", "it has no mark"},
	"an empty object":         {"{}", "it has no mark"},
	"no instance":             {`{"mark": "1"}`, "or no instance"},
	"a list":                  {"[]", "is not that of a relay"},
	"a text":                  {`"halted"`, "is not that of a relay"},
	"a number as a mark":      {`{"instance": "peer", "mark": 1}`, "is not that of a relay"},
	"an object for a list":    {`{"instance": "peer", "mark": "1", "halted": {"part": "cds/a"}}`, "is not that of a relay"},
	"a text for a halt":       {`{"instance": "peer", "mark": "1", "halted": ["cds/a"]}`, "is not that of a relay"},
	"a text for a number":     {`{"instance": "peer", "mark": "1", "halted": [{"stage": "1"}]}`, "is not that of a relay"},
	"a number that is large":  {`{"instance": "peer", "mark": "1", "halted": [{"stage": 1e300}]}`, "is not that of a relay"},
	"a text that is no time":  {`{"instance": "peer", "mark": "1", "halted": [{"at": "yesterday"}]}`, "is not that of a relay"},
	"a text for resources":    {`{"instance": "peer", "mark": "1", "halted": [{"sections": [{"resources": "all"}]}]}`, "is not that of a relay"},
	"nested without end":      {strings.Repeat(`{"halted":[`, 100_000), "is not that of a relay"},
	"an enormous body":        {`{"instance": "peer", "mark": "` + strings.Repeat("x", maxAnswerBytes), "more than 4194304 bytes"},
	"bytes that are no text":  {"\x00\xff\xfe{}", "is not that of a relay"},
	"a compressed body":       {"\x1f\x8b\x08\x00\x00\x00\x00\x00", "is not that of a relay"},
	"an error with status OK": {`{"error": "broken"}`, "it has no mark"},
}

// cutShort ends a body before its length.
const cutShort = "\n\n"

// TestB54_GarbageIsAnError: a peer that answers with the status 200 and garbage is one that does not answer: the watch, and the status
// of the tier, name it with the reason. What it tells is heard once it answers again. Other peers are heard meanwhile.
func TestB54_GarbageIsAnError(t *testing.T) {
	roots := x509.NewCertPool()
	well := newDecider(t, roots, "well")
	targets, cases := []string{well.address()}, make(map[string]string)
	var mended atomic.Bool
	for name, tt := range garbage {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case mended.Load() && r.URL.Query().Get("after") != "":
				<-r.Context().Done()
			case mended.Load():
				_ = json.NewEncoder(w).Encode(admin.PeerRollouts{Instance: name, Mark: "1"})
			default:
				body, cut := strings.CutSuffix(tt.body, cutShort)
				if cut {
					w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
				}
				_, _ = io.WriteString(w, body)
			}
		}))
		t.Cleanup(server.Close)
		roots.AddCert(server.Certificate())
		address := server.Listener.Addr().String()
		targets, cases[address] = append(targets, address), name
	}
	tier := New(Config{Targets: targets, TLS: trust(roots)})
	for _, r := range tier.Status(t.Context(), &admin.TierSummary{Instance: "self"}).Relays {
		summary := strings.HasPrefix(garbage[cases[r.Address]].body, `{"instance": "peer"`) // which needs nothing else
		if cases[r.Address] != "" && r.Error == "" && !summary {
			t.Errorf("%s: the status has the relay %+v, want an error", cases[r.Address], r)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex // calls about two addresses may be concurrent
	failed, heard := make(map[string]bool), make(map[string]bool)
	tier.Watch(ctx, "self", func(address string, answer *admin.PeerRollouts, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch name := cases[address]; {
		case err != nil && (name == "" || !strings.Contains(err.Error(), garbage[name].want)):
			t.Errorf("%s: error %v, want %q", name, err, garbage[name].want)
		case err != nil:
			failed[name] = true
		case answer != nil:
			heard[answer.Instance] = true
		}
		mended.Store(len(failed) == len(garbage) && heard["well"])
		if len(heard) == len(garbage)+1 {
			cancel()
		}
	})
	for name := range garbage {
		if !failed[name] || !heard[name] {
			t.Errorf("%s: an error %v, heard once it answers %v", name, failed[name], heard[name])
		}
	}
}
