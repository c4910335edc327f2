package guard

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// ReportAccept returns a listener that counts and logs failures to accept connections, and logs their end. Only one
// goroutine may call Accept, as servers do.
func (g *Guard) ReportAccept(l net.Listener) net.Listener {
	return &reportingListener{Listener: l, guard: g}
}

type reportingListener struct {
	net.Listener
	guard    *Guard
	failedAt time.Time // of the last failure; zero once its end was logged
}

// acceptsAgain is how long connections must have been accepted without a failure before that is logged. While
// descriptors are short, one that becomes free is taken at once.
const acceptsAgain = 10 * time.Second

// Accept implements net.Listener.
func (l *reportingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	switch {
	case err == nil && !l.failedAt.IsZero() && time.Since(l.failedAt) >= acceptsAgain:
		l.failedAt = time.Time{}
		l.guard.cfg.Logger.Info("client connections accepted again", slog.String("listener", l.Addr().String()))
	case err != nil && !errors.Is(err, net.ErrClosed):
		l.failedAt = time.Now()
		l.guard.Counters.Refused("client connection not accepted", acceptFailureOf(err), "", err,
			slog.String("listener", l.Addr().String()))
	}
	return conn, err
}

// acceptFailureOf returns the cause of an error of Accept.
func acceptFailureOf(err error) AcceptFailure {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return AcceptFiles
	}
	return AcceptOther
}

// HandshakeFailed counts and logs a failed TLS handshake of a client or an operator.
func (g *Guard) HandshakeFailed(from net.Addr, err error) {
	cause, message := handshakeFailureOf(err), "client TLS handshake failed"
	if cause == HandshakeClosed {
		message = "" // balancers check ports by connections without data
	}
	attrs := []slog.Attr{slog.String("address", from.String())}
	if invalid, is := errors.AsType[*tls.CertificateVerificationError](err); is && len(invalid.UnverifiedCertificates) > 0 {
		leaf := invalid.UnverifiedCertificates[0]
		attrs = append(attrs, slog.String("identity", cutText(certificateName(leaf))),
			slog.String("issuer", cutText(leaf.Issuer.String())))
	}
	g.Counters.Refused(message, cause, HostName(hostIP(from.String())), err, attrs...)
}

// handshakeFailureOf returns the cause of the error of a handshake. crypto/tls has no types for some errors.
func handshakeFailureOf(err error) Cause {
	if cause, is := CauseOf(err); is {
		return cause
	}
	if invalid, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return certificateFailure(invalid.Err)
	}
	if _, is := errors.AsType[tls.RecordHeaderError](err); is {
		return HandshakePlaintext
	}
	if timeout, is := errors.AsType[net.Error](err); errors.Is(err, os.ErrDeadlineExceeded) || is && timeout.Timeout() {
		return HandshakeTimeout
	}
	switch text := err.Error(); {
	case strings.Contains(text, "client didn't provide a certificate"):
		return HandshakeNoCertificate
	case strings.HasPrefix(text, "remote error"):
		return HandshakeRejected
	case strings.Contains(text, "unsupported"), strings.Contains(text, "no cipher suite supported"):
		return HandshakeUnsupported
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
		return HandshakeClosed
	default:
		return HandshakeOther
	}
}

// certificateFailure returns why a certificate was refused.
func certificateFailure(err error) HandshakeFailure {
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		return HandshakeUnknownCA
	}
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); is && invalid.Reason == x509.Expired {
		return HandshakeExpired
	}
	return HandshakeCertificate
}
