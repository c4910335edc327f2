package guard

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// B.47: the causes of failures have the names of metrics. relay/tlsfiles tests real handshakes.
func TestB47_CausesOfFailures(t *testing.T) {
	t.Parallel()
	invalid := func(err error) error { return &tls.CertificateVerificationError{Err: err} }
	accept := func(err syscall.Errno) error {
		return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	for _, tt := range []struct {
		cause Cause
		want  string
	}{
		{handshakeFailureOf(invalid(x509.UnknownAuthorityError{})), "handshake unknown_ca"},
		{handshakeFailureOf(invalid(x509.CertificateInvalidError{Reason: x509.Expired})), "handshake expired"},
		{handshakeFailureOf(invalid(x509.CertificateInvalidError{Reason: x509.NameMismatch})), "handshake bad_certificate"},
		{handshakeFailureOf(fmt.Errorf("read: %w", os.ErrDeadlineExceeded)), "handshake timeout"},
		{handshakeFailureOf(&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}), "handshake closed"},
		{handshakeFailureOf(io.EOF), "handshake closed"},
		{handshakeFailureOf(errors.New("tls: something new")), "handshake other"},
		{handshakeFailureOf(Denies(DeniedTrustDomain, "no")), "denial trust_domain"},
		{acceptFailureOf(accept(syscall.EMFILE)), "accept file_descriptors"},
		{acceptFailureOf(accept(syscall.ENFILE)), "accept file_descriptors"},
		{acceptFailureOf(accept(syscall.ENOBUFS)), "accept other"},
	} {
		check.Equal(t, "cause", tt.cause.Kind()+" "+tt.cause.String(), tt.want)
	}
	for err, want := range map[error]Cause{
		Refuses(InvalidNode, "no"):              InvalidNode,
		Exceeds(LimitNames, "no"):               LimitNames,
		Denies(DeniedSecret, "no"):              DeniedSecret,
		status.Error(codes.InvalidArgument, ""): InvalidOther,
	} {
		if got, is := CauseOf(err); !is || got != want {
			t.Errorf("cause of %v: %v, %t, want %v", err, got, is, want)
		}
	}
	for _, err := range []error{nil, io.EOF, Ended(EndedDrained, codes.Unavailable, ""), status.Error(codes.Unavailable, "")} {
		if got, is := CauseOf(err); is {
			t.Errorf("cause of %v: %v, want none", err, got)
		}
	}
}

// B.47: log lines of one cause are rate-limited, and hide no other cause. All refusals are counted, and the last of
// each cause is kept, also if the clock is set back. A peer's text is bounded and UTF-8.
func TestB47_RefusalsAreLoggedOnceInAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := NewCounters(slog.New(slog.NewTextHandler(&log, nil)))
		from := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
		g := &Guard{Counters: c}
		for range 8000 { // a fleet with a wrong CA
			g.HandshakeFailed(from, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
		}
		g.HandshakeFailed(from, io.EOF)
		c.RequestRefused(InvalidText, "10.0.0.2", "envoy-1", Refuses(InvalidText, "%s", "\xff"+strings.Repeat("x", 5000)))
		time.Sleep(time.Minute)
		g.HandshakeFailed(from, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
		check.Equal(t, "lines about handshakes", strings.Count(log.String(), "reason=unknown_ca"), 6)
		check.Equal(t, "lines about closed connections", strings.Count(log.String(), "reason=closed"), 0)
		check.Equal(t, "lines about requests", strings.Count(log.String(), `node=envoy-1`), 1)
		if !strings.Contains(log.String(), "suppressed=7995\n") {
			t.Errorf("the log does not have the number of suppressed lines:\n%.2000s", log.String())
		}
		all := c.Refusals()
		if len(all) != 3 || all[0].Cause != HandshakeUnknownCA || all[0].Count != 8001 || all[0].Peer != "10.0.0.1" {
			t.Errorf("refusals %+v, want three causes, the latest 8001 times", all)
		}
		for _, r := range all {
			if r.Cause == InvalidText && (!strings.HasPrefix(r.Err, "\ufffdxx") || len(r.Err) > 600) {
				t.Errorf("error %q, want it bounded and UTF-8", r.Err)
			}
		}
	})
}

// B.47: the end of a listener is no failure.
func TestB47_ClosedListenersAreNotReported(t *testing.T) {
	t.Parallel()
	g := New(Config{Limits: WithDefaults(Limits{}), Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	check.OK(t, l.Close())
	if _, err := g.ReportAccept(l).Accept(); !errors.Is(err, net.ErrClosed) || len(g.Counters.Refusals()) > 0 {
		t.Errorf("got %v and %v, want ErrClosed and no refusal", err, g.Counters.Refusals())
	}
}
