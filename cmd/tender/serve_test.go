package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest/logs"
)

func TestServeRefusesBadConfiguration(t *testing.T) {
	t.Setenv("TENDER_LISTEN", "nowhere")
	code, stdout, stderr := execute("serve")
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if code != exitFailure || stdout != "" || len(lines) != 2 ||
		!strings.HasPrefix(lines[0], `tender: TENDER_ORIGIN="": it is required`) ||
		!strings.HasPrefix(lines[1], `tender: TENDER_LISTEN="nowhere": `) {
		t.Errorf("tender serve: code %d, stdout %q, stderr %q, want 1 and a line for each error", code, stdout, stderr)
	}
}

// config returns a configuration with a file origin, and listen as the only address.
func config(t *testing.T, listen string) relay.Config {
	t.Helper()
	cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=file://" + t.TempDir(), "TENDER_LISTEN=" + listen, "TENDER_ADMIN_LISTEN=off"})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestServeStartsAndStops runs a relay that receives SIGINT at the start, and verifies that its log contains its
// addresses.
func TestServeStartsAndStops(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "rest")
	for _, tt := range []struct {
		listen []string // addresses for REST
		want   string
	}{
		{nil, `rest_listen=off`},
		{[]string{"127.0.0.1:0", "unix:" + socket}, `rest_listen=127\.0\.0\.1:[1-9]\d*,unix:` + regexp.QuoteMeta(socket)},
	} {
		var out logs.Log // safe for concurrent use: the relay may log after serve has returned
		received := make(chan os.Signal, 1)
		received <- os.Interrupt
		cfg := config(t, "127.0.0.1:0")
		cfg.RESTListen = tt.listen
		if err := serve(t.Context(), cfg, relay.Options{Logger: newLogger(&out, slog.LevelInfo, "text"), Version: version}, signals{end: received}); err != nil {
			t.Errorf("serve: %v, want nil", err)
		}
		for _, want := range []string{
			`^.* msg=starting origin=` + regexp.QuoteMeta(cfg.Origin[0]) + ` version=dev\n`,
			`\n.* msg=listening listen=127\.0\.0\.1:[1-9]\d* tls_listen=off ` + tt.want + ` admin_listen=off probe_listen=off\n`,
		} {
			if !regexp.MustCompile(want).MatchString(out.String()) {
				t.Errorf("the log has no line %s:\n%s", want, out.String())
			}
		}
	}
}

func TestServeNamesTheVariableOfAnAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	err = serve(t.Context(), config(t, address), relay.Options{Logger: slog.New(slog.DiscardHandler)}, signals{})
	if err == nil || !strings.Contains(err.Error(), "TENDER_LISTEN") || !strings.Contains(err.Error(), address) {
		t.Errorf("serve on %s, which is in use: %v, want an error that names TENDER_LISTEN and the address", address, err)
	}
}

// A fakeRelay is a runner whose Run returns when a test wants.
type fakeRelay struct {
	ends     string        // when Run returns: "drained", "hurried", "at once" or "never"
	result   error         // returned by Run
	hurried  chan struct{} // closed by StopNow
	over     chan struct{} // closed by the test, so that "never" ends
	hasEnded chan struct{} // closed when Run returns
	reloads  chan struct{} // has an element per call of Reload
}

// StopNow implements runner.
func (r *fakeRelay) StopNow() { close(r.hurried) }

// Reload implements runner.
func (r *fakeRelay) Reload() { r.reloads <- struct{}{} }

// Run implements runner.
func (r *fakeRelay) Run(ctx context.Context) error {
	defer close(r.hasEnded)
	switch r.ends {
	case "drained":
		<-ctx.Done()
	case "hurried":
		<-r.hurried
		<-ctx.Done()
	case "never":
		<-r.over
	}
	return r.result
}

// TestSignals verifies when untilSignalled returns after a sequence of signals, and its error.
func TestSignals(t *testing.T) {
	term, interrupt := os.Signal(syscall.SIGTERM), os.Interrupt
	broken := errors.New("broken")
	tests := []struct {
		name    string
		signals []os.Signal
		ends    string // as in fakeRelay
		result  error
		want    error
	}{
		{"SIGTERM drains", []os.Signal{term}, "drained", nil, nil},
		{"an error while draining", []os.Signal{term}, "drained", broken, broken},
		{"a second SIGTERM hurries", []os.Signal{term, term}, "hurried", broken, broken},
		{"SIGINT after SIGTERM hurries", []os.Signal{term, interrupt}, "hurried", broken, broken},
		{"SIGINT hurries", []os.Signal{interrupt}, "hurried", broken, broken},
		{"SIGTERM after SIGINT ends the process", []os.Signal{interrupt, term}, "never", nil, nil},
		{"a third SIGTERM ends the process", []os.Signal{term, term, term}, "never", nil, nil},
		{"an error without a signal", nil, "at once", broken, broken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			received := make(chan os.Signal, len(tt.signals))
			for _, sig := range tt.signals {
				received <- sig
			}
			r := &fakeRelay{tt.ends, tt.result, make(chan struct{}), make(chan struct{}), make(chan struct{}), nil}
			err := untilSignalled(t.Context(), r, slog.New(slog.DiscardHandler), signals{end: received})
			close(r.over)
			<-r.hasEnded
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("untilSignalled = %v, want %v", err, tt.want)
			}
		})
	}
}

// TestSIGHUPReloads verifies that SIGHUP reads files again, before and during a drain, and that the log has the end of the
// drain.
func TestSIGHUPReloads(t *testing.T) {
	var out logs.Log
	end, reload := make(chan os.Signal, 2), make(chan os.Signal)
	r := &fakeRelay{"hurried", nil, make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)}
	result := make(chan error, 1)
	go func() {
		result <- untilSignalled(t.Context(), r, newLogger(&out, slog.LevelInfo, "text"), signals{end, reload})
	}() // awaited below
	reload <- syscall.SIGHUP
	<-r.reloads
	if log := out.String(); log != "" {
		t.Errorf("after SIGHUP, the log is\n%s", log)
	}
	end <- syscall.SIGTERM
	reload <- syscall.SIGHUP
	<-r.reloads
	end <- syscall.SIGTERM
	if err := <-result; err != nil {
		t.Errorf("untilSignalled = %v, want nil", err)
	}
	for _, want := range []string{"msg=draining", `msg="ending all streams"`, `msg="drain ended"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, out.String())
		}
	}
}
