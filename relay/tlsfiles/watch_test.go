package tlsfiles_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// A watched is a watch that runs in a bubble, and its log.
type watched struct {
	*tlsfiles.Watch
	log *logged
}

// logged is what was logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// take returns what was logged since it was called last.
func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// watch runs a watch, whose files open opens before.
func watch(t *testing.T, open func(w *tlsfiles.Watch) error) watched {
	t.Helper()
	log := new(logged)
	w := tlsfiles.New(slog.New(slog.NewTextHandler(log, nil)))
	if err := open(w); err != nil {
		t.Fatal(err)
	}
	go w.Run(t.Context()) // awaited by the bubble
	return watched{w, log}
}

// after returns what is logged in the meantime.
func (w watched) after(d time.Duration) string {
	synctest.Wait()
	w.log.take()
	time.Sleep(d)
	synctest.Wait()
	return w.log.take()
}

// settled is when a change is in force: two looks have seen it.
const settled = 2100 * time.Millisecond

// openToken returns an open of a token, which it puts into calls.
func openToken(path string, calls *credentials.PerRPCCredentials) func(*tlsfiles.Watch) error {
	return func(w *tlsfiles.Watch) (err error) {
		*calls, err = w.Calls(tlsfiles.CallConfig{Token: named("TOKEN", path), Headers: map[string]string{"x-tenant": "blue"}})
		return err
	}
}

// authorization returns what a call is told.
func authorization(t *testing.T, calls credentials.PerRPCCredentials) string {
	t.Helper()
	headers, err := calls.GetRequestMetadata(t.Context())
	if err != nil || headers["x-tenant"] != "blue" {
		t.Errorf("GetRequestMetadata: %v, %v, want x-tenant blue", headers, err)
	}
	return headers["authorization"]
}

// TestTokenIsReadAgain holds that calls are told the token that is in the file, however it
// came there, and the one before while that is of no use.
func TestTokenIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := certs.WriteFile(t, dir, "token", []byte("one\n"))
		var calls credentials.PerRPCCredentials
		w := watch(t, openToken(path, &calls))
		if got := authorization(t, calls); got != "Bearer one" || !calls.RequireTransportSecurity() {
			t.Errorf("a call is told %q, want the first token, and only over TLS", got)
		}
		tests := []struct {
			content, want, logged string
			refused               int64
		}{
			{"two", "two", "credential file reloaded", 0},
			{"", "two", "it has no token", 1},
			{"three\n", "three", "credential file reloaded", 1},
		}
		for _, tt := range tests {
			certs.WriteFile(t, dir, "token", []byte(tt.content))
			logged := w.after(settled)
			if strings.Count(logged, "\n") != 1 || !strings.Contains(logged, tt.logged) || tt.content != "" && strings.Contains(logged, strings.TrimSpace(tt.content)) {
				t.Errorf("token %q logs %q, want one line with %s, and not the token", tt.content, logged, tt.logged)
			}
			if got := authorization(t, calls); got != "Bearer "+tt.want {
				t.Errorf("after token %q a call is told %q, want %s", tt.content, got, tt.want)
			}
			if got := w.Status()[0]; got.Refused != tt.refused || (got.Err != nil) != (tt.content == "") {
				t.Errorf("after token %q: %d changes refused, and %v, want %d", tt.content, got.Refused, got.Err, tt.refused)
			}
		}
	})
}

// TestLinksAreFollowed holds that a change is seen which is that of a link somewhere on the
// way to the file, as where Kubernetes swaps ..data, or Certbot links into an archive.
func TestLinksAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, version := range []string{"v1", "v2"} {
			if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
				t.Fatal(err)
			}
			certs.WriteFile(t, filepath.Join(dir, version), "token", []byte(version))
		}
		link := func(to, from string) {
			t.Helper()
			next := filepath.Join(dir, "next")
			if err := os.Symlink(to, next); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(next, filepath.Join(dir, from)); err != nil {
				t.Fatal(err)
			}
		}
		link("v1", "..data")
		link("..data/token", "token")
		var calls credentials.PerRPCCredentials
		w := watch(t, openToken(filepath.Join(dir, "token"), &calls))
		link("v2", "..data")
		w.after(settled)
		if got := authorization(t, calls); got != "Bearer v2" {
			t.Errorf("after the swap a call is told %q, want v2", got)
		}
	})
}

