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

// A watched is a running watch in a synctest bubble, with its log.
type watched struct {
	*tlsfiles.Watch
	log *logged
}

// A logged is an io.Writer that stores the log. It may be used from any goroutine.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// take returns the log since the last call, and removes it.
func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// watch calls open and starts a watch.
func watch(t *testing.T, open func(w *tlsfiles.Watch) error) watched {
	t.Helper()
	log := new(logged)
	w := tlsfiles.New(slog.New(slog.NewTextHandler(log, nil)))
	if err := open(w); err != nil {
		t.Fatal(err)
	}
	go w.Run(t.Context()) // the bubble waits for it
	return watched{w, log}
}

// after waits for a duration and returns what is logged in this time.
func (w watched) after(d time.Duration) string {
	synctest.Wait()
	w.log.take()
	time.Sleep(d)
	synctest.Wait()
	return w.log.take()
}

// reloaded calls Reload and returns what is logged.
func (w watched) reloaded() string {
	synctest.Wait()
	w.log.take()
	w.Reload()
	w.Reload()
	synctest.Wait()
	return w.log.take()
}

// settled is the time after which a change is in force: the watch has read the files at least twice.
const settled = 2100 * time.Millisecond

// openToken returns a function for watch that opens a token file and sets calls.
func openToken(path string, calls *credentials.PerRPCCredentials) func(*tlsfiles.Watch) error {
	return func(w *tlsfiles.Watch) (err error) {
		*calls, err = w.Calls(tlsfiles.CallConfig{Token: named("TOKEN", path), Headers: map[string]string{"x-tenant": "blue"}})
		return err
	}
}

// authorization returns the header authorization of a call.
func authorization(t *testing.T, calls credentials.PerRPCCredentials) string {
	t.Helper()
	headers, err := calls.GetRequestMetadata(t.Context())
	if err != nil || headers["x-tenant"] != "blue" {
		t.Errorf("GetRequestMetadata: %v, %v, want x-tenant blue", headers, err)
	}
	return headers["authorization"]
}

// TestTokenIsReadAgain checks that calls use the current token of the file, and the previous token while the file is
// invalid.
func TestTokenIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := certs.WriteFile(t, dir, "token", []byte("one\n"))
		var calls credentials.PerRPCCredentials
		w := watch(t, openToken(path, &calls))
		if got := authorization(t, calls); got != "Bearer one" || !calls.RequireTransportSecurity() {
			t.Errorf("authorization of a call: %q, want the first token, and only over TLS", got)
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
				t.Errorf("token %q: log is %q, want one line with %s, without the token", tt.content, logged, tt.logged)
			}
			if got := authorization(t, calls); got != "Bearer "+tt.want {
				t.Errorf("token %q: authorization of a call is %q, want %s", tt.content, got, tt.want)
			}
			if got := w.Status()[0]; got.Refused != tt.refused || (got.Err != nil) != (tt.content == "") {
				t.Errorf("token %q: %d changes refused, error %v, want %d refused", tt.content, got.Refused, got.Err, tt.refused)
			}
		}
	})
}

// TestLinksAreFollowed checks that a watch detects a changed symbolic link in the path of a file. Kubernetes replaces
// the link ..data, and Certbot links to files in an archive.
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
			t.Errorf("after the change of the link: authorization %q, want v2", got)
		}
	})
}

// TestBadFileChangesNothing checks that an invalid file is logged once, in one line, and shown in the status until it
// is fixed. A valid file is loaded again.
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
			{"a truncated certificate", first.Cert[:len(first.Cert)/2], first.Key, "it has one that is cut off"},
			{"empty files", nil, nil, "it has no certificate in PEM"},
			{"an expired certificate", expired.Cert, expired.Key, "the certificate has expired at "},
		}
		for _, tt := range tests {
			certs.Pair{Cert: tt.cert, Key: tt.key}.Write(t, dir)
			got := w.after(time.Minute)
			if strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, tt.want) {
				t.Errorf("%s: log is %q, want one warning with %s", tt.name, got, tt.want)
			}
			s := w.Status()[0]
			if s.Err == nil || !strings.Contains(s.Err.Error(), tt.want) || !s.LoadedAt.Equal(loaded) || time.Until(s.NotAfter) > time.Hour {
				t.Errorf("%s: status %+v, want an error with %s, and the first certificate", tt.name, s, tt.want)
			}
		}
		first.Write(t, dir)
		if got, s := w.after(settled), w.Status()[0]; !strings.Contains(got, "credential file has its previous content again") || s.Err != nil || !s.LoadedAt.Equal(loaded) {
			t.Errorf("first certificate restored: log is %q, status %+v, want the first status, and a line about it", got, s)
		}
		next.Write(t, dir)
		if got, s := w.after(settled), w.Status()[0]; !strings.Contains(got, "credential file reloaded") || s.Err != nil || time.Until(s.NotAfter) < time.Hour {
			t.Errorf("next certificate: log is %q, status %+v, want the certificate in force", got, s)
		}
	})
}

