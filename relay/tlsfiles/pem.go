package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A validity is the period in which a certificate is valid. The zero value never expires; it is used for files without
// certificates.
type validity struct {
	notBefore, notAfter time.Time
	file                File // the file of the certificate, for errors
}

// check returns an error if the certificate has expired or is not valid yet.
func (v validity) check(now time.Time) error {
	switch {
	case v.notAfter.IsZero():
		return nil
	case now.After(v.notAfter):
		return v.file.wrap(fmt.Errorf("the certificate has expired at %s", v.notAfter.UTC().Format(time.RFC3339)))
	case now.Before(v.notBefore):
		return v.file.wrap(fmt.Errorf("the certificate is not valid before %s, and it is %s", v.notBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
	}
	return nil
}

// parsePair parses a certificate, with its intermediate certificates, and its key. The content of a file that cannot be
// read is nil: the other file is checked then, and there is no pair. Errors name the invalid files and never contain the
// key.
func parsePair(cert, key File, certPEM, keyPEM []byte) (*tls.Certificate, error) {
	var errs []error
	if certPEM != nil {
		if _, err := parseCertificates(certPEM); err != nil {
			errs = append(errs, cert.wrap(err))
		}
	}
	if keyPEM != nil && !hasKey(keyPEM) {
		errs = append(errs, key.wrap(errors.New("it has no private key in PEM: a block that begins with -----BEGIN … PRIVATE KEY-----, not encrypted")))
	}
	if len(errs) > 0 || certPEM == nil || keyPEM == nil {
		return nil, errors.Join(errs...)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	switch {
	case err == nil:
		return &pair, nil
	case strings.Contains(err.Error(), "does not match") || strings.Contains(err.Error(), "type mismatch"):
		return nil, key.wrap(fmt.Errorf("it is not the key of the certificate in %s", cert))
	}
	return nil, key.wrap(err)
}

// hasKey reports whether data contains a private key that is not encrypted.
func hasKey(data []byte) bool {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return false
		}
		if block.Type == "PRIVATE KEY" || strings.HasSuffix(block.Type, " PRIVATE KEY") && block.Type != "ENCRYPTED PRIVATE KEY" {
			return block.Headers["DEK-Info"] == ""
		}
	}
}

// parseCertificates parses the certificates of a file, and ignores other PEM blocks. A truncated block, an invalid
// certificate and a file without certificates are errors.
func parseCertificates(data []byte) (certs []*x509.Certificate, err error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d of the file: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	switch {
	case bytes.Contains(data, []byte("-----BEGIN")):
		return nil, fmt.Errorf("after %d certificates it has one that is cut off, or is no PEM", len(certs))
	case len(certs) == 0:
		return nil, errors.New("it has no certificate in PEM: a block that begins with -----BEGIN CERTIFICATE-----")
	}
	return certs, nil
}

// parseCAs parses a file of CAs. It returns the validity of the CA that expires last: bundles normally contain expired
// CAs too.
func parseCAs(f File, data []byte) ([]*x509.Certificate, validity, error) {
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, validity{}, f.wrap(err)
	}
	last := certs[0]
	for _, cert := range certs {
		if cert.NotAfter.After(last.NotAfter) {
			last = cert
		}
	}
	return certs, validity{last.NotBefore, last.NotAfter, f}, nil
}

func pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, cert := range certs {
		p.AddCert(cert)
	}
	return p
}

// suites are the cipher suites of TLS 1.2 with an ephemeral key exchange and authenticated encryption. HTTP/2 forbids
// all others (RFC 9113, appendix A). Go does not allow to configure the suites of TLS 1.3.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// pairOf opens a certificate and its key. It calls current now and, on the goroutine of Run, after each valid change.
func (w *Watch) pairOf(cert, key File, current func(*tls.Certificate)) error {
	err := w.open(func(contents [][]byte) (reading, error) {
		pair, err := parsePair(cert, key, contents[0], contents[1])
		if pair == nil {
			return reading{}, err
		}
		return reading{validity{pair.Leaf.NotBefore, pair.Leaf.NotAfter, cert}, func() { current(pair) }}, nil
	}, cert, key)
	if err != nil {
		return err
	}
	w.warnIfExposed(key)
	return nil
}

// casOf opens a file of CAs. It calls current now and, on the goroutine of Run, after each valid change.
func (w *Watch) casOf(f File, current func([]*x509.Certificate)) error {
	return w.open(func(contents [][]byte) (reading, error) {
		certs, valid, err := parseCAs(f, contents[0])
		if err != nil {
			return reading{}, err
		}
		return reading{valid, func() { current(certs) }}, nil
	}, f)
}