// TestBadFileChangesNothing holds that what cannot be used is said once, in one line,
// and by the status for as long; and that the file is taken when it can be used again.
func TestBadFileChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := certs.NewCA(t)
		first := ca.Sign(certs.Leaf{})
		cert, key := first.Write(t, dir)
		w := watch(t, func(w *tlsfiles.Watch) error {
			_, err := w.Client(tlsfiles.ClientConfig{Cert: named("CERT", cert), Key: named("KEY", key)})
			return err
		})
		loaded := w.Status()[0].LoadedAt
		next := ca.Sign(certs.Leaf{NotAfter: time.Now().Add(2 * time.Hour)})
		expired := ca.Sign(certs.Leaf{NotAfter: time.Now().Add(-time.Minute)})
		tests := []struct {
			name      string
			cert, key []byte
			want      string
		}{
			{"the certificate alone", next.Cert, first.Key, "it is not the key of the certificate in CERT="},
			{"half the certificate", first.Cert[:len(first.Cert)/2], first.Key, "it has one that is cut off"},
			{"nothing", nil, nil, "it has no certificate in PEM"},
			{"an expired one", expired.Cert, expired.Key, "the certificate has expired at "},
		}
		for _, tt := range tests {
			certs.Pair{Cert: tt.cert, Key: tt.key}.Write(t, dir)
			got := w.after(time.Minute)
			if strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, tt.want) {
				t.Errorf("%s: logs %q, want one warning with %s", tt.name, got, tt.want)
			}
			s := w.Status()[0]
			if s.Err == nil || !strings.Contains(s.Err.Error(), tt.want) || !s.LoadedAt.Equal(loaded) || time.Until(s.NotAfter) > time.Hour {
				t.Errorf("%s: status %+v, want an error with %s, and the first certificate", tt.name, s, tt.want)
			}
		}
		first.Write(t, dir)
		if got, s := w.after(settled), w.Status()[0]; got != "" || s.Err != nil || !s.LoadedAt.Equal(loaded) {
			t.Errorf("the first one again: logs %q, status %+v, want as at first", got, s)
		}
		next.Write(t, dir)
		if got, s := w.after(settled), w.Status()[0]; !strings.Contains(got, "credential file reloaded") || s.Err != nil || time.Until(s.NotAfter) < time.Hour {
			t.Errorf("the next one: logs %q, status %+v, want it in force", got, s)
		}
	})
}

// TestFilesHaveASecond holds that files are not read while they are being written: a
// key has time to follow its certificate, and a bundle to be written to its end.
func TestFilesHaveASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := certs.NewCA(t)
		cert, key := ca.Sign(certs.Leaf{}).Write(t, dir)
		bundle := certs.WriteFile(t, dir, "ca.pem", ca.PEM)
		w := watch(t, func(w *tlsfiles.Watch) error {
			_, err := w.Client(tlsfiles.ClientConfig{CA: named("CA", bundle), Cert: named("CERT", cert), Key: named("KEY", key)})
			return err
		})
		time.Sleep(900 * time.Millisecond)
		next := ca.Sign(certs.Leaf{})
		certs.WriteFile(t, dir, "tls.crt", next.Cert)
		certs.WriteFile(t, dir, "ca.pem", ca.PEM[:len(ca.PEM)/2])
		if got := w.after(900 * time.Millisecond); got != "" { // a look has come
			t.Errorf("half of what is written: logs %q, want nothing", got)
		}
		certs.WriteFile(t, dir, "tls.key", next.Key)
		certs.WriteFile(t, dir, "ca.pem", append(ca.PEM, certs.NewCA(t).PEM...))
		if got := w.after(settled); strings.Count(got, "\n") != 2 || strings.Count(got, "credential file reloaded") != 2 {
			t.Errorf("all of it: logs %q, want both changes", got)
		}
	})
}

// TestExpiryIsSaid holds that a certificate that expires without a successor is said
// once.
func TestExpiryIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := certs.NewCA(t)
		cert, key := ca.Sign(certs.Leaf{NotAfter: time.Now().Add(time.Hour)}).Write(t, t.TempDir())
		w := watch(t, func(w *tlsfiles.Watch) error {
			_, err := w.Client(tlsfiles.ClientConfig{Cert: named("CERT", cert), Key: named("KEY", key)})
			return err
		})
		if got := w.after(time.Hour - time.Second); got != "" {
			t.Errorf("before it expires: logs %q", got)
		}
		if got := w.after(time.Hour); strings.Count(got, "\n") != 1 || !strings.Contains(got, "certificate expired") {
			t.Errorf("when it has expired: logs %q, want one line that says so", got)
		}
	})
}

// TestTokensThatCannotBeUsed holds what is no token, of which no error quotes anything.
func TestTokensThatCannotBeUsed(t *testing.T) {
	for _, content := range []string{"", "\n", "Bearer canary", "canary\ncanary", "canäry", strings.Repeat("canary", 3000)} {
		path := certs.WriteFile(t, t.TempDir(), "token", []byte(content))
		_, err := tlsfiles.New(nil).Calls(tlsfiles.CallConfig{Token: named("TOKEN", path)})
		if err == nil || !strings.HasPrefix(err.Error(), `TOKEN="`+path+`": it has `) || strings.Contains(err.Error(), "can") {
			t.Errorf("a file with %.20q: %v, want an error that does not quote it", content, err)
		}
	}
}