// TestFilesHaveASecond checks that files are not loaded while they are being written. There is a second of time to
// write the key after its certificate, and to complete a bundle.
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
		if got := w.after(900 * time.Millisecond); got != "" { // the watch has read the files once
			t.Errorf("incomplete files: log is %q, want nothing", got)
		}
		certs.WriteFile(t, dir, "tls.key", next.Key)
		certs.WriteFile(t, dir, "ca.pem", append(ca.PEM, certs.NewCA(t).PEM...))
		if got := w.after(settled); strings.Count(got, "\n") != 2 || strings.Count(got, "credential file reloaded") != 2 {
			t.Errorf("complete files: log is %q, want both reloads", got)
		}
	})
}

// TestExpiryIsSaid checks that the expiry of a certificate that was not replaced is logged once.
func TestExpiryIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := certs.NewCA(t)
		cert, key := ca.Sign(certs.Leaf{NotAfter: time.Now().Add(time.Hour)}).Write(t, t.TempDir())
		w := watch(t, func(w *tlsfiles.Watch) error {
			_, err := w.Client(tlsfiles.ClientConfig{Cert: named("CERT", cert), Key: named("KEY", key)})
			return err
		})
		if got := w.after(time.Hour - time.Second); got != "" {
			t.Errorf("before the expiry: log is %q, want nothing", got)
		}
		if got := w.after(time.Hour); strings.Count(got, "\n") != 1 || !strings.Contains(got, "certificate expired") {
			t.Errorf("after the expiry: log is %q, want one line about it", got)
		}
	})
}

// TestTokensThatCannotBeUsed checks that invalid tokens are refused, with errors that do not contain the token.
func TestTokensThatCannotBeUsed(t *testing.T) {
	for _, content := range []string{"", "\n", "Bearer canary", "canary\ncanary", "canäry", strings.Repeat("canary", 3000)} {
		path := certs.WriteFile(t, t.TempDir(), "token", []byte(content))
		_, err := tlsfiles.New(nil).Calls(tlsfiles.CallConfig{Token: named("TOKEN", path)})
		if err == nil || !strings.HasPrefix(err.Error(), `TOKEN="`+path+`": it has `) || strings.Contains(err.Error(), "can") {
			t.Errorf("token %.20q: %v, want an error that does not contain it", content, err)
		}
	}
}

// TestReload checks that Reload loads changed files at once, refuses and names unusable content again, and says so, also
// without files, and however often it is called.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := certs.WriteFile(t, t.TempDir(), "token", []byte("one\n"))
		var calls credentials.PerRPCCredentials
		w := watch(t, openToken(path, &calls))
		for _, tt := range []struct{ content, want, logged string }{
			{"one", "one", "changed=0 refused=0 unchanged=1"},
			{"two", "two", "changed=1 refused=0 unchanged=0"},
			{"", "two", "changed=0 refused=1 unchanged=0"},
			{"", "two", "it has no token"},
			{"two", "two", "credential file has its previous content again"},
			{"three", "three", "changed=1 refused=0 unchanged=0"},
		} {
			certs.WriteFile(t, filepath.Dir(path), "token", []byte(tt.content))
			logged := w.reloaded()
			if got := authorization(t, calls); got != "Bearer "+tt.want {
				t.Errorf("token %q: authorization of a call is %q, want %s", tt.content, got, tt.want)
			}
			if tt.logged != "" && !strings.Contains(logged, tt.logged) {
				t.Errorf("token %q: log is %q, want %s", tt.content, logged, tt.logged)
			}
		}
		if logged := w.after(settled); logged != "" {
			t.Errorf("later, the log is %q, want nothing", logged)
		}
		none := watch(t, func(*tlsfiles.Watch) error { return nil })
		if logged := none.reloaded(); !strings.Contains(logged, "changed=0 refused=0 unchanged=0") {
			t.Errorf("without files, the log is %q", logged)
		}
	})
}
